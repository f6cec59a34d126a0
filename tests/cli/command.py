"""Run the command in this process, or in one of its own, and look at what it made."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import av
import imageio.v3 as iio
import numpy as np
import torch
from safetensors.torch import load_file
from sanawm.cli import app

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "tiny"
_CONFIG = json.loads((TINY / "refiner_diffusers/transformer/config.json").read_text())
CHANNELS: int = _CONFIG["in_channels"]
#: Pixel frames and pixels a latent.
TIME, SPACE = (int(n) for n in _CONFIG["vae_scale_factors"][:2])
#: Pixel frames of a block of three latent frames.
STRIDE = 3 * TIME


def pixel_frames(latent_frames: int) -> int:
    """Return the frames that a clip decodes to."""
    return TIME * (latent_frames - 1) + 1


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object on stdout."""
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines on stderr."""
        return [json.loads(line) for line in self.err.splitlines()]

    @property
    def error(self) -> str:
        """The lines of the error on stderr."""
        return self.err[self.err.index("error: ") :]


def sanawm(*arguments: object) -> Done:
    """Run `sanawm` in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app.main([str(a) for a in arguments])
        except SystemExit as e:
            code = e.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def start(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    """Start `sanawm` as a process of its own, with one thread for the models."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    command = [sys.executable, "-m", "sanawm", *map(str, arguments)]
    return subprocess.Popen(command, **options)


def finish(process: subprocess.Popen[str], *, seconds: float = 60) -> Done:
    """Wait for a process to end."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return Done(process.returncode, out or "", err or "")


def report_of(path: Path) -> dict[str, Any]:
    """Return the report beside an MP4 or latents file."""
    report: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return report


def refined(path: Path) -> torch.Tensor:
    """Return the latents in a file."""
    return load_file(path)["latents"]


def video_frames(path: Path) -> np.ndarray:
    """Return the frames of a video as PyAV decodes them, `(T, H, W, 3)`."""
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def pngs(folder: Path) -> np.ndarray:
    """Return the pictures of a folder in the order of their names, `(T, H, W, 3)`."""
    return np.stack([iio.imread(p) for p in sorted(folder.iterdir())])
