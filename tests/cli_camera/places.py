"""Run the camera commands, and where their fixtures lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.command import Done, sanawm

TESTS = Path(__file__).parent.parent
DEMO = TESTS / "golden" / "release_demo"
FORMATS = TESTS / "golden" / "stage1" / "formats"
CASES = TESTS / "cases"


def camera(*arguments: object) -> Done:
    """Run `sanawm camera …` in this process."""
    return sanawm("camera", *arguments)


def shown(*arguments: object) -> dict[str, Any]:
    """Return the JSON of `sanawm camera show …`, which must succeed."""
    done = camera("show", *arguments, "--json")
    assert done.code == 0, done.err
    return done.json


def case(name: str) -> Path:
    """Return a case file or folder from the start of its path: `C01/nan.npy`."""
    folder, _, rest = name.partition("/")
    (found,) = CASES.glob(f"{folder}_*")
    return found / rest
