"""Load a trajectory file: read it, check it, bring it to one convention."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from sanawm.errors import InputError, UsageError
from sanawm.notes import Notes, counted

from .detect import resolve_format
from .framing import ImageSize
from .geometry import (
    GL_TO_CV,
    Float64,
    invert_poses,
    nearest_rotations,
    rotation_errors,
    wrong_last_row,
)
from .intrinsics import check_lens, scale_to_image
from .raw import LARGEST_NUMBER, Axes, CameraFormat, Convention, RawPoses, sound_number
from .read_arrays import read_llff_poses, read_npy_poses, read_npz_poses
from .read_colmap import read_colmap
from .read_json import read_camera_path, read_transforms
from .read_rows import read_kitti, read_re10k, read_tum
from .trajectory import FRACTIONS, Trajectory

#: Largest `max |R R^T - I|` of a matrix that still counts as a rotation.
ROTATION_TOLERANCE = 1e-3
#: Above this a rotation is replaced by the nearest exact one.
ROTATION_EXACT = 1e-6
#: Positions beyond this are moved to the origin before float32, whose steps are 6e-5 here.
FAR_FROM_ORIGIN = 1e3
#: So are those beyond this (float32 steps of 2e-6) that lie this many times farther from the origin
#: than from the first one: float32 would leave an error of 1e-5 of the path's extent.
NEAR_ORIGIN, FAR_FOR_EXTENT = 16.0, 40.0


def load_trajectory(
    path: Path,
    *,
    camera_format: str | None = None,
    convention: Convention | None = None,
    axes: Axes | None = None,
    sort: Literal["name", "file"] = "name",
    translation_scale: float = 1.0,
    image_size: ImageSize | None = None,
    notes: Notes,
) -> Trajectory:
    """Return the trajectory in a file (or COLMAP folder) as camera-to-world with OpenCV axes.

    The format is found by content unless `camera_format` names it. `convention` and `axes` override
    what the format says. `sort` orders frames that have image names: by name, digits compared as
    numbers, or as in the file. Positions are multiplied by `translation_scale`. With `image_size`
    the intrinsics come out in pixels of that image.

    Raises `MissingFile`, `InputError` naming file, frame or line and cell, `UsageError` for a bad
    option. What was changed or looks wrong goes to `notes`.
    """
    if not math.isfinite(translation_scale) or translation_scale <= 0:
        raise UsageError(
            f"translation scale {translation_scale:g} cannot be used: expected more than 0",
            fix="give a positive number, 1 changes nothing",
        )
    path, kind = resolve_format(Path(path), camera_format)
    raw = _read(path, kind, convention=convention, image_size=image_size, notes=notes)
    raw = _order(raw, sort, path, notes)
    raw = _choose_conventions(raw, convention, axes, path, notes)
    poses = _to_opencv(_check_matrices(raw, path, notes), raw)
    _scale_positions(poses, translation_scale, path)
    poses = _near_origin(poses, path, notes)
    if raw.intrinsics is not None:
        check_lens(
            raw.intrinsics,
            source=str(path),
            labels=raw.labels,
            fractions=raw.size == FRACTIONS,
        )
    scaled = "" if translation_scale == 1.0 else f", positions times {translation_scale:g}"
    trajectory = Trajectory(
        poses.astype(np.float32),
        None if raw.intrinsics is None else raw.intrinsics.astype(np.float32),
        raw.size,
        raw.fov_x_deg,
        raw.timestamps,
        format=raw.format,
        source=f"{path} ({raw.format}, {raw.convention}, {_axes_in_words(raw)}{scaled})",
    )
    if image_size is None or trajectory.intrinsics is None:
        return trajectory
    lens = scale_to_image(trajectory, image_size, notes)
    return replace(trajectory, intrinsics=lens, source_size=image_size)


def _read(
    path: Path,
    kind: CameraFormat,
    *,
    convention: Convention | None,
    image_size: ImageSize | None,
    notes: Notes,
) -> RawPoses:
    """Call the reader of a format."""
    match kind:
        case "npy":
            return read_npy_poses(path)
        case "npz":
            return read_npz_poses(path, convention=convention, notes=notes)
        case "llff":
            return read_llff_poses(path)
        case "nerfstudio" | "blender":
            return read_transforms(path, kind, image_size=image_size, notes=notes)
        case "camera-path":
            return read_camera_path(path, image_size=image_size, notes=notes)
        case "colmap":
            return read_colmap(path, notes=notes)
        case "re10k":
            return read_re10k(path)
        case "tum":
            return read_tum(path)
        case "kitti":
            return read_kitti(path)


def _order(raw: RawPoses, sort: str, path: Path, notes: Notes) -> RawPoses:
    """Return the frames in natural order of their names, unless the file's order is asked for."""
    if sort not in ("name", "file"):
        raise UsageError(f"camera sort {sort!r} does not exist", fix="use name or file")
    if raw.names is None:
        return raw
    names = raw.names
    _warn_about_doubles(names, path, notes)
    if sort == "file":
        return raw
    order = sorted(range(len(names)), key=lambda i: natural_key(names[i]))
    if order == list(range(len(order))):
        return raw
    notes.info(
        f"{path}: {len(order)} frames put in the order of their names ({names[order[0]]} first); "
        "--camera-sort file keeps the file's order"
    )
    lens = None if raw.intrinsics is None else raw.intrinsics[order]
    return replace(
        raw,
        matrices=raw.matrices[order],
        labels=[raw.labels[i] for i in order],
        names=[names[i] for i in order],
        intrinsics=lens,
    )


