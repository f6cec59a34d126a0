"""What was measured: a row a frame, a row a block, and the jumps at block borders."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple, Self

from .similarity import psnr


class BlockPlan(NamedTuple):
    """Where blocks begin: the first has `first` frames, the others `size` each."""

    first: int
    size: int

    @classmethod
    def parse(cls, value: object) -> Self | None:
        """Read the plan from a file's metadata, `[13, 12]` or its text; None when it has none."""
        try:
            pair = json.loads(value) if isinstance(value, str) else value
            first, size = pair  # type: ignore[misc]
            plan = cls(int(first), int(size))
        except (TypeError, ValueError, RecursionError):
            return None
        return plan if min(plan) > 0 else None

    @classmethod
    def of_size(cls, size: int, frames: int) -> Self:
        """Return the plan of a clip of `frames`: one frame left over belongs to the first block.

        It is the sink picture: such a clip has `size * k + 1` frames.
        """
        return cls(size + (frames % size == 1 and frames > 1), size)

    def block_of(self, frame: int) -> int:
        """Return the block that a frame belongs to."""
        return 0 if frame < self.first else 1 + (frame - self.first) // self.size

    def starts(self, frame: int) -> bool:
        """Tell whether a block begins at `frame`, with another one before it."""
        return frame >= self.first and (frame - self.first) % self.size == 0


class FrameRow(NamedTuple):
    """Difference of one frame: errors in the units of the clip, SSIM, how both clips moved.

    `step_a` and `step_b` are the mean absolute differences to the frame before, NaN in frame 0;
    `shift` is -1 or +1 when B's frame is much nearer to A's frame before or after.
    """

    frame: int
    max_error: float
    mean_error: float
    mean_square: float
    ssim: float
    step_a: float
    step_b: float
    shift: int


class Summary(NamedTuple):
    """Difference of some frames: the largest and the mean error, PSNR and mean SSIM."""

    frames: int
    max_error: float
    mean_error: float
    psnr: float
    ssim: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON: an infinite PSNR (no error) and a missing SSIM are null."""
        return {k: finite(v) for k, v in self._asdict().items()}


class BlockRow(NamedTuple):
    """One block: its frames `first .. last`, the difference, and the jump at its start.

    `jump_a` and `jump_b` are the steps into its first frame over the median step inside blocks; NaN
    for block 0.
    """

    block: int
    first: int
    last: int
    summary: Summary
    jump_a: float
    jump_b: float

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        head = {"block": self.block, "first": self.first, "last": self.last}
        jumps = {"jump_a": finite(self.jump_a), "jump_b": finite(self.jump_b)}
        return {**head, **self.summary.as_dict(), **jumps}


class Flicker(NamedTuple):
    """Steps across block borders against those inside blocks, of one clip.

    `border` is the mean step across borders, `inside` the median step inside, `ratio` their
    quotient: about 1 without seams, 1 for a still clip.
    """

    border: float
    inside: float

    @property
    def ratio(self) -> float:
        """Border steps in units of the steps inside blocks; NaN without a border."""
        return _ratio(self.border, self.inside)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {k: finite(v) for k, v in (*self._asdict().items(), ("ratio", self.ratio))}


def summarise(rows: Sequence[FrameRow], *, peak: float) -> Summary:
    """Return the figures of some frames together."""
    square = fmean(r.mean_square for r in rows)
    return Summary(
        len(rows),
        max(r.max_error for r in rows),
        fmean(r.mean_error for r in rows),
        psnr(square, peak=peak),
        fmean(r.ssim for r in rows),
    )


def flicker_of(rows: Sequence[FrameRow], plan: BlockPlan, *, clip: str) -> Flicker:
    """Return the flicker of clip `a` or `b`."""
    steps = [(r.frame, r.step_a if clip == "a" else r.step_b) for r in rows[1:]]
    border = [s for frame, s in steps if plan.starts(frame)]
    inside = [s for frame, s in steps if not plan.starts(frame)]
    return Flicker(fmean(border) if border else math.nan, median(inside) if inside else math.nan)


def block_rows(rows: Sequence[FrameRow], plan: BlockPlan, *, peak: float) -> list[BlockRow]:
    """Return a row a block."""
    blocks: dict[int, list[FrameRow]] = {}
    for row in rows:
        blocks.setdefault(plan.block_of(row.frame), []).append(row)
    inside_a = flicker_of(rows, plan, clip="a").inside
    inside_b = flicker_of(rows, plan, clip="b").inside
    return [
        BlockRow(
            number,
            part[0].frame,
            part[-1].frame,
            summarise(part, peak=peak),
            _ratio(part[0].step_a, inside_a),
            _ratio(part[0].step_b, inside_b),
        )
        for number, part in blocks.items()
    ]


def _ratio(step: float, inside: float) -> float:
    if math.isnan(step) or math.isnan(inside):
        return math.nan
    if inside == 0:
        return 1.0 if step == 0 else math.inf
    return step / inside


def finite(value: float) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
