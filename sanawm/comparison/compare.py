"""One pass over two clips: errors, similarity and steps of every frame.

Clips of different sizes are refused. Of clips of different lengths the common first frames are
compared, with a line that says so; they are not equal, and no threshold is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sanawm.errors import InputError
from sanawm.notes import Notes

from .clips import Clip, Frame, check_pair, open_clip
from .rows import (
    BlockPlan,
    BlockRow,
    Flicker,
    FrameRow,
    Summary,
    block_rows,
    finite,
    flicker_of,
    summarise,
)
from .similarity import luma, ssim

#: B's frame counts as shifted when another frame of A is nearer by this factor.
SHIFT_FACTOR = 0.5
#: A clip has seams when its steps across block borders are larger than those inside by the first
#: factor, or its flicker is larger than that of the other clip by the second.
SEAM_FACTOR, MORE_FACTOR = 1.5, 1.2
#: Largest value of a picture.
PICTURE_PEAK = 255.0

#: Sees every pair of frames as it is read: `(frame number, A's frame, B's frame)`.
Watcher = Callable[[int, Frame, Frame], None]


@dataclass(frozen=True)
class Worst:
    """Where the largest error is: frame, and the index in the frame (row, column, channel)."""

    frame: int
    place: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """How two clips differ. `peak` is the range that PSNR and SSIM refer to.

    `equal` is bit identity: same length, dtype and bits. `blocks`, `flicker_a` and `flicker_b` are
    empty without a block size.
    """

    a: Clip
    b: Clip
    equal: bool
    peak: float
    frames: list[FrameRow]
    clip: Summary
    differing: int
    worst: Worst | None
    plan: BlockPlan | None
    blocks: list[BlockRow]
    flicker_a: Flicker | None
    flicker_b: Flicker | None

    @property
    def same_length(self) -> bool:
        """Whether every frame of both clips was compared."""
        return self.a.count == self.b.count == len(self.frames)

    @property
    def shifts(self) -> dict[int, list[int]]:
        """Frames of B that are nearer to A's frame before (-1) or after (+1)."""
        return {s: [r.frame for r in self.frames if r.shift == s] for s in (-1, 1)}

    def seams(self) -> list[str]:
        """Return the clips (A, B) that jump at block borders, much or more than the other one."""
        if self.flicker_a is None or self.flicker_b is None:
            return []
        a, b = self.flicker_a.ratio, self.flicker_b.ratio
        return [
            name
            for name, mine, other in (("A", a, b), ("B", b, a))
            if mine > SEAM_FACTOR or mine > MORE_FACTOR * other
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "a": str(self.a.path),
            "b": str(self.b.path),
            "kind": self.a.kind,
            "frames": {"a": self.a.count, "b": self.b.count, "compared": len(self.frames)},
            "equal": self.equal,
            "differing_frames": self.differing,
            "first_difference": next((r.frame for r in self.frames if r.max_error > 0), None),
            "worst": None if self.worst is None else vars(self.worst),
            **{k: v for k, v in self.clip.as_dict().items() if k != "frames"},
            "peak": self.peak,
            "worst_psnr_frame": self._extreme("mean_square"),
            "shifted": {"before": self.shifts[-1], "after": self.shifts[1]},
            "block_frames": None if self.plan is None else list(self.plan),
            "flicker": {
                "a": None if self.flicker_a is None else self.flicker_a.as_dict(),
                "b": None if self.flicker_b is None else self.flicker_b.as_dict(),
            },
            "seams": self.seams(),
            "blocks": [row.as_dict() for row in self.blocks],
        }

    def _extreme(self, name: str) -> dict[str, Any] | None:
        worst = max(self.frames, key=lambda r: r.mean_square)
        if worst.mean_square == 0:
            return None
        found = summarise([worst], peak=self.peak)
        return {"frame": worst.frame, "psnr": finite(found.psnr), "ssim": finite(found.ssim)}


def compare_paths(
    a: Path,
    b: Path,
    *,
    block_frames: int | None = None,
    watchers: Sequence[Callable[[Clip, Clip], Watcher]] = (),
    notes: Notes | None = None,
) -> Comparison:
    """Compare two clips frame by frame.

    block_frames: frames a block; without it the metadata of A, else of B, tell. watchers: called
    once both clips are open, they return what sees every pair of frames. Raises `InputError` for
    clips of different kinds or sizes.
    """
    notes = notes or Notes()
    first, second = open_clip(a, notes=notes), open_clip(b, notes=notes)
    check_pair(first, second)
    _note_differences(first, second, notes)
    seen = [watcher(first, second) for watcher in watchers]
    peak = PICTURE_PEAK if first.kind == "pictures" else _range_of(first)
    measure = _Measure(peak=peak, pictures=first.kind == "pictures")
    for number, (x, y) in enumerate(zip(first.frames(), second.frames(), strict=False)):
        measure.add(number, x, y)
        for watch in seen:
            watch(number, x, y)
    rows = measure.finish()
    if not rows:
        raise InputError(f"{a} and {b}: no frames to compare")
    return _result(first, second, measure, rows, _plan_of(first, second, block_frames, notes))


