"""Rigid poses and rotations: inversion, quaternions, slerp. numpy only.

| what | precision |
|---|---|
| everything in this module | computed in float64, whatever comes in |
| `relative_poses` | float64 inside, float32 out |

A pose is a 4x4 matrix for column vectors, `[R t; 0 0 0 1]`. Quaternions are `(w, x, y, z)`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: Right factor that turns an OpenGL camera (+Y up, looks along -Z) into an OpenCV one, and back.
GL_TO_CV: Float64 = np.diag([1.0, -1.0, -1.0, 1.0])

#: Above this cosine of the half angle slerp divides by a small number; a straight line is used.
SLERP_DOT_MAX = 0.9995

#: How far the last row of a matrix may be from `0 … 0 1`.
LAST_ROW_TOLERANCE = 1e-4


def poses_from_parts(rotations: ArrayLike, translations: ArrayLike) -> Float64:
    """Join rotations `(F, 3, 3)` and translations `(F, 3)` to poses `(F, 4, 4)`."""
    rotation = np.asarray(rotations, dtype=np.float64)
    poses = np.zeros((len(rotation), 4, 4))
    poses[:, :3, :3] = rotation
    poses[:, :3, 3] = translations
    poses[:, 3, 3] = 1.0
    return poses


def invert_poses(poses: ArrayLike) -> Float64:
    """Return the inverses `[R^T, -R^T t]` of rigid poses `(F, 4, 4)`."""
    given = np.asarray(poses, dtype=np.float64)
    transposed = given[:, :3, :3].transpose(0, 2, 1)
    return poses_from_parts(transposed, -(transposed @ given[:, :3, 3:])[:, :, 0])


def relative_poses(poses: ArrayLike) -> Float32:
    """Return poses `(F, 4, 4)` seen from the first: `inv(poses[0]) @ poses[i]`, first exactly I.

    This is all that the model learns about a trajectory: a common rotation and translation of the
    world drops out (`camera.md`, section 6.1).
    """
    given = np.asarray(poses, dtype=np.float64)
    relative = (invert_poses(given[:1])[0] @ given).astype(np.float32)
    relative[0] = np.eye(4, dtype=np.float32)
    return relative


def rotation_errors(rotations: ArrayLike) -> Float64:
    """Return for each `(F, 3, 3)` matrix how far it is from orthonormal: `max |R R^T - I|`."""
    matrix = np.asarray(rotations, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        gram = matrix @ matrix.transpose(0, 2, 1) - np.eye(3)
    return np.abs(gram).max(axis=(1, 2))


def nearest_rotations(rotations: ArrayLike) -> Float64:
    """Return the rotations closest to nearly orthonormal matrices `(F, 3, 3)` (polar part)."""
    u, _, vt = np.linalg.svd(np.asarray(rotations, dtype=np.float64))
    return u @ vt


def rotations_from_quaternions(quaternions: ArrayLike) -> Float64:
    """Return rotations `(F, 3, 3)` of quaternions `(F, 4)` w, x, y, z of any length but zero."""
    q = np.asarray(quaternions, dtype=np.float64)
    w, x, y, z = (q / np.linalg.norm(q, axis=1, keepdims=True)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1)


def quaternions_from_rotations(rotations: ArrayLike) -> Float64:
    """Return unit quaternions `(F, 4)` w, x, y, z with w >= 0 of rotations `(F, 3, 3)`.

    `4 q q^T` is linear in the rotation; its longest row is a multiple of q that loses no digits.
    """
    r = np.asarray(rotations, dtype=np.float64)
    xx, yy, zz = r[:, 0, 0], r[:, 1, 1], r[:, 2, 2]
    wx, wy, wz = r[:, 2, 1] - r[:, 1, 2], r[:, 0, 2] - r[:, 2, 0], r[:, 1, 0] - r[:, 0, 1]
    xy, xz, yz = r[:, 0, 1] + r[:, 1, 0], r[:, 0, 2] + r[:, 2, 0], r[:, 1, 2] + r[:, 2, 1]
    outer = np.array(
        [
            [1 + xx + yy + zz, wx, wy, wz],
            [wx, 1 + xx - yy - zz, xy, xz],
            [wy, xy, 1 - xx + yy - zz, yz],
            [wz, xz, yz, 1 - xx - yy + zz],
        ]
    ).transpose(2, 0, 1)  # (F, 4, 4)
    longest = outer.diagonal(axis1=1, axis2=2).argmax(axis=1)
    q = outer[np.arange(len(r)), longest]
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    return np.where(q[:, :1] < 0, -q, q)


def interpolate_poses(poses: ArrayLike, positions: ArrayLike) -> Float64:
    """Return poses `(M, 4, 4)` at fractional indices `positions` `(M,)` of poses `(F, 4, 4)`.

    Positions lie in `[0, F - 1]`. Translation is linear, rotation slerp on the shorter arc, and a
    normalised straight line where the two quaternions nearly agree (`camera.md`, section 7.9).
    """
    given = np.asarray(poses, dtype=np.float64)
    position = np.asarray(positions, dtype=np.float64)
    if len(given) == 1:
        return np.repeat(given, len(position), axis=0)
    lower = np.minimum(np.floor(position).astype(np.int64), len(given) - 2)
    u = (position - lower)[:, None]  # (M, 1)
    quaternions = quaternions_from_rotations(given[:, :3, :3])
    q0, q1 = quaternions[lower], quaternions[lower + 1]
    t0, t1 = given[lower, :3, 3], given[lower + 1, :3, 3]
    rotations = rotations_from_quaternions(_slerp(q0, q1, u))
    return poses_from_parts(rotations, t0 + u * (t1 - t0))


def _slerp(q0: Float64, q1: Float64, u: Float64) -> Float64:
    """Return points at `u` `(M, 1)` on the shorter arcs from `q0` to `q1`, both `(M, 4)`."""
    dot = (q0 * q1).sum(axis=1, keepdims=True)
    q1, dot = np.where(dot < 0, -q1, q1), np.abs(dot)
    angle = np.arccos(np.clip(dot, 0.0, SLERP_DOT_MAX))  # clipped rows take the straight line
    arc = (np.sin((1 - u) * angle) * q0 + np.sin(u * angle) * q1) / np.sin(angle)
    return np.where(dot > SLERP_DOT_MAX, q0 + u * (q1 - q0), arc)


def wrong_last_row(matrices: NDArray[np.floating]) -> tuple[int, str, bool] | None:
    """Return the first of the matrices `(F, n, n)` whose last row is not `0 … 0 1`, None if none.

    That is its number, the row in words, and whether the last column is what the row should be.
    """
    last = np.eye(matrices.shape[-1])[-1]
    off = ~(np.abs(matrices[:, -1] - last).max(axis=1) <= LAST_ROW_TOLERANCE)  # also for NaN
    if not off.any():
        return None
    frame = int(np.argmax(off))
    found = " ".join(f"{value:g}" for value in matrices[frame, -1])
    return frame, found, np.allclose(matrices[frame, :, -1], last, atol=LAST_ROW_TOLERANCE)
