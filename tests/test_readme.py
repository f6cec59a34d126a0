"""The README's Python runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def test_every_python_block_runs(tmp_path: Path) -> None:
    assert len(BLOCKS) == 2
    values = np.random.default_rng(0).standard_normal((1, 16, 25, 8, 12)).astype(np.float32)
    (tmp_path / "out").mkdir()
    save_file({"latents": torch.from_numpy(values)}, tmp_path / "out" / "demo-clean.safetensors")
    for block in BLOCKS:
        done = subprocess.run(
            [sys.executable, "-c", "import torch\ntorch.set_num_threads(1)\n" + block],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "library.mp4").is_file()


def test_the_library_block_fits_what_the_commands_before_it_leave() -> None:
    """Its input is an output of `make demo`; its output is no file of a command before it."""
    text = (ROOT / "README.md").read_text("utf-8")
    demo = (ROOT / "Makefile").read_text("utf-8").partition("\ndemo:")[2].partition("\n\n")[0]
    (source,) = re.findall(r'LatentsSource.open\("([^"]+)"\)', BLOCKS[0])
    (target,) = re.findall(r'"([^"]+[.]mp4)"', BLOCKS[0])
    assert f"--save-stage1 {source}" in demo
    assert target not in text[: text.index(BLOCKS[0])]
    assert text.index("source .venv/bin/activate") < text.index("\nsanawm refine")


def test_a_dry_run_does_not_deny_the_camera(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sanawm", "refine", "-c", "tiny", "-o", "o.mp4", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "camera action" in done.stdout
    assert "does not change" not in done.stdout
