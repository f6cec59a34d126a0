"""Shards cover every job exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.batch.report import report_path
from sanawm.batch.shard import WHOLE, Shard
from sanawm.errors import UsageError
from tests.cli.command import sanawm

from .manifests import batch, rows_of, write_lines


@settings(deadline=None)
@given(jobs=st.integers(0, 500), count=st.integers(1, 60))
def test_every_job_is_in_exactly_one_shard(jobs: int, count: int) -> None:
    shards = [Shard.parse(f"{i}/{count}") for i in range(1, count + 1)]
    for position in range(jobs):
        assert sum(shard.holds(position) for shard in shards) == 1
    sizes = [sum(shard.holds(p) for p in range(jobs)) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=12)
@given(ids=st.lists(st.text(st.characters(categories=("L", "Nd")), min_size=1), max_size=40))
def test_seven_shards_of_a_manifest_hold_every_line_once(ids: list[str], tmp: Path) -> None:
    manifest = write_lines(tmp / "jobs.jsonl", [*({"id": i, "seed": -1} for i in ids), "{"])
    rows = []
    for index in range(1, 8):
        folder = tmp / "out"
        assert batch(manifest, folder, "--shard", f"{index}/7").code in (0, 1)
        rows += rows_of(folder / f"report-{index}-of-7.jsonl")
    assert sorted(row["line"] for row in rows) == list(range(1, len(ids) + 2))


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


def test_shards_do_not_share_a_report(tmp_path: Path) -> None:
    names = {report_path(tmp_path, Shard(i, 7)) for i in range(1, 8)}
    assert len(names | {report_path(tmp_path, WHOLE)}) == 8


@pytest.mark.parametrize(
    "text", ["0/7", "8/7", "1/0", "0/0", "a/7", "1", "-1/7", "1/7/2", "1 /7", ""]
)
def test_other_shards_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text)


def test_an_index_from_0_gets_told_so(tmp_path: Path) -> None:
    manifest = write_lines(tmp_path / "jobs.jsonl", [{"id": "a"}])
    done = sanawm("batch", manifest, "--output-dir", tmp_path, "--shard", "0/7")
    assert done.code == 2
    assert "shards are counted from 1, expected 1/7 to 7/7" in done.error
    assert "add 1 to an array index that starts at 0" in done.error
