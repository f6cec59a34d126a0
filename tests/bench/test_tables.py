"""The file of tables: one section a bench, and a bench that runs again replaces only its own."""

from __future__ import annotations

from pathlib import Path

from .__main__ import benches
from .tables import SPEED, table, write_section


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "BENCHMARKS.md"
    write_section("vae", table(("a", "b"), [("1", "2")]), file=file)
    write_section("refiner", "plain text", file=file)
    write_section("vae", table(("a", "b"), [("3", "4")]), file=file)
    text = file.read_text(encoding="utf-8")
    assert text.count("## vae") == text.count("## refiner") == 1
    assert "| 3 | 4 |" in text
    assert "| 1 | 2 |" not in text
    assert "```\nplain text\n```" in text
    assert "| processor |" in text


def test_every_bench_of_the_default_exists() -> None:
    assert set(SPEED) <= set(benches())
