"""`sanawm bench` on the tiny model: what it reports, and that the figures fit each other."""

from __future__ import annotations

from typing import Any

import pytest

from sanawm import limit

from .command import sanawm

STAGES = ["stage1", "refine", "decode", "encode video"]


@pytest.fixture(scope="module")
def report() -> Any:
    """The report of the shortest measurement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limit, "SPENT", 0.0)
        patch.setattr(limit, "RUNS", 1)
        done = sanawm("bench", "--blocks", 1, "--json", "--set", "refiner.kv_max_frames=4")
    assert done.code == 0, done.err
    return done.json


def test_every_stage_has_its_figures(report: Any) -> None:
    assert [s["stage"] for s in report["stages"]] == STAGES
    for stage in report["stages"]:
        assert stage["seconds_per_block"] > 0
        expected = report["block_video_seconds"] / stage["seconds_per_block"]
        assert stage["realtime_factor"] == pytest.approx(expected)
        assert stage["slowest_over_median"] >= 1
    for stage in report["stages"][:3]:
        assert stage["gflop_per_block"] > 0
        rate = stage["gflop_per_block"] / stage["seconds_per_block"]
        assert stage["gflops"] == pytest.approx(rate)
        assert 0 < stage["share_of_limit"] < 3
    assert report["stages"][3]["share_of_limit"] is None


def test_the_whole_is_the_sum_of_its_stages(report: Any) -> None:
    total = sum(s["seconds_per_block"] for s in report["stages"])
    assert report["seconds_per_block"] == pytest.approx(total)
    assert report["realtime_factor"] == pytest.approx(report["block_video_seconds"] / total)
    assert 0 < report["first_chunk_seconds"] <= report["first_chunk_cold_seconds"]
    assert report["peak_memory_bytes"] > 1e8
    assert report["warm_up_blocks"] == 2  # a sink and one block fill a window of 4 latent frames
    assert report["compile"]["enabled"] is False


def test_sizes_are_checked() -> None:
    for option in ("--blocks", "--repeat"):
        done = sanawm("bench", option, 0)
        assert done.code == 2
        assert option in done.err
    done = sanawm("bench", "--blocks", 1_000_000)
    assert done.code == 2
    assert "--blocks 1000000: a clip of 12" in done.err
    assert "expected at most 1000000" in done.err