def _result(
    a: Clip, b: Clip, measure: _Measure, rows: list[FrameRow], plan: BlockPlan | None
) -> Comparison:
    same = a.dtype == b.dtype and a.count == b.count == len(rows)
    return Comparison(
        a,
        b,
        same and measure.identical,
        measure.peak,
        rows,
        summarise(rows, peak=measure.peak),
        measure.differing,
        measure.worst,
        plan,
        [] if plan is None else block_rows(rows, plan, peak=measure.peak),
        None if plan is None else flicker_of(rows, plan, clip="a"),
        None if plan is None else flicker_of(rows, plan, clip="b"),
    )


def _note_differences(a: Clip, b: Clip, notes: Notes) -> None:
    if a.count != b.count:
        notes.change(
            f"{a.path} has {a.count} frames, {b.path} has {b.count}: the first "
            f"{min(a.count, b.count)} are compared"
        )
    if a.fps and b.fps and a.fps != b.fps:
        notes.info(f"the frame rates differ: {a.fps} and {b.fps}; frames are compared by number")
    if a.dtype != b.dtype:
        notes.info(f"the dtypes differ: {a.dtype} and {b.dtype}; values are compared in float64")


def _plan_of(a: Clip, b: Clip, asked: int | None, notes: Notes) -> BlockPlan | None:
    """Return the blocks: as asked, else as A's or B's metadata tell."""
    if asked is not None:
        return BlockPlan.of_size(asked, a.count)
    if a.plan is not None and b.plan is not None and a.plan != b.plan:
        notes.info(f"the clips were made in other blocks; those of {a.path} are used")
    plan = a.plan or b.plan
    if plan is None:
        notes.info("the files tell no block size: --block-frames N adds figures for each block")
    return plan


def _range_of(clip: Clip) -> float:
    """Return the largest minus the smallest value of a clip, in a pass of its own."""
    low, high = np.inf, -np.inf
    for frame in clip.frames():
        low, high = min(low, float(frame.min())), max(high, float(frame.max()))
    return float(high - low)


class _Measure:
    """Collect a row a frame; only the frame before is remembered."""

    def __init__(self, *, peak: float, pictures: bool) -> None:
        self.peak, self._pictures = peak, pictures
        self.identical, self.differing = True, 0
        self.worst: Worst | None = None
        self._largest = 0.0
        self._rows: list[FrameRow] = []
        self._before: tuple[Frame, Frame] | None = None

    def add(self, number: int, a: Frame, b: Frame) -> None:
        """Measure a pair of frames."""
        same = a.dtype == b.dtype and a.tobytes() == b.tobytes()
        self.identical &= same
        error = np.abs(a.astype(np.float64) - b) if not same else np.zeros(1)
        largest = float(error.max())
        self.differing += not same
        if largest > self._largest:
            place = np.unravel_index(int(error.argmax()), error.shape)
            self._largest, self.worst = largest, Worst(number, tuple(int(i) for i in place))
        mean = float(error.mean())
        late, steps = self._look_back(a, b, mean)
        similarity = 1.0 if same else self._ssim(a, b)
        square = float(np.square(error).mean())
        shift = -1 if late < SHIFT_FACTOR * mean else 0
        self._rows.append(FrameRow(number, largest, mean, square, similarity, *steps, shift))
        self._before = (a, b)

    def finish(self) -> list[FrameRow]:
        """Return the rows."""
        return self._rows

    def _look_back(self, a: Frame, b: Frame, mean: float) -> tuple[float, tuple[float, float]]:
        """Return how far B's frame is from A's frame before, and both clips' steps.

        B's frame before may turn out to be early: nearest to this frame of A.
        """
        if self._before is None:
            return np.inf, (np.nan, np.nan)
        a_before, b_before = self._before
        last = self._rows[-1]
        if last.mean_error > 0:
            early = _distance(a, b_before)
            if early < SHIFT_FACTOR * last.mean_error and not last.shift:
                self._rows[-1] = last._replace(shift=1)
        late = _distance(a_before, b) if mean > 0 else np.inf
        return late, (_distance(a, a_before), _distance(b, b_before))

    def _ssim(self, a: Frame, b: Frame) -> float:
        if self._pictures:
            return ssim(luma(a), luma(b), peak=self.peak)
        return ssim(a, b, peak=self.peak)


def _distance(a: Frame, b: Frame) -> float:
    """Return the mean absolute difference of two frames."""
    return float(np.abs(a.astype(np.float32) - b.astype(np.float32)).mean(dtype=np.float64))
