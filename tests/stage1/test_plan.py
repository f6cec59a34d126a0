"""Chunk spans, windows and step lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanawm.errors import UsageError
from sanawm.stage1.plan import (
    RELEASED_STEPS,
    ChunkWindow,
    check_chunk_window,
    check_steps,
    plan_chunks,
)

from . import cases


@given(st.integers(1, 6), st.integers(1, 200))
def test_chunks_cover_the_clip(chunk: int, extra: int) -> None:
    frames = chunk + extra
    spans = plan_chunks(frames, chunk)
    assert [t for s in spans for t in range(s.start, s.stop)] == list(range(frames))
    assert [s.number for s in spans] == list(range(frames // chunk))
    assert spans[0].frames == chunk + frames % chunk
    assert all(s.frames == chunk for s in spans[1:])


@pytest.mark.parametrize("name", cases.CASES)
def test_chunks_of_the_golden_runs(name: str) -> None:
    run = cases.case(name)
    spans = plan_chunks(run.shape.frames, 3)
    assert [0, *(s.stop for s in spans)] == list(run.segments)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_clip_of_one_chunk_is_refused(frames: int) -> None:
    with pytest.raises(UsageError, match=f"a clip of {frames} latent frames.*at least 4"):
        plan_chunks(frames, 3)


@given(st.integers(-2, 6), st.booleans(), st.integers(0, 40))
def test_what_is_kept_is_what_is_needed(cached: int, sink: bool, chunk: int) -> None:
    window = ChunkWindow(cached, sink)
    seen = window.seen_by(chunk)
    assert seen == sorted(set(seen))
    assert all(0 <= c < chunk for c in seen)
    if cached > 0:
        assert len(seen) == min(cached, chunk)
    available = {c for c in [*window.seen_by(chunk), chunk]}
    assert set(window.kept_after(chunk)) <= available
    if chunk and (cached != 1 or not sink):
        assert chunk - 1 in seen


def test_window_of_one_with_a_sink_is_refused() -> None:
    with pytest.raises(UsageError, match="no room for the previous chunk"):
        check_chunk_window(ChunkWindow(1, sink=True))
    assert check_chunk_window(ChunkWindow(1, sink=False)) is None
    assert check_chunk_window(ChunkWindow(2, sink=True)) is None
    warning = check_chunk_window(ChunkWindow(-1, sink=True))
    assert warning is not None
    assert "grows with the clip" in warning


@pytest.mark.parametrize(
    "steps",
    [(), (1000,), (0,), (1000, 500), (0, 1000), (500, 500, 0), (1200, 0), (float("nan"), 0)],
)
def test_step_lists_that_cannot_be_walked(steps: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="denoising step list"):
        check_steps(steps)


def test_step_lists_that_can() -> None:
    assert check_steps([1000, 960, 889, 727, 0]) == RELEASED_STEPS
    assert check_steps([87.7, 0]) == (87.7, 0.0)
