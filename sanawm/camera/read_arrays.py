"""Trajectories in NumPy files: `.npy`, `.npz` and LLFF `poses_bounds.npy`.

Layouts: `camera.md`, sections 7.1 and 7.8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sanawm.errors import InputError
from sanawm.notes import Notes

from .arrayfile import NpzArchive, read_npy, read_npz
from .framing import ImageSize
from .geometry import Float64, invert_poses, poses_from_parts
from .intrinsics import INTRINSICS_KEYS, check_lens, fit_intrinsics, intrinsics_from_array
from .raw import (
    LARGEST_NUMBER,
    Convention,
    RawPoses,
    complete_poses,
    no_poses,
    sound_number,
    unify_sizes,
)

#: Names of pose arrays in an `.npz`, first match wins.
C2W_KEYS = ("c2w", "cam_c2w", "poses", "camera_to_world", "data")
W2C_KEYS = ("w2c", "extrinsics", "extrinsic", "world_to_camera")
#: Columns of `poses_bounds.npy`: 3x5 numbers row by row, then near and far.
LLFF_COLUMNS = 17


def read_npy_poses(path: Path) -> RawPoses:
    """Read a `.npy` of `(F, 4, 4)` or `(F, 3, 4)`: camera-to-world, OpenCV axes by default."""
    poses = _check_poses(read_npy(path), str(path), path)
    return RawPoses("npy", poses, "c2w", "opencv", _frames(poses))


def read_npz_poses(path: Path, *, convention: Convention | None, notes: Notes) -> RawPoses:
    """Read a `.npz` by the names of its arrays; intrinsics are taken when it has some.

    Raises `InputError` when no array has a known name, and when it holds both directions, they
    disagree, and `convention` does not say which one to use.
    """
    with read_npz(path) as archive:
        key, direction = _choose_key(archive, path, convention)
        poses = _check_poses(archive.read(key), f"{path} [{key}]", path)
        others = [name for name in (*C2W_KEYS, *W2C_KEYS) if name in archive.names and name != key]
        if others:
            notes.info(f"{path}: poses taken from {key}; not read: {', '.join(others)}")
        lens = _read_lens(archive, path, len(poses), notes)
        if "inds" in archive.names:
            _warn_about_gaps(archive.read("inds"), path, notes)
    return RawPoses("npz", poses, direction, "opencv", _frames(poses), intrinsics=lens)


def _choose_key(
    archive: NpzArchive, path: Path, convention: Convention | None
) -> tuple[str, Convention]:
    """Return the array to read and its direction."""
    c2w = next((key for key in C2W_KEYS if key in archive.names), None)
    w2c = next((key for key in W2C_KEYS if key in archive.names), None)
    if c2w is None and w2c is None:
        raise InputError(
            f"{path}: no poses among its keys {', '.join(archive.names) or '(none)'}; expected one "
            f"of {', '.join(C2W_KEYS)} (camera-to-world) or {', '.join(W2C_KEYS)} "
            "(world-to-camera)",
            fix="save the poses as (F,4,4) under one of these names",
        )
    if c2w is not None and w2c is not None:
        if convention is None and not _agree(archive, path, c2w, w2c):
            raise InputError(
                f"{path}: {c2w} (camera-to-world) and {w2c} (world-to-camera) are not inverse to "
                "each other",
                fix="say which one to use: --camera-convention c2w or w2c",
            )
        return (w2c, "w2c") if convention == "w2c" else (c2w, "c2w")
    return (c2w, "c2w") if c2w is not None else (str(w2c), "w2c")


def _agree(archive: NpzArchive, path: Path, c2w: str, w2c: str) -> bool:
    """Return whether two pose arrays of one file describe the same cameras."""
    forth = _check_poses(archive.read(c2w), f"{path} [{c2w}]", path)
    back = _check_poses(archive.read(w2c), f"{path} [{w2c}]", path)
    return forth.shape == back.shape and np.allclose(invert_poses(forth), back, atol=1e-3)


def _check_poses(array: NDArray[Any], source: str, path: Path) -> Float64:
    """Return `(F, 4, 4)` float64; raise `InputError` for another dtype or shape."""
    if array.dtype.kind not in "fiu":
        raise InputError(
            f"{source}: poses of dtype {array.dtype}, expected float16, float32, float64 or "
            "integers",
            fix="save the array as float32",
        )
    if array.ndim != 3 or array.shape[1:] not in ((4, 4), (3, 4)):
        raise InputError(
            f"{source}: poses of shape {array.shape}, expected (F, 4, 4) or (F, 3, 4)",
            fix="save one 4x4 matrix a frame" + (" (add an axis in front)" * (array.ndim == 2)),
        )
    if len(array) == 0:
        raise no_poses(path)
    return complete_poses(array)


def _read_lens(archive: NpzArchive, path: Path, frames: int, notes: Notes) -> Float64 | None:
    key = next((key for key in INTRINSICS_KEYS if key in archive.names), None)
    if key is None:
        return None
    source = f"{path} [{key}]"
    lens = intrinsics_from_array(archive.read(key), source=source, notes=notes)
    if len(lens) not in (1, frames):
        verb = "stretched over" if len(lens) < frames else "cut to"
        notes.warn(f"{source}: intrinsics of {len(lens)} frames {verb} the file's {frames} poses")
    return fit_intrinsics(lens, frames).astype(np.float64)


def _warn_about_gaps(inds: NDArray[Any], path: Path, notes: Notes) -> None:
    """Warn when ViPE's frame numbers jump: its poses are then not one a frame."""
    if inds.ndim == 1 and inds.dtype.kind in "iu" and np.any(np.diff(inds) != 1):
        notes.warn(
            f"{path}: frame numbers in inds are not consecutive; poses are used one after another"
        )


