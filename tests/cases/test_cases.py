"""Every file of every case of the field log, through what a user would run (see `table`)."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sanawm.config import resolve
from sanawm.errors import SanawmError
from sanawm.io.video import VideoSettings, VideoWriter
from sanawm.notes import Notes
from sanawm.plan import make_plan
from tests.cli.command import ROOT, Done, sanawm
from tests.troubleshooting_page import covered

from .table import TABLE, Row
from .values import PICTURE

CASES = Path(__file__).parent
SHARED = ROOT.parent / "shared" / "cases"


def case_files(folder: Path) -> set[str]:
    """Return the files of all cases in a folder, without the pages about them."""
    files = (p for p in folder.glob("C*/*") if p.name != "expected.md" and p.is_file())
    return {str(p.relative_to(folder)) for p in files}


def test_no_case_file_is_missing_from_the_table() -> None:
    assert {row.file for row in TABLE} == case_files(CASES)
    assert len(case_files(CASES)) > 70
    if SHARED.exists():  # the place where these files were copied from, where it is at hand
        assert case_files(SHARED) == case_files(CASES)
        for name in case_files(SHARED):
            assert (SHARED / name).read_bytes() == (CASES / name).read_bytes(), name


def test_the_choices_are_in_the_documentation() -> None:
    text = " ".join((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split())
    choices = [row.choice for row in TABLE if row.choice]
    assert len(choices) > 15
    assert not [choice for choice in choices if choice not in text]


def label(row: Row) -> str:
    """Return the name of a row in the list of tests."""
    use = row.command[0] if row.command else row.sets[-1].partition("=")[0]
    return f"{row.outcome} {row.file} {use}"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one; the picture of the cases lies beside it."""
    Image.new("RGB", PICTURE, (90, 120, 30)).save(tmp_path / "picture.png")
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.mark.parametrize("row", TABLE, ids=label)
def test_case(row: Row, out: Path) -> None:
    if row.command == ("library",):
        assert row.check is not None
        row.check(CASES / row.file, out, *row.given)
    elif row.command == ("writer",):
        write(row, out)
    elif row.command:
        run(row, out)
    elif row.outcome == "E":
        refuse(row, out)
    else:
        plan(row, out)
    assert not (out / "PWNED_MARKER").exists()


def sets_of(row: Row, out: Path) -> list[str]:
    """Return the settings of a run of the released model."""
    sets = [text.replace("FILE", str(CASES / row.file)) for text in row.sets]
    if "model.refiner=MODEL" in sets:
        model = out.parent / "refiner"
        shutil.copytree(ROOT / "configs/tiny/refiner_diffusers", model)
        shutil.copy(CASES / row.file, model / "transformer/diffusion_pytorch_model.safetensors")
        sets[sets.index("model.refiner=MODEL")] = f"model.refiner={model}"
        return sets
    if not any(s.startswith(("input.image", "input.latents")) for s in sets):
        sets.append(f"input.image={out.parent / 'picture.png'}")
    if not any(s.startswith(("input.camera", "input.action")) for s in sets):
        sets.append("input.action=w-24")
    if not any(s.startswith("input.intrinsics") for s in sets):
        sets.append("input.fov_x=90")
    return [*sets, "input.prompt=a red tower"]


def refuse(row: Row, out: Path) -> None:
    """Run the command: it says why, with the right code, and leaves nothing."""
    preset = "tiny" if "model.refiner=MODEL" in row.sets else "streaming-720p"
    words = [w for text in sets_of(row, out) for w in ("--set", text)]
    check_refusal(row, sanawm("refine", "-c", preset, *words, "-o", "o.mp4", "--dry-run"), out)


def check_refusal(row: Row, done: Done, out: Path) -> None:
    assert done.code == row.code, done.err
    assert done.out == ""
    shown = done.err[done.err.index("error: ") :]
    assert len(shown.splitlines()) <= 3
    if row.named:
        name = "diffusion_pytorch_model" if "model.refiner=MODEL" in row.sets else row.file
        assert name in shown
    for word in row.words:
        assert word in shown
    assert covered(shown), "docs/troubleshooting.md has no row for this message"
    assert "Traceback" not in done.err
    assert list(out.iterdir()) == []


def plan(row: Row, out: Path) -> None:
    """Plan the run, which reads every input and no weights."""
    notes = Notes()
    sets = [*sets_of(row, out), "output.output=o.mp4"]
    made = make_plan(resolve(["streaming-720p"], sets=sets), notes=notes, download=False)
    said = [*notes.warnings, *notes.changes, *notes.infos]
    for word in row.words:
        assert any(word in line for line in said), said
    if row.outcome == "W":
        assert notes.warnings or notes.changes
    if row.check is not None:
        row.check(made, *row.given)


def run(row: Row, out: Path) -> None:
    """Run a command other than `refine`."""
    done = sanawm(*(str(w).replace("FILE", str(CASES / row.file)) for w in row.command))
    if row.outcome == "E":
        check_refusal(row, done, out)
        return
    assert done.code == 0, done.err
    assert (row.outcome == "W") == ("warning: " in done.err.replace(STEP, ""))
    for word in row.words:
        assert word in done.out + done.err
    if row.check is not None:
        row.check(CASES / row.file, out, *row.given)


#: A step of 1 a frame is large: the cases that take one allow this warning.
STEP = "warning: the camera moves"


def write(row: Row, out: Path) -> None:
    """Give an array to the video writer."""
    array = np.load(CASES / row.file)
    height, width = (array.shape[1:3] if array.ndim == 4 else (32, 64)) or (32, 64)
    if row.file.endswith("TCHW_u8.npy"):
        height, width = array.shape[2:]
    settings = VideoSettings(int(width), int(height), Fraction(16))

    def attempt() -> None:
        with VideoWriter(out / "out.mp4", settings) as writer:
            writer.write(array)

    if row.outcome == "V":
        attempt()
        assert row.check is not None
        row.check(CASES / row.file, out)
        return
    with pytest.raises(SanawmError) as caught:
        attempt()
    assert caught.value.exit_code == 2
    for word in row.words:
        assert word in str(caught.value)
    assert covered(str(caught.value)), "docs/troubleshooting.md has no row for this message"
    assert list(out.iterdir()) == []
