"""`sanawm compare`: two videos or two latents files, block by block."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanawm.errors import SanawmError, UsageError
from sanawm.paths import check_path

from .console import Console

if TYPE_CHECKING:
    from sanawm.comparison import BlockRow, Comparison

#: A limit of each kind that people use: dB, SSIM, levels of 255.
EXAMPLES = {"psnr_min": 30, "ssim_min": 0.9, "atol": 1}
THRESHOLDS = ("psnr_min", "ssim_min", "atol")


def run(values: dict[str, Any], console: Console) -> None:
    """Compare, print the report, and raise `SanawmError` (exit 1) outside a threshold."""
    from sanawm.comparison import compare_paths
    from sanawm.io.files import atomic_write, check_output

    for name in THRESHOLDS:
        if values.get(name) is not None and math.isnan(values[name]):
            flag = name.replace("_", "-")
            example = EXAMPLES[name]
            raise UsageError(f"--{flag} nan: expected a number", fix=f"use --{flag} {example}, say")
    for name in ("a", "b"):
        check_path(values[name], where="compare")
    a, b = Path(values["a"]), Path(values["b"])
    overwrite = bool(values.get("overwrite"))
    plot, beside = (_path(values.get(name)) for name in ("plot", "side_by_side"))
    if overwrite and plot is None and beside is None:
        raise UsageError("--overwrite belongs to --plot and --side-by-side", fix="leave it out")
    for target, ending in ((plot, ".png"), (beside, ".mp4")):
        if target is not None:
            check_output(target, overwrite=overwrite, inputs=(a, b), suffixes=(ending,))
    with ExitStack() as stack:
        pair = None
        if beside is not None:
            from sanawm.comparison.side_by_side import SideBySide

            pair = SideBySide(beside, overwrite=overwrite, notes=console.notes)
            stack.enter_context(pair)
        found = compare_paths(
            a,
            b,
            block_frames=values.get("block_frames"),
            watchers=() if pair is None else (pair.open,),
            notes=console.notes,
        )
        if pair is not None:
            pair.close()
    if plot is not None:
        from sanawm.comparison.plot import plot_comparison

        with atomic_write(plot) as part:
            plot_comparison(found, part)
    failed = _outside(found, values)
    made = [str(p) for p in (plot, beside) if p is not None]
    _print(found, failed, made, values, console)
    if failed:
        raise SanawmError(f"{b} against {a}: {'; '.join(failed)}")


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _outside(found: Comparison, values: dict[str, Any]) -> list[str]:
    """Return a text for every threshold that is not met."""
    psnr_min, ssim_min, atol = (values.get(name) for name in THRESHOLDS)
    if psnr_min is ssim_min is atol is None:
        return []
    failed = []
    clip = found.clip
    if not found.same_length:
        failed.append(f"{found.a.count} and {found.b.count} frames: no threshold is met")
    if psnr_min is not None and not clip.psnr >= psnr_min:
        failed.append(f"PSNR {clip.psnr:.2f} dB is below {psnr_min:g}")
    if ssim_min is not None and not clip.ssim >= ssim_min:
        failed.append(f"SSIM {clip.ssim:.5f} is below {ssim_min:g}")
    if atol is not None and not clip.max_error <= atol:
        failed.append(f"an error of {clip.max_error:.6g} is above {atol:g}")
    return failed


def _print(
    found: Comparison, failed: list[str], made: list[str], values: dict[str, Any], console: Console
) -> None:
    data = {
        "schema": 1,
        "status": "failed" if failed else "done",
        **found.as_dict(),
        "failed": failed,
        "outputs": made,
        "changes": console.notes.changes,
        "warnings": console.notes.warnings,
    }
    lines = [f"A  {found.a.line}", f"B  {found.b.line}", *_clip_lines(found)]
    lines += [_block_line(row) for row in found.blocks]
    lines += [f"written  {name}" for name in made]
    console.result(json.dumps(data, indent=2) if values.get("json") else "\n".join(lines), data)


def _clip_lines(found: Comparison) -> list[str]:
    """Return what is said about the whole clip, and the head of the table."""
    lines = [_verdict(found)]
    clip = found.clip
    if clip.max_error > 0:
        assert found.worst is not None
        unit = " of 255" if found.a.kind == "pictures" else ""
        lines.append(
            f"largest error {clip.max_error:.6g}{unit} ({_place(found)}), mean "
            f"{clip.mean_error:.4g}"
        )
        worst = found.as_dict()["worst_psnr_frame"]
        at = f" (worst: frame {worst['frame']}, {_number(worst['psnr'], '.2f')} dB)"
        lines.append(f"PSNR {clip.psnr:.2f} dB{at}   SSIM {clip.ssim:.5f}")
    before, after = found.shifts[-1], found.shifts[1]
    if before:
        lines.append(f"late: {_frames(before)} of B show what A shows a frame earlier")
    if after:
        lines.append(f"early: {_frames(after)} of B show what A shows a frame later")
    if found.flicker_a is not None and found.flicker_b is not None:
        flicker = f"A {_ratio(found.flicker_a.ratio)}, B {_ratio(found.flicker_b.ratio)}"
        seams = found.seams()
        jump = "jump" if len(seams) > 1 else "jumps"
        note = f": {' and '.join(seams)} {jump} at block borders" if seams else ""
        lines.append(f"boundary flicker (change at borders / inside blocks) {flicker}{note}")
        if seams:
            lines.append(f"  {_about_seams(found, seams)}")
    if found.blocks:
        lines.append("block      frames   largest      mean      PSNR      SSIM   jump A   jump B")
    return lines


def _about_seams(found: Comparison, seams: list[str]) -> str:
    """Return what jumps at block borders mean."""
    from sanawm.comparison.compare import MORE_FACTOR

    assert found.flicker_a is not None
    assert found.flicker_b is not None
    less, more = sorted((found.flicker_a.ratio, found.flicker_b.ratio))
    if len(seams) > 1 and more <= MORE_FACTOR * less:
        return (
            "no failure (1 is even): A and B have it alike, from what made both: the model's "
            "blocks, or a camera that turns there"
        )
    worse = "A" if found.flicker_a.ratio == more else "B"
    return (
        f"no failure by itself (1 is even), but {worse} has more of it: look where its blocks "
        f"begin (column jump {worse})"
    )


def _verdict(found: Comparison) -> str:
    count = len(found.frames)
    if found.equal:
        return f"equal: all {count} frames, bit for bit"
    if not found.differing:
        return f"not equal: the {count} frames compared are, bit for bit, but the clips differ"
    if found.clip.max_error == 0:
        return f"not equal: the values of all {count} frames are, their bits or dtypes are not"
    first = next(r.frame for r in found.frames if r.max_error > 0)
    return f"not equal: {found.differing} of {count} frames differ, first frame {first}"


def _place(found: Comparison) -> str:
    worst = found.worst
    assert worst is not None
    if found.a.kind == "pictures":
        row, column, channel = worst.place
        colour = ("red", "green", "blue")[channel]
        return f"frame {worst.frame}, row {row}, column {column}, {colour}"
    channel, row, column = worst.place
    return f"latent frame {worst.frame}, channel {channel}, row {row}, column {column}"


def _block_line(row: BlockRow) -> str:
    found = row.summary
    span = f"{row.first}-{row.last}"
    return (
        f"{row.block:>5} {span:>11} {found.max_error:>9.4g} {found.mean_error:>9.4g} "
        f"{_ratio(found.psnr):>9} {found.ssim:>9.5f} {_ratio(row.jump_a):>8} "
        f"{_ratio(row.jump_b):>8}"
    )


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _frames(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"frame {numbers[0]}"
    return f"{len(numbers)} frames from {numbers[0]} to {numbers[-1]}"
