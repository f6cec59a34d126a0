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

from .places import TESTS, case

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


def test_the_picture_can_be_drawn_again(tmp_path: Path) -> None:
    target = tmp_path / "cameras.png"
    script = [sys.executable, str(DOCS / "make_cameras_png.py"), str(target)]
    subprocess.run(script, check=True, capture_output=True)
    with Image.open(target) as again, Image.open(DOCS / "cameras.png") as kept:
        assert again.size == kept.size == (1440, 500)