def _warn_about_doubles(names: Sequence[str], path: Path, notes: Notes) -> None:
    """Warn when several frames have one name: their order cannot come from it."""
    doubled = {name: count for name, count in Counter(names).items() if count > 1}
    if doubled:
        name, count = next(iter(doubled.items()))
        others = f" (doubled names: {len(doubled)})" if len(doubled) > 1 else ""
        notes.warn(
            f"{path}: the image name {name} stands for {count} frames{others}; among equal names "
            "the file's order is used"
        )


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares runs of digits as numbers: `im2` before `im10`."""
    parts = re.split(r"([0-9]+)", name)
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (0, part)
        for index, part in enumerate(parts)
    ]


def _choose_conventions(
    raw: RawPoses, convention: Convention | None, axes: Axes | None, path: Path, notes: Notes
) -> RawPoses:
    """Return `raw` with the direction and axes that were asked for; note where these differ."""
    for name, value, allowed in (
        ("camera convention", convention, ("c2w", "w2c")),
        ("camera axes", axes, ("opencv", "opengl")),
    ):
        if value is not None and value not in allowed:
            raise UsageError(f"{name} {value!r} does not exist", fix=f"use {' or '.join(allowed)}")
    if raw.format == "llff" and (axes == "opengl" or convention == "w2c"):
        raise UsageError(
            f"{path}: direction and axes of llff are fixed by its format",
            fix="leave out --camera-axes and --camera-convention",
        )
    chosen = replace(raw, convention=convention or raw.convention, axes=axes or raw.axes)
    for was, now in ((raw.convention, chosen.convention), (raw.axes, chosen.axes)):
        if was != now and raw.format not in ("npy", "npz"):
            notes.info(f"{path}: {raw.format} files are {was}, this one is read as {now} as asked")
    return chosen


def _check_matrices(raw: RawPoses, path: Path, notes: Notes) -> Float64:
    """Return the matrices with exact rotations; raise `InputError` when one is no rigid pose."""
    matrices = raw.matrices.copy()
    bad = np.argwhere(~(np.abs(matrices) <= LARGEST_NUMBER))
    if len(bad):
        frame, row, column = bad[0]
        value = float(matrices[frame, row, column])
        raise InputError(
            f"{path}: {raw.labels[frame]}, row {row}, column {column} (counted from 0) is "
            f"{value:g}, expected {sound_number(value)}",
            fix="remove or repair this pose",
        )
    _check_last_rows(matrices, raw, path)
    matrices[:, 3] = (0.0, 0.0, 0.0, 1.0)
    rotations = matrices[:, :3, :3]
    errors = rotation_errors(rotations)
    mirrored = np.linalg.det(rotations) <= 0
    wrong = (errors > ROTATION_TOLERANCE) | mirrored
    if wrong.any():
        frame = int(np.argmax(wrong))
        if errors[frame] > ROTATION_TOLERANCE:
            found = f"the 3x3 part is no rotation (R R^T is off by {errors[frame]:.3g})"
        else:
            found = "the 3x3 part mirrors space (its determinant is -1)"
        raise InputError(
            f"{path}: {raw.labels[frame]}: {found}, expected a rotation within "
            f"{ROTATION_TOLERANCE:g} and determinant +1",
            fix="export the poses without scale, shear or mirroring",
        )
    inexact = errors > ROTATION_EXACT
    if inexact.any():
        rotations[inexact] = nearest_rotations(rotations[inexact])
        notes.info(
            f"{path}: the rotations of {counted(int(inexact.sum()), 'frame')} were off by up to "
            f"{errors.max():.1e} and were replaced by the nearest exact ones"
        )
    return matrices


def _check_last_rows(matrices: Float64, raw: RawPoses, path: Path) -> None:
    """Raise `InputError` when a last row is not `0 0 0 1`."""
    wrong = wrong_last_row(matrices)
    if wrong is None:
        return
    frame, found, turned = wrong
    raise InputError(
        f"{path}: {raw.labels[frame]}: the last row is {found}, expected 0 0 0 1",
        fix="the matrices are stored column by column: transpose each of them"
        if turned
        else "give rigid 4x4 poses for column vectors",
    )


def _to_opencv(matrices: Float64, raw: RawPoses) -> Float64:
    """Return camera-to-world poses with OpenCV axes."""
    poses = invert_poses(matrices) if raw.convention == "w2c" else matrices
    return poses @ GL_TO_CV if raw.axes == "opengl" else poses


def _axes_in_words(raw: RawPoses) -> str:
    """Return the axes that the file has; the reader of llff turns its own to OpenCV's."""
    return "axes down, right, backwards" if raw.format == "llff" else f"{raw.axes} axes"


def _scale_positions(poses: Float64, scale: float, path: Path) -> None:
    """Multiply positions in place; raise `UsageError` when the scale makes them too large."""
    largest = float(np.abs(poses[:, :3, 3]).max())
    if scale > 1.0 and largest * scale > LARGEST_NUMBER:
        raise UsageError(
            f"translation scale {scale:g} makes positions of up to {largest:.3g} units in {path} "
            f"larger than {LARGEST_NUMBER:g}",
            fix="give a smaller --translation-scale; 1 changes nothing",
        )
    poses[:, :3, 3] *= scale


def _near_origin(poses: Float64, path: Path, notes: Notes) -> Float64:
    """Return poses moved to the first one's position when float32 would round them visibly."""
    farthest = float(np.abs(poses[:, :3, 3]).max())
    extent = float(np.abs(poses[:, :3, 3] - poses[0, :3, 3]).max())
    if farthest <= min(FAR_FROM_ORIGIN, max(NEAR_ORIGIN, FAR_FOR_EXTENT * extent)):
        return poses
    poses[:, :3, 3] -= poses[0, :3, 3].copy()
    notes.info(
        f"{path}: positions up to {farthest:.4g} units from the origin were moved so that frame 0 "
        "is at the origin, which changes nothing for the model"
    )
    return poses