def read_llff_poses(path: Path) -> RawPoses:
    """Read `poses_bounds.npy` `(F, 17)`: `[R | t | H W f]`, camera axes down, right, backwards."""
    table = read_npy(path)
    if table.dtype.kind not in "fiu" or table.ndim != 2 or table.shape[1] != LLFF_COLUMNS:
        raise InputError(
            f"{path}: {table.dtype} of shape {table.shape}, expected numbers of shape "
            f"(F, {LLFF_COLUMNS}) for llff",
            fix="give poses_bounds.npy, or name the right --camera-format",
        )
    if len(table) == 0:
        raise no_poses(path)
    with np.errstate(invalid="ignore"):
        table = table.astype(np.float64)
    bad = np.argwhere(~(np.abs(table) <= LARGEST_NUMBER))
    if len(bad):
        frame, column = bad[0]
        raise InputError(
            f"{path}: row {frame}, column {column} (counted from 0) is {table[frame, column]:g}, "
            f"expected {sound_number(table[frame, column])}",
            fix="remove or repair this pose",
        )
    block = table[:, :15].reshape(-1, 3, 5)
    down, right, backwards = block[:, :, 0], block[:, :, 1], block[:, :, 2]
    poses = poses_from_parts(np.stack([right, down, -backwards], axis=2), block[:, :, 3])
    height, width, focal = block[:, :, 4].T
    check_lens(np.stack([focal, focal, width, height], axis=1), source=str(path))
    if (np.minimum(width, height) < 1).any():
        raise InputError(f"{path}: a picture size below one pixel", fix="check columns 4 and 9")
    sizes = [ImageSize(round(w), round(h)) for w, h in zip(width, height, strict=True)]
    lens = np.stack([focal, focal, width / 2, height / 2], axis=1)
    lens, size, _ = unify_sizes(lens, sizes)
    return RawPoses("llff", poses, "c2w", "opencv", _frames(poses), intrinsics=lens, size=size)


def _frames(poses: Float64) -> list[str]:
    return [f"frame {number}" for number in range(len(poses))]
