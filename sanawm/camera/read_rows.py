"""Trajectories with one pose a text line: RealEstate10K, TUM and KITTI.

Layouts: `camera.md`, sections 7.6 and 7.7.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sanawm.errors import InputError

from .geometry import poses_from_parts, rotations_from_quaternions
from .raw import NumberRow, RawPoses, complete_poses, read_number_rows
from .trajectory import FRACTIONS

RE10K_LAYOUT = (
    "timestamp, fx fy cx cy as fractions, two unused numbers, 3x4 world-to-camera row by row"
)
TUM_LAYOUT = "timestamp tx ty tz qx qy qz qw"
KITTI_LAYOUT = "3x4 camera-to-world row by row"


def read_re10k(path: Path) -> RawPoses:
    """Read RealEstate10K text: microseconds, lens as fractions, world-to-camera matrices."""
    rows = read_number_rows(path, columns=19, layout=RE10K_LAYOUT, skip_single=True)
    table = np.array([row.values for row in rows])
    return RawPoses(
        "re10k",
        complete_poses(table[:, 7:].reshape(-1, 3, 4)),
        "w2c",
        "opencv",
        _labels(rows),
        intrinsics=table[:, 1:5],
        size=FRACTIONS,
        timestamps=table[:, 0] / 1e6,
    )


def read_tum(path: Path) -> RawPoses:
    """Read TUM text: seconds, camera position, quaternion with w last; camera-to-world."""
    rows = read_number_rows(path, columns=8, layout=TUM_LAYOUT)
    table = np.array([row.values for row in rows])
    quaternions = table[:, [7, 4, 5, 6]]
    short = np.linalg.norm(quaternions, axis=1) < 1e-6
    if short.any():
        raise InputError(
            f"{path}: line {rows[int(np.argmax(short))].line}: the quaternion is zero, expected "
            f"{TUM_LAYOUT}",
            fix="remove or repair this pose",
        )
    matrices = poses_from_parts(rotations_from_quaternions(quaternions), table[:, 1:4])
    return RawPoses("tum", matrices, "c2w", "opencv", _labels(rows), timestamps=table[:, 0])


def read_kitti(path: Path) -> RawPoses:
    """Read KITTI odometry text: 12 numbers a line, camera-to-world."""
    rows = read_number_rows(path, columns=12, layout=KITTI_LAYOUT)
    table = np.array([row.values for row in rows])
    return RawPoses(
        "kitti", complete_poses(table.reshape(-1, 3, 4)), "c2w", "opencv", _labels(rows)
    )


def _labels(rows: list[NumberRow]) -> list[str]:
    return [f"line {row.line}" for row in rows]
