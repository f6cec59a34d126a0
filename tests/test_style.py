"""Sizes that the design sets: no file over 400 lines, no function over 60."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "sanawm").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT)))
def test_files_and_functions_stay_small(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 60, f"{node.name} has {lines} lines"


FORBIDDEN_NAMES = ("utils", "helpers", "common", "misc")


def test_no_file_is_named_after_nothing() -> None:
    assert [f for f in SOURCES if f.stem in FORBIDDEN_NAMES] == []
