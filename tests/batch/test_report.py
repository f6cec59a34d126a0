"""The report of a batch grows, is whole under its name, and belongs to one batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from sanawm.batch.jobs import Outcome
from sanawm.batch.reading import tried_before
from sanawm.batch.report import BatchReport
from sanawm.errors import OutputBusy, OutputError, UsageError
from sanawm.notes import Notes

from .manifests import rows_of

KEYS = {
    "id", "line", "status", "seconds", "output", "report", "error_code", "error", "error_type",
    "frames", "video_seconds", "shared_with", "resumed_after_blocks", "recipe_sha256", "changes",
    "warnings", "worker",
}  # fmt: skip


def test_rows_are_there_at_once_and_the_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("of an earlier batch\n")
    with BatchReport(path, notes=Notes()) as report:
        report.add(Outcome("a", 1, "done"))
        report.add(Outcome("b\ud800", 2, "failed", error="line\nbreak", traceback="t"))
        assert len(rows_of(report.part_path)) == 2
        assert path.read_text() == "of an earlier batch\n"
        report.close()
    first, second = rows_of(path)
    assert set(first) == KEYS
    assert set(second) == KEYS | {"traceback"}
    assert second["error"] == "line\nbreak"
    assert not report.part_path.exists()


def test_the_part_stays_when_something_goes_wrong(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    report = BatchReport(path, notes=Notes())
    report.add(Outcome("a", 1, "done"))
    with pytest.raises(RuntimeError), report:
        raise RuntimeError
    assert not path.exists()
    assert len(rows_of(report.part_path)) == 1


def test_two_batches_do_not_share_a_report(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    report = BatchReport(path, notes=Notes())
    with pytest.raises(OutputBusy, match="being written by another run"):
        BatchReport(path, notes=Notes())
    report.close()
    BatchReport(path, notes=Notes()).close()


def test_the_name_and_folder_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected \.jsonl"):
        BatchReport(tmp_path / "r.json", notes=Notes())
    with pytest.raises(OutputError, match="does not exist"):
        BatchReport(tmp_path / "no" / "r.jsonl", notes=Notes())


def test_jobs_that_were_begun_are_known_from_an_earlier_report(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert tried_before(path) == frozenset()
    with BatchReport(path, notes=Notes()) as report:
        report.add(Outcome("bad line", 1, "failed"))
        report.add(Outcome("failed", 2, "failed", worker="w"))
        report.add(Outcome("stopped", 3, "interrupted", worker="w"))
        report.add(Outcome("done", 4, "done", worker="w"))
        report.close()
    with path.open("a") as f:
        f.write('{"torn')
    assert tried_before(path) == {"failed", "stopped"}
