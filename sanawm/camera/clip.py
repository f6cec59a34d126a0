"""From a trajectory to a clip: how many frames, and one pose for each of them.

A clip has `stride * k + 1` frames: stride 24 (8 frames a latent, 3 latents a block) when it is
streamed, 8 when it is not. Without an option a path is never stretched: a longer one gives its
first frames, a shorter one shortens the clip or is an error (`camera.md`, section 3; `cli.md`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from sanawm.errors import InputError, UsageError
from sanawm.notes import Notes, counted
from sanawm.shapes import MAX_FRAMES, snap_frames

from .geometry import Float32, Float64, interpolate_poses
from .motion import warn_about_jumps, warn_about_steps
from .trajectory import Trajectory

Resample = Literal["clip", "time"]
#: Share by which a file's own duration may differ from the clip's before it is worth a line.
TIME_TOLERANCE = 0.03


def plan_frames(
    asked: int,
    *,
    poses: int | None,
    stride: int,
    explicit: bool = True,
    minimum: int | None = None,
    where: str = "",
    set_by: str = "",
    notes: Notes,
) -> int:
    """Return the frames of the clip: `min(asked, poses)` snapped to `stride * k + 1`, ties up.

    `poses` is what the path can give (`poses_available`), None for no bound. `explicit` says that
    the user typed the number; one that a preset (`set_by`) brought may be shortened. `minimum` is
    the fewest frames of a clip, `stride + 1` (one block) without it. `where` names the path's
    source in messages. Every difference is noted.

    Raises `UsageError` for fewer than one frame, for an explicit number whose clip is longer than
    `poses`, and when less than one block is possible.
    """
    least = stride + 1 if minimum is None else minimum
    rule = f"{stride}*k + 1 frames"
    count = "1 pose" if poses == 1 else f"{poses} poses"
    name = f"{where}: " if where else ""
    wish = f"{asked} frames ({set_by})" if set_by and not explicit else f"{asked} frames asked"
    one = f"use --num-frames {least}: a clip has {rule}"
    if asked < 1:
        raise UsageError(f"{wish}, expected at least {least}", fix=one)
    longer = max(least, snap_frames(asked, stride))
    if poses is not None and poses < least:
        raise InputError(
            f"{name}{wish}, but the camera path gives {count}: a clip needs at least "
            f"{least} ({rule}, one pose a frame)",
            fix=f"give {least} poses or more, or add --hold-last or --resample clip, which make "
            f"{longer} frames of this path",
        )
    if explicit and poses is not None and snap_frames(asked, stride) > poses:
        raise UsageError(
            f"{name}{wish}, but the camera path gives {count} (one a frame)",
            fix=f"use --num-frames {snap_frames(poses, stride, poses)} (a clip has {rule}), give "
            f"{longer} poses, or add --hold-last or --resample clip, which make {longer} frames of "
            "this path",
        )
    wanted = asked if poses is None else min(asked, poses)
    used = snap_frames(wanted, stride, poses)
    if used < least:
        raise UsageError(f"{wish}, less than one block: expected at least {least}", fix=one)
    if poses is not None and asked > poses:
        notes.change(
            f"{name}{wish}, the camera path gives {count}: {used} frames are made ({rule})"
        )
    elif used != asked:
        below = asked - (asked - 1) % stride
        notes.change(
            f"{wish}: {used} are made, a clip has {rule} (nearest: {below} and {below + stride})"
        )
    return used


def poses_available(
    trajectory: Trajectory,
    *,
    hold_last: bool = False,
    resample: Resample | None = None,
    fps: float = 16.0,
) -> int | None:
    """Return how many frames the path can give at `fps`, None when there is no bound."""
    if hold_last or resample == "clip":
        return None
    if resample == "time":
        seconds = _seconds(trajectory)
        return math.floor(float(seconds[-1]) * fps + 1e-6) + 1
    return len(trajectory)


def fit_to_clip(
    trajectory: Trajectory,
    frames: int | None,
    *,
    hold_last: bool = False,
    resample: Resample | None = None,
    fps: float = 16.0,
    notes: Notes,
) -> Trajectory:
    """Return a trajectory of exactly `frames` poses (and intrinsics, when it has them).

    Without options the first `frames` poses are used; None stands for all that the path can give.
    `hold_last` repeats the last pose when the path ends early. `resample="clip"` stretches or
    squeezes the whole path to the clip; `resample="time"` reads it at `k / fps` seconds after its
    first timestamp. A clip that moves implausibly fast or slowly, or jumps, is warned about; times
    of the file that are not followed are noted.

    Raises `UsageError` when the path is too short, when `hold_last` and `resample="clip"` are both
    asked or one of them without `frames`, and `InputError` for `resample="time"` without increasing
    timestamps.
    """
    if hold_last and resample == "clip":
        raise UsageError(
            "hold-last and resample clip exclude each other: a stretched path never ends early",
            fix="use one of the two",
        )
    available = poses_available(trajectory, hold_last=hold_last, resample=resample, fps=fps)
    if frames is None:
        frames = available
        if frames is None:
            needs = "--hold-last" if hold_last else "--resample clip"
            raise UsageError(f"{needs} needs the length of the clip", fix="add --num-frames N")
    elif frames > MAX_FRAMES:
        raise UsageError(
            f"{trajectory.source}: a clip of {frames} frames, expected at most {MAX_FRAMES}",
            fix="give --num-frames, say 241",
        )
    if available is not None and available < frames:
        unit, rest = ("frame", f" at {fps:g} a second") if resample == "time" else ("pose", "")
        raise UsageError(
            f"{trajectory.source}: the path gives {counted(available, unit)}{rest}, the clip has "
            f"{frames}",
            fix=f"give {counted(frames, unit)}{rest}, use --num-frames {available}, or add "
            "--hold-last or --resample clip",
        )
    if resample == "clip":
        clip = _resample_clip(trajectory, frames, notes)
    elif resample == "time":
        clip = _resample_time(trajectory, frames, fps, notes)
    else:
        note_unused_times(trajectory, fps=fps, notes=notes)
        clip = _first_frames(trajectory, frames, notes)
    warn_about_steps(clip, notes=notes)
    warn_about_jumps(clip, notes=notes)  # as `camera check` finds it with the same options
    return clip


def note_unused_times(trajectory: Trajectory, *, fps: float, notes: Notes) -> None:
    """Note that a path, used one pose a frame at `fps` a second, has other times in its file."""
    if trajectory.timestamps is None or len(trajectory) < 2:
        return
    own = float(trajectory.timestamps[-1] - trajectory.timestamps[0])
    taken = (len(trajectory) - 1) / fps
    if own > 0 and abs(own / taken - 1.0) > TIME_TOLERANCE:
        notes.info(
            f"{trajectory.source}: at {fps:g} a second its {len(trajectory)} poses take "
            f"{taken:.4g} s; the file's own times ({own:.4g} s) are not followed, --resample time "
            "does"
        )


def _first_frames(trajectory: Trajectory, frames: int, notes: Notes) -> Trajectory:
    """Return the first frames, the last one repeated when they run out.

    Timestamps stay only where no frame is repeated.
    """
    given = len(trajectory)
    if given > frames:
        notes.info(f"{trajectory.source}: {counted(given, 'pose')}, the first {frames} are used")
    elif given < frames:
        notes.change(
            f"{trajectory.source}: {counted(given, 'pose')}, the last is held up to frame "
            f"{frames - 1}"
        )
    index = np.minimum(np.arange(frames), given - 1)
    repeats = len(index) > len(trajectory)
    stamps = None if repeats or trajectory.timestamps is None else trajectory.timestamps[index]
    lens = None if trajectory.intrinsics is None else trajectory.intrinsics[index]
    return replace(trajectory, poses=trajectory.poses[index], intrinsics=lens, timestamps=stamps)


def _resample_clip(trajectory: Trajectory, frames: int, notes: Notes) -> Trajectory:
    given = len(trajectory)
    if given == frames:
        return trajectory
    positions = np.arange(frames) * ((given - 1) / max(frames - 1, 1))
    verb = "stretched" if frames > given else "squeezed"
    notes.change(
        f"{trajectory.source}: {counted(given, 'pose')} {verb} to the {frames} frames of the clip"
    )
    return _sample(trajectory, np.minimum(positions, given - 1), None)


def _resample_time(trajectory: Trajectory, frames: int, fps: float, notes: Notes) -> Trajectory:
    seconds = _seconds(trajectory)
    wanted = np.arange(frames) / fps
    positions = np.interp(wanted, seconds, np.arange(len(seconds), dtype=np.float64))
    held = int((wanted > seconds[-1] + 1e-6).sum())
    notes.change(
        f"{trajectory.source}: {counted(len(seconds), 'pose')} over {seconds[-1]:.6g} s read at "
        f"{fps:g} frames a second: {frames} frames take {(frames - 1) / fps:.6g} s"
        + (f", the last pose is held for {held} of them" if held else "")
    )
    return _sample(trajectory, positions, wanted)


def _sample(trajectory: Trajectory, positions: Float64, timestamps: Float64 | None) -> Trajectory:
    """Return the trajectory at fractional frame indices `positions` `(M,)`."""
    poses = interpolate_poses(trajectory.poses, positions).astype(np.float32)
    lens: Float32 | None = None
    if trajectory.intrinsics is not None:
        index = np.arange(len(trajectory))
        columns = [np.interp(positions, index, column) for column in trajectory.intrinsics.T]
        lens = np.stack(columns, axis=1).astype(np.float32)
    return replace(trajectory, poses=poses, intrinsics=lens, timestamps=timestamps)


def _seconds(trajectory: Trajectory) -> Float64:
    """Return seconds since the first pose `(F,)`; raise `InputError` without usable timestamps."""
    stamps = trajectory.timestamps
    if stamps is None:
        raise InputError(
            f"{trajectory.source}: no timestamps to sample by (RealEstate10K, TUM and nerfstudio "
            "camera paths have them)",
            fix="use --resample clip",
        )
    stuck = np.flatnonzero(np.diff(stamps) <= 0)
    if stuck.size:
        frame = int(stuck[0]) + 1
        raise InputError(
            f"{trajectory.source}: the timestamp of frame {frame} ({float(stamps[frame])!r} s) is "
            f"not after that of frame {frame - 1} ({float(stamps[frame - 1])!r} s)",
            fix="sort or repair the file, or use --resample clip",
        )
    return stamps - stamps[0]
