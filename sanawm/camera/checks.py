"""Checks that a well-formed trajectory can still fail; `sanawm camera check` reports them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .intrinsics import FOV_RANGE_DEG, field_of_view
from .motion import STEP_RANGE, centred_size, frame_steps
from .trajectory import Trajectory

#: A step this many times the median, or a turn of this many degrees, is a jump and no motion.
JUMP_FACTOR, JUMP_DEG = 10.0, 30.0


class Check(NamedTuple):
    """One check: what was looked at, whether it holds, and what was found."""

    name: str
    passed: bool
    found: str


def check_trajectory(trajectory: Trajectory, *, stride: int = 24) -> list[Check]:
    """Return the checks of a trajectory meant for clips of `stride * k + 1` frames."""
    checks = [_check_length(trajectory, stride), _check_steps(trajectory), _check_jumps(trajectory)]
    if trajectory.intrinsics is not None or trajectory.fov_x_deg is not None:
        checks.append(_check_lens(trajectory))
    if trajectory.timestamps is not None:
        checks.append(_check_time(trajectory.timestamps))
    return checks


def _check_length(trajectory: Trajectory, stride: int) -> Check:
    least = stride + 1
    found = f"{len(trajectory)} poses, a clip needs at least {least}"
    return Check("length", len(trajectory) >= least, found)


def _check_steps(trajectory: Trajectory) -> Check:
    steps, _ = frame_steps(trajectory)
    median = float(np.median(steps)) if len(steps) else 0.0
    low, high = STEP_RANGE
    found = f"median step {median:.3g} scene units a frame, usual {low:g} to {high:g}"
    return Check("step", low <= median <= high, found)


def _check_jumps(trajectory: Trajectory) -> Check:
    """Fail when one step stands out from the rest: a lost track, or frames in the wrong order."""
    steps, turns = frame_steps(trajectory)
    moving = steps[steps > 0]
    limit = JUMP_FACTOR * float(np.median(moving)) if len(moving) else np.inf
    jumps = np.flatnonzero((steps > limit) | (turns > JUMP_DEG))
    if not len(jumps):
        return Check("jumps", True, "no jump from one frame to the next")
    frame = int(jumps[0])
    found = (
        f"from frame {frame} to {frame + 1} the camera jumps {steps[frame]:.3g} scene units and "
        f"turns {turns[frame]:.1f} degrees"
    )
    return Check("jumps", False, found)


def _check_lens(trajectory: Trajectory) -> Check:
    low, high = FOV_RANGE_DEG
    if trajectory.intrinsics is None:
        fov = np.array([[trajectory.fov_x_deg]], dtype=np.float64)
    else:
        size = trajectory.source_size or centred_size(trajectory)
        fov = field_of_view(trajectory.intrinsics, size)
    found = (
        f"field of view {fov.min():.1f} to {fov.max():.1f} degrees, "
        f"accepted more than {low:g}, less than {high:g}"
    )
    return Check("field of view", bool(fov.min() > low and fov.max() < high), found)


def _check_time(seconds: np.ndarray) -> Check:
    gaps = np.diff(seconds)
    stuck = np.flatnonzero(gaps <= 0)
    if len(stuck):
        frame = int(stuck[0]) + 1
        return Check("timestamps", False, f"frame {frame} is not later than frame {frame - 1}")
    if not len(gaps):
        return Check("timestamps", True, "a single one")
    rate = 1.0 / float(np.median(gaps))
    return Check("timestamps", True, f"increasing, {rate:.4g} poses a second (median)")
