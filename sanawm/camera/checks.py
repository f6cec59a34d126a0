"""Checks that a well-formed trajectory can still fail; `sanawm camera check` reports them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sanawm.notes import counted

from .motion import STEP_RANGE, centred_size, find_jump, frame_steps
from .trajectory import Trajectory
from .view_angle import FOV_RANGE_DEG, field_of_view, outside_range


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
    found = f"{counted(len(trajectory), 'pose')}, a clip needs at least {least}"
    return Check("length", len(trajectory) >= least, found)


def _check_steps(trajectory: Trajectory) -> Check:
    steps, _ = frame_steps(trajectory)
    median = float(np.median(steps)) if len(steps) else 0.0
    low, high = STEP_RANGE
    found = f"median step {median:.3g} scene units a frame, usual {low:g} to {high:g}"
    return Check("step", low <= median <= high, found)


def _check_jumps(trajectory: Trajectory) -> Check:
    jump = find_jump(trajectory)
    if jump is None:
        return Check("jumps", True, "no jump from one frame to the next")
    return Check("jumps", False, jump[1])


def _check_lens(trajectory: Trajectory) -> Check:
    low, high = FOV_RANGE_DEG
    if trajectory.intrinsics is None:
        fov = np.array([[trajectory.fov_x_deg]], dtype=np.float64)
    else:
        size = trajectory.source_size or centred_size(trajectory)
        fov = field_of_view(trajectory.intrinsics, size)
    least, most = f"{fov.min():.1f}", f"{fov.max():.1f}"
    found = (
        f"field of view {least if least == most else f'{least} to {most}'} degrees, "
        f"accepted more than {low:g}, less than {high:g}"
    )
    return Check("field of view", not bool(outside_range(fov).any()), found)


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
