"""Frame arithmetic: the attention window, snapping, pixel and latent frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sanawm.errors import UsageError
from sanawm.shapes import (
    BlockSpan,
    LatentShape,
    VAERatios,
    Window,
    check_fps,
    check_window,
    snap_frames,
)

#: The machine may be busy: no example is too slow.
relaxed = settings(deadline=None)
WINDOWS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "cases" / "C23_kv_window" / "windows.json").read_text()
)
LTX2 = VAERatios(time=8, space=32)

windows = st.builds(
    lambda sink, block, more: Window(sink, block, sink + more),
    st.integers(0, 4),
    st.integers(1, 6),
    st.integers(1, 14),
)


@pytest.mark.parametrize("name", list(WINDOWS))
def test_window_of_the_published_table(name: str) -> None:
    spec = WINDOWS[name]
    window = Window(spec["sink"], spec["block"], spec["kv_max_frames"])
    spans = list(window.blocks(spec["latent_frames"]))
    assert len(spans) == len(spec["blocks"])
    for span, row in zip(spans, spec["blocks"], strict=True):
        history, sink = window.history_at(span.start), window.sink_position_at(span.start)
        assert span.number == row["block"]
        assert list(range(span.start, span.stop)) == row["active"]
        assert list(range(span.start - history, span.start)) == row["history"]
        assert list(range(sink, sink + window.sink)) == row["sink_rope_positions"]
        assert window.sink + history + span.frames == row["frames_attended"]


@relaxed
@given(windows, st.integers(1, 80))
@example(Window(1, 3, 11), 31)
def test_window_against_a_simulation(window: Window, frames: int) -> None:
    history: list[int] = []
    at = window.sink
    for span in window.blocks(frames):
        assert span.start == at
        assert 1 <= span.frames <= window.block
        assert window.history_at(at) == len(history)
        if window.sink:  # the sink stands right in front of the oldest frame that is seen
            oldest = history[0] if history else span.start
            assert window.sink_position_at(at) == oldest - window.sink
        assert window.sink_position_at(at) >= 0
        history = [*history, *range(span.start, span.stop)][-(window.kv_max - window.sink) :]
        at = span.stop
    assert at == max(frames, window.sink)


@relaxed
@given(windows)
def test_possible_windows_pass_and_tight_ones_warn(window: Window) -> None:
    warning = check_window(window)
    assert (warning is not None) == (window.kv_max < window.sink + window.block)
    if warning is not None:
        assert "flicker at block borders" in warning
        assert f"sink + block = {window.sink + window.block}" in warning


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (Window(-1, 3, 11), "sink size -1 is negative"),
        (Window(1, 0, 11), "block size 0 is below 1"),
        (Window(1, -3, 11), "block size -3 is below 1"),
        (Window(1, 3, 1), r"window of 1 .* larger than the sink \(1\)"),
        (Window(2, 3, 0), "window of 0 .* holds no history"),
        (Window(0, 3, 0), "window of 0 .* holds no history"),
    ],
)
def test_impossible_windows(window: Window, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check_window(window)
    assert isinstance(caught.value, ValueError)
    assert caught.value.fix


def test_released_window_has_no_warning() -> None:
    assert check_window(Window(1, 3, 11)) is None
    assert check_window(Window(1, 3, 2)) is not None


#: The public table: asked, poses, at stride 24, at stride 8 (C06).
SNAPPED = [
    (241, 50, 49, 49), (241, 1, 1, 1), (241, 242, 241, 241), (100, 242, 97, 97),
    (240, 242, 241, 241), (13, 242, 25, 17), (37, 242, 49, 41), (36, 242, 25, 33),
    (25, 242, 25, 25), (0, 242, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "poses", "at24", "at8"), SNAPPED)
def test_snapping_of_the_public_table(asked: int, poses: int, at24: int, at8: int) -> None:
    frames = min(asked, poses)
    assert snap_frames(frames, 24, poses) == at24
    assert snap_frames(frames, 8, poses) == at8


@relaxed
@given(st.integers(1, 3000), st.integers(1, 64), st.integers(0, 200))
def test_snapping_takes_the_nearest(frames: int, stride: int, spare: int) -> None:
    upper = frames + spare
    found = snap_frames(frames, stride, upper)
    valid = [n for n in range(1, frames + 2 * stride + 1, stride) if n <= upper]
    nearest = min(valid, key=lambda n: (abs(n - frames), -n))  # ties go up
    assert found == nearest
    assert snap_frames(found, stride, upper) == found
    assert snap_frames(frames, stride) in (found, found + stride)


@relaxed
@given(st.integers(1, 500))
def test_pixel_and_latent_frames_are_inverse(latent: int) -> None:
    frames = LTX2.frames_of(latent)
    assert frames == 8 * latent - 7
    assert LTX2.latent_frames_of(frames) == latent


@relaxed
@given(st.integers(-20, 2000), st.integers(2, 16))
def test_other_frame_counts_are_refused_with_the_neighbours(frames: int, time: int) -> None:
    ratios = VAERatios(time, 32)
    if frames >= 1 and frames % time == 1:
        assert ratios.frames_of(ratios.latent_frames_of(frames)) == frames
        return
    with pytest.raises(UsageError, match=rf"{frames} frames .* {time}\*k \+ 1") as caught:
        ratios.latent_frames_of(frames)
    words = (caught.value.fix or "").split()
    below, above = int(words[1]), int(words[3])
    assert below % time == above % time == 1
    assert 1 <= below == above - time
    assert below < max(frames, 2) < above + 1


def test_named_numbers() -> None:
    assert LTX2.frames_of(31) == 241
    assert LatentShape(1, 128, 31, 22, 40).tokens_per_frame == 880
    assert BlockSpan(2, 7, 10).frames == 3
    assert Window(1, 3, 11).history_max == 10
    # Nothing to refine.
    assert list(Window(2, 3, 11).blocks(2)) == []


@pytest.mark.parametrize("fps", [0, -1.0, float("nan"), float("inf")])
def test_frame_rates_that_are_none(fps: float) -> None:
    with pytest.raises(UsageError, match="is not a positive number"):
        check_fps(fps)


@pytest.mark.parametrize("fps", [16, 29.97, 0.5])
def test_frame_rates(fps: float) -> None:
    assert check_fps(fps) is None
