"""What the field log asks for (R numbers) and no test of a part looks at."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from sanawm import measure
from sanawm.estimate import MemoryEstimate
from sanawm.notes import Notes
from sanawm.report import Record

from .cli.command import report_of, sanawm
from .tiny_runs import decode

SIZE = ("--height", 32, "--width", 48)
GB = 10**9


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", "<f2", "<u2", "longdouble"])
def test_r08_every_real_dtype_and_byte_order_gives_the_same_poses(dtype: str) -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (25, 1, 1))
    poses[:, 2, 3] = np.arange(25)
    np.save("plain.npy", poses)
    for name, order in (("c.npy", "C"), ("fortran.npy", "F")):
        np.save(name, poses.astype(dtype, order=order))  # type: ignore[call-overload]
        assert sanawm("camera", "convert", name, "-o", f"o_{name}").code == 0
        np.testing.assert_array_equal(np.load(f"o_{name}"), poses)


def test_r11_the_rule_of_the_released_model() -> None:
    given = ("refine", "-c", "streaming-720p", "--prompt", "x", "--action", "w-240", "-o", "o.mp4")
    np.save("z.npy", np.zeros((1, 128, 31, 22, 40), np.float32))
    done = sanawm(*given, "--latents", "z.npy", "--num-frames", 100, "--dry-run")
    assert done.code == 0
    assert "100 frames asked: 97 are used, a clip has 24*k + 1 frames (nearest: 97 and 121)" in (
        done.err
    )


@pytest.mark.parametrize(
    ("action", "words", "absent"),
    [
        ("d-24", ("net turn   right ",), ("net move   right",)),
        ("wd-24", ("net turn   right ", "forward "), ()),
        ("l-24", ("net move   right ", "net turn   none"), ()),
    ],
)
def test_r12_the_plan_tells_turn_and_strafe_apart(
    action: str, words: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    done = sanawm("refine", "--action", action, "-o", "o.mp4", "--dry-run")
    assert done.code == 0
    for word in words:
        assert word in done.out
    for word in absent:
        assert word not in done.out


def test_r42_nothing_of_a_run_is_left_for_the_next(tmp_path: Path) -> None:
    """The second job of a process equals that of a fresh one, with another prompt and seed."""
    run_b = ("refine", *SIZE, "--num-frames", 25, "--prompt", "a blue house", "--seed", "7")
    first = ("refine", *SIZE, "--num-frames", 37, "--prompt", "a red tower", "-o", "a.mp4")
    assert sanawm(*first).code == 0
    assert sanawm(*run_b, "-o", "b.mp4", "--save-latents", "b.safetensors").code == 0
    command = [*map(str, run_b), "-o", "c.mp4", "--save-latents", "c.safetensors"]
    subprocess.run([sys.executable, "-m", "sanawm", "-q", *command], check=True)
    assert Path("b.safetensors").read_bytes() == Path("c.safetensors").read_bytes()
    assert decode(Path("b.mp4")) == decode(Path("c.mp4"))


def test_r55_a_long_run_has_a_row_a_block() -> None:
    np.save("z.npy", np.random.default_rng(0).standard_normal((1, 16, 61, 4, 6)).astype("f4"))
    done = sanawm("refine", "--latents", "z.npy", "-o", "o.mp4")
    assert done.code == 0, done.err
    rows = report_of(Path("o.mp4"))["blocks"]
    assert [row["index"] for row in rows] == list(range(20))
    assert all(0 <= row["luma_mean"] <= 255 and row["luma_std"] >= 0 for row in rows)


def estimate(parts: dict[str, int], *, taking_turns: bool = False) -> MemoryEstimate:
    """Return an estimate for a card that holds nothing yet."""
    return MemoryEstimate(parts, 0, torch.device("cpu"), torch.bfloat16, taking_turns)


def test_r59_models_that_take_turns_are_not_added_up() -> None:
    parts = {
        "refiner_weights": 26 * GB, "refiner_work": 2 * GB, "refiner_cache": 10 * GB,
        "decoder_weights": 3 * GB, "decoder_work": 6 * GB, "decoder_state": GB,
        "stage1_weights": 5 * GB, "text_encoder": 24 * GB,
    }  # fmt: skip
    assert estimate(parts).peak == 53 * GB
    assert estimate(parts, taking_turns=True).peak == (28 + 10 + 1) * GB


@pytest.mark.parametrize(
    ("measured", "told"), [(8 * GB, False), (11 * GB, True), (6 * GB, True), (10 * GB, False)]
)
def test_r61_a_measured_peak_far_from_the_estimate_is_told(measured: int, told: bool) -> None:
    notes = Notes()
    estimate({"refiner_weights": 8 * GB}).compare(measured, notes=notes)
    line = f"memory peak was {measured / GB:.2f} GB, the plan said 8.00 GB"
    assert notes.warnings == ([line] if told else [])


BARE = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            with open("asked.txt", "a") as file:
                file.write(name + "\\n")
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ["sanawm", *{arguments!r}]
from sanawm.cli import app
app.main()
"""
#: What only text encoders need, and what no part of sanawm may ask for.
HEAVY = {"transformers", "diffusers"}
ACCELERATORS = {"flash_attn", "flash_attn_interface", "xformers", "sageattention", "apex"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with clean latents and the prompt's embeddings."""
    folder = tmp_path_factory.mktemp("saved")
    embeds, latents = folder / "e.safetensors", folder / "z.safetensors"
    sides = ("--save-prompt-embeds", embeds, "--save-stage1", latents)
    assert sanawm("refine", *SIZE, "--num-frames", 25, "-o", folder / "a.mp4", *sides).code == 0
    return folder


@pytest.mark.parametrize("source", [("--latents", "z.safetensors"), SIZE], ids=["REF", "GEN"])
def test_r58_r87_r88_a_run_with_embeddings_needs_no_text_encoder(
    source: tuple[object, ...], saved: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its weights nor its library; no accelerator is asked for at any time."""
    monkeypatch.setenv("SANAWM_CACHE", str(here / "empty"))
    for name in ("e.safetensors", "z.safetensors"):
        shutil.copy(saved / name, here)
    nowhere = [("--set", f"model.{name}=/no") for name in ("text_encoder", "stage1_text_encoder")]
    flags = (*source, "--num-frames", 25, *nowhere[0], *nowhere[1])
    words = ["refine", *map(str, flags), "--prompt-embeds", "e.safetensors", "-o", "o.mp4"]
    code = BARE.format(absent=HEAVY | ACCELERATORS, arguments=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(decode(Path("o.mp4")).frames) == 24
    asked = Path("asked.txt").read_text().split() if Path("asked.txt").exists() else []
    assert not {name.partition(".")[0] for name in asked} & ACCELERATORS


def test_r91_compile_time_is_reported_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """From torch's own figures, less what earlier runs of the process took."""
    utils = ModuleType("torch._dynamo.utils")
    utils.compilation_time_metrics = {"_compile.compile_inner": [2.0, 0.5]}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    assert measure.compile_seconds() == 2.5
    record = Record()
    utils.compilation_time_metrics["_compile.compile_inner"].append(1.25)
    assert measure.compile_seconds() - record.compiled_before == 1.25
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert measure.compile_seconds() == 0
