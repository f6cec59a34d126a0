"""Draw a comparison: error, similarity and movement over the frames, block borders marked.

matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .compare import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

A_COLOUR, B_COLOUR, ERROR_COLOUR, BORDER_COLOUR = "#1b6ca8", "#d95f02", "#444444", "#f2b134"


def plot_comparison(comparison: Comparison, path: Path) -> Path:
    """Draw the comparison into a PNG file and return its path."""
    import warnings

    from matplotlib.figure import Figure

    rows = comparison.frames
    frames = [r.frame for r in rows]
    figure = Figure(figsize=(11, 7.6), dpi=100, layout="constrained")
    error, similarity, movement = figure.subplots(3, 1, sharex=True)
    unit = "levels of 255" if comparison.a.kind == "pictures" else "latent units"
    _lines(error, frames, [r.max_error for r in rows], "largest", ERROR_COLOUR, dashed=True)
    _lines(error, frames, [r.mean_error for r in rows], "mean", ERROR_COLOUR)
    error.set_ylabel(f"absolute error\n({unit})")
    _lines(similarity, frames, [r.ssim for r in rows], "SSIM", ERROR_COLOUR)
    similarity.set_ylabel("SSIM (1: equal)")
    known = [r.ssim for r in rows if not math.isnan(r.ssim)]
    lowest = min([0.95, *known])
    similarity.set_ylim(lowest - 0.005, 1 + 0.04 * (1 - lowest))
    _lines(movement, frames, [r.step_a for r in rows], "A", A_COLOUR)
    _lines(movement, frames, [r.step_b for r in rows], "B", B_COLOUR, dashed=True)
    movement.set_ylabel(f"mean change from the\nframe before ({unit})")
    movement.set_xlabel("frame" + ("" if comparison.plan is None else " (yellow: a block begins)"))
    for axes in (error, similarity, movement):
        _mark_blocks(axes, comparison)
        axes.grid(alpha=0.25)
        axes.legend(loc="upper right", fontsize=8)
    error.set_ylim(0, 1.25 * max(comparison.clip.max_error, 1e-6))
    steps = [s for r in rows[1:] for s in (r.step_a, r.step_b)]
    movement.set_ylim(0, 1.25 * max([1e-6, *steps]))
    figure.suptitle(_title(comparison), fontsize=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters of file names that the font does not have
        figure.savefig(path, format="png")
    return path


def _lines(
    axes: Axes,
    frames: Sequence[int],
    values: Sequence[float],
    label: str,
    colour: str,
    *,
    dashed: bool = False,
) -> None:
    style = "--" if dashed else "-"
    marker = "o" if len(frames) == 1 else None
    axes.plot(frames, values, style, color=colour, label=label, linewidth=1.2, marker=marker)


def _mark_blocks(axes: Axes, comparison: Comparison) -> None:
    if comparison.plan is None:
        return
    for row in comparison.frames:
        if comparison.plan.starts(row.frame):
            axes.axvline(row.frame - 0.5, color=BORDER_COLOUR, linewidth=1, zorder=0)


def _title(comparison: Comparison) -> str:
    clip = comparison.clip
    flicker = (comparison.flicker_a, comparison.flicker_b)
    text = (
        f"largest error {clip.max_error:.4g}, mean {clip.mean_error:.4g}, PSNR {clip.psnr:.2f} dB"
    )
    if comparison.equal:
        text = "equal, bit for bit"
    if flicker[0] is not None and flicker[1] is not None:
        text += f"; boundary flicker A {flicker[0].ratio:.2f}, B {flicker[1].ratio:.2f}"
    return f"A {comparison.a.path.name}   B {comparison.b.path.name}\n{text}"
