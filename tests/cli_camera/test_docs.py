"""Every command of `docs/cameras.md` runs and prints what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.command import sanawm

from .places import FORMATS, TESTS, case

DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "cameras.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the one file that the page does not make itself."""
    shutil.copy(case("C01/nan.npy"), tmp_path / "broken.npy")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_prints_what_the_page_says(folder: Path) -> None:
    commands = 0
    last = ""
    for block in CONSOLES:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            program, *arguments = shlex.split(command)
            assert program == "sanawm"
            done = sanawm(*arguments)
            assert done.out == expected, command
            assert done.code == {"": 2}.get(expected, done.code), command
            commands, last = commands + 1, done.err
    assert commands >= 15
    assert f"```text\n{last}```" in PAGE  # the page ends with the words of the last error


def test_only_failed_checks_and_errors_do_not_exit_with_0(folder: Path) -> None:
    text = "\n".join(CONSOLES)
    lines = re.findall(r"^\$ sanawm (.*)$", text, flags=re.MULTILINE)
    codes = {line: sanawm(*shlex.split(line)).code for line in lines}
    assert {code for line, code in codes.items() if not line.startswith("camera check")} == {0}
    assert [c for line, c in codes.items() if line.startswith("camera check")] == [1, 0, 2]


def test_every_format_is_in_the_table() -> None:
    from sanawm.camera.raw import FORMATS as READ
    from sanawm.camera.write import OUTPUT_FORMATS

    rows = [
        line.split("|")
        for line in PAGE.splitlines()
        if line.startswith("| `") and "--camera-format" not in line
    ]
    table = {cells[1].strip(" `"): cells[6].strip() for cells in rows if len(cells) == 8}
    assert set(table) == set(READ)
    assert {name for name, written in table.items() if written == "yes"} == set(OUTPUT_FORMATS)


def readme_recipes() -> dict[str, list[str]]:
    """Return the flags of each source in the README's table of cameras."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Cameras\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.endswith("` |")]
    return {cells[1].strip(): shlex.split(cells[4].strip(" `")) for cells in rows}


RECIPES = readme_recipes()
#: Files of the recipes, and where the same trajectory lies in that format.
SAMPLES = {
    "model/images.txt": "colmap_images.txt", "model/cameras.txt": "colmap_cameras.txt",
    "transforms.json": "nerfstudio_transforms.json",
    "camera_path.json": "nerfstudio_camera_path.json",
    "transforms_train.json": "blender_transforms.json", "clip.txt": "re10k.txt",
    "tum.txt": "tum.txt", "poses_bounds.npy": "llff_poses_bounds.npy",
}  # fmt: skip


def test_the_readme_has_a_recipe_for_every_format() -> None:
    from sanawm.camera.raw import FORMATS as READ

    assert len(RECIPES) == len(READ)  # npy and npz share a row, keys have one of their own


@pytest.mark.parametrize("source", RECIPES)
def test_a_recipe_of_the_readme_plans_a_run(source: str, folder: Path) -> None:
    (folder / "model").mkdir()
    for name, sample in SAMPLES.items():
        shutil.copy(FORMATS / sample, folder / name)
    assert sanawm("camera", "make", "--action", "w-24,dw-24", "-o", "poses.npy").code == 0
    assert sanawm("camera", "convert", "poses.npy", "--to", "kitti", "-o", "kitti.txt").code == 0
    done = sanawm("refine", "-c", "tiny", "-o", "out.mp4", *RECIPES[source], "--dry-run")
    assert done.code == 0, done.err
    assert "net move" in done.out
    assert not (folder / "out.mp4").exists()


def test_the_picture_can_be_drawn_again(tmp_path: Path) -> None:
    target = tmp_path / "cameras.png"
    script = [sys.executable, str(DOCS / "make_cameras_png.py"), str(target)]
    subprocess.run(script, check=True, capture_output=True)
    with Image.open(target) as again, Image.open(DOCS / "cameras.png") as kept:
        assert again.size == kept.size == (1440, 500)
