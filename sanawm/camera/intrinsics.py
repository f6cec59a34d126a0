"""Intrinsics `fx fy cx cy`: the shapes users have, the value used when there are none, the checks.

Always pixels, no skew, no distortion. "Source" pixels are those of the image file before it is
resized and cropped; "target" pixels those of the picture that the model sees.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sanawm.errors import InputError, UsageError
from sanawm.notes import Notes

from .arrayfile import read_npy, read_npz
from .framing import ImageSize, frame_image, scale_intrinsics
from .geometry import Float32, wrong_last_row
from .trajectory import FRACTIONS, Trajectory
from .view_angle import FOV_RANGE_DEG, check_field_of_view, field_of_view

#: Field of view across the target picture when nobody says anything.
DEFAULT_FOV_DEG = 90.0
#: Range in which a focal length (pixels, or fractions of a picture) is no damage.
SMALLEST_FOCAL, LARGEST_PIXEL = 1e-6, 1e9
#: Names of intrinsics in an `.npz`, first match wins.
INTRINSICS_KEYS = ("intrinsics", "intrinsic", "K", "Ks")
SHAPES = "(4,) fx fy cx cy, (3, 3), (F, 4) or (F, 3, 3)"


def read_intrinsics(text: str | Path, *, notes: Notes) -> Float32:
    """Return intrinsics `(F0, 4)` from `fx,fy,cx,cy` or from a `.npy` or `.npz` file.

    Raises `MissingFile` when the file is not there, `InputError` when it holds something else, and
    `UsageError` for a text that is empty or meant as numbers, but not written `fx,fy,cx,cy`.
    """
    numbers = _parse_numbers(str(text))
    if numbers is not None:
        return intrinsics_from_array(numbers, source=f"intrinsics {str(text)!r}", notes=notes)
    path = Path(text)
    if str(text) == "" or not path.exists():
        _refuse_other_lists(str(text))
    if path.suffix.lower() != ".npz":
        return intrinsics_from_array(read_npy(path), source=str(path), notes=notes)
    with read_npz(path) as archive:
        key = next((key for key in INTRINSICS_KEYS if key in archive.names), None)
        if key is None:
            raise InputError(
                f"{path}: no intrinsics among its keys {', '.join(archive.names) or '(none)'}; "
                f"expected one of {', '.join(INTRINSICS_KEYS)}",
                fix=f"save them under {INTRINSICS_KEYS[0]}, or give --intrinsics fx,fy,cx,cy",
            )
        return intrinsics_from_array(archive.read(key), source=f"{path} [{key}]", notes=notes)


def _parse_numbers(text: str) -> list[float] | None:
    """Return the numbers of `fx,fy,cx,cy`, or None when `text` is no list of numbers."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return None
    return numbers if len(parts) > 1 else None


def _refuse_other_lists(text: str) -> None:
    """Raise `UsageError` for a text that is no file's name but most of whose words are numbers."""
    words = re.split(r"[\s,;]+", text.strip(" \t\n,;()[]"))
    numbers = [word for word in words if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", word)]
    if text.strip() and (len(words) < 2 or 2 * len(numbers) <= len(words)):
        return
    example = ",".join(numbers) if len(words) == len(numbers) == 4 else "600,600,320,180"
    raise UsageError(
        f"intrinsics {text!r}: neither fx,fy,cx,cy nor the name of a file; expected four numbers "
        "with commas between them",
        fix=f"write --intrinsics {example}",
    )


def intrinsics_from_array(array: ArrayLike, *, source: str, notes: Notes) -> Float32:
    """Return intrinsics `(F0, 4)` float32 of an array in one of the four accepted shapes.

    The shapes are tried in the order (4,), (3, 3), (F, 4), (F, 3, 3), so a (4, 4) array is four
    frames. A skew is ignored with a warning. Raises `InputError` for any other shape, for values
    that are not finite, for focal lengths that are not positive and for a 3x3 matrix whose last row
    is not `0 0 1`.
    """
    given = np.asarray(array)
    if given.dtype.kind not in "fiu":
        raise InputError(
            f"{source}: dtype {given.dtype}, expected real numbers (float or integer)",
            fix="save the array as float32",
        )
    if given.shape in ((4,), (3, 3)):
        given = given[None]
    is_matrix = given.ndim == 3 and given.shape[1:] == (3, 3)
    if not is_matrix and not (given.ndim == 2 and given.shape[1] == 4):
        raise InputError(
            f"{source}: intrinsics of shape {np.shape(array)}, expected {SHAPES}",
            fix="save fx fy cx cy in pixels of the image file",
        )
    if len(given) == 0:
        raise InputError(f"{source}: intrinsics of no frame", fix=f"expected {SHAPES}")
    with np.errstate(invalid="ignore", over="ignore"):  # checked below
        values = given.astype(np.float32)
    if is_matrix:
        _check_last_rows(values, source)
        if np.any(values[:, 0, 1] != 0):
            skew = values[:, 0, 1][np.argmax(np.abs(values[:, 0, 1]))]
            notes.warn(f"{source}: skew {skew:g} ignored, the model's camera has none")
        values = np.stack(
            [values[:, 0, 0], values[:, 1, 1], values[:, 0, 2], values[:, 1, 2]], axis=1
        )
    check_lens(values, source=source)
    return values


def _check_last_rows(matrices: Float32, source: str) -> None:
    """Raise `InputError` unless the last row of every matrix `(F, 3, 3)` is `0 0 1`."""
    wrong = wrong_last_row(matrices)
    if wrong is None:
        return
    frame, found, turned = wrong
    raise InputError(
        f"{source}: frame {frame}: the last row of the 3x3 matrix is {found}, expected 0 0 1",
        fix="the matrices are stored column by column: transpose each of them"
        if turned
        else "give matrices with the rows fx 0 cx, 0 fy cy and 0 0 1, in pixels of the image file",
    )


def check_lens(
    intrinsics: NDArray[np.floating],
    *,
    source: str,
    labels: Sequence[str] | None = None,
    fractions: bool = False,
) -> None:
    """Raise `InputError` for a value that is not finite or a focal length that is not positive.

    The message names `labels[i]` (`frame i` without labels) and the value; `fractions` says that
    the file gives fractions of the picture's width and height and no pixels.
    """
    unit = "fraction of the picture" if fractions else "number of pixels"
    fix = "give intrinsics as fx fy cx cy in pixels of the image file"
    if fractions:
        fix = "give fx fy cx cy as fractions of the picture's width and height"
    for column, name in enumerate(("fx", "fy", "cx", "cy")):
        values = intrinsics[:, column]
        least = SMALLEST_FOCAL if column < 2 else -LARGEST_PIXEL
        wrong = ~((values >= least) & (values <= LARGEST_PIXEL))
        if wrong.any():
            frame = int(np.argmax(wrong))
            where = labels[frame] if labels else f"frame {frame}"
            kind = "positive" if column < 2 else "finite"
            raise InputError(
                f"{source}: {where}: {name} is {values[frame]:g}, expected a {kind} {unit}",
                fix=fix,
            )


def fit_intrinsics(intrinsics: Float32, frames: int) -> Float32:
    """Return intrinsics `(frames, 4)` float32 from `(F0, 4)`.

    Longer sequences are cut, a single row is repeated, shorter ones are stretched linearly over the
    clip with time grids in float32, as upstream does (`camera.md`, section 4).
    """
    given = len(intrinsics)
    if given >= frames:
        return intrinsics[:frames].astype(np.float32)
    if given == 1:
        return np.repeat(intrinsics.astype(np.float32), frames, axis=0)
    wanted = np.linspace(0, 1, frames, dtype=np.float32)
    known = np.linspace(0, 1, given, dtype=np.float32)
    columns = [np.interp(wanted, known, intrinsics[:, column]) for column in range(4)]
    return np.stack(columns, axis=1).astype(np.float32)


def intrinsics_of_fov(fov_x_deg: float, size: ImageSize, *, source: str = "") -> Float32:
    """Return `(1, 4)` for a centred lens with square pixels, `fov_x_deg` across the width.

    Raises `UsageError` unless the angle lies between 0 and 180 degrees; `source` says who set it.
    """
    if not math.isfinite(fov_x_deg) or not 0 < fov_x_deg < 180:
        name = f"{source}: " if source else ""
        raise UsageError(
            f"{name}field of view {fov_x_deg:g} degrees is impossible: expected more than 0, less "
            "than 180",
            fix=f"give degrees across the image, {FOV_RANGE_DEG[0]:g} to {FOV_RANGE_DEG[1]:g}",
        )
    focal = size.width / (2.0 * math.tan(math.radians(fov_x_deg) / 2.0))
    return np.array([[focal, focal, size.width / 2, size.height / 2]], dtype=np.float32)


def resolve_intrinsics(
    trajectory: Trajectory | None,
    frames: int,
    *,
    image_size: ImageSize | None,
    target: ImageSize,
    supplied: Float32 | None = None,
    supplied_source: str = "--intrinsics",
    fov_x_deg: float | None = None,
    fov_source: str | None = None,
    allow_extreme_fov: bool = False,
    notes: Notes,
) -> Float32:
    """Return the intrinsics `(frames, 4)` float32 of the clip, in pixels of the target picture.

    Strongest first: `supplied` `(F0, 4)` in source pixels; `fov_x_deg` across the source image;
    what the trajectory's file holds; 90 degrees across the target picture. Which one was used is
    noted, with its values and its field of view. Without an image (`image_size` None) the file's
    intrinsics belong to a picture of the file's own size, others to the target picture.
    `supplied_source` and `fov_source` are what messages call the two: who set them, and to what.

    Raises `UsageError` when both `supplied` and `fov_x_deg` are given, and `InputError` when the
    field of view on the target picture leaves 25 to 120 degrees unless `allow_extreme_fov`.
    """
    if supplied is not None and fov_x_deg is not None:
        raise UsageError(
            "both intrinsics and a field of view were given",
            fix="use either --intrinsics or --fov-x",
        )
    if image_size is None:
        image_size = _size_without_image(trajectory, supplied is None and fov_x_deg is None, target)
    angle: float | None = None
    if supplied is not None:
        source, lens = supplied_source, _fit_supplied(supplied, frames, supplied_source, notes)
    elif fov_x_deg is not None:
        source, angle = fov_source or f"--fov-x {fov_x_deg:g}", fov_x_deg
        lens = intrinsics_of_fov(angle, image_size, source=source)
    elif trajectory is not None and trajectory.intrinsics is not None:
        source = trajectory.source
        lens = scale_to_image(trajectory, image_size, notes)
    elif trajectory is not None and trajectory.fov_x_deg is not None:
        source, angle = trajectory.source, trajectory.fov_x_deg
        lens = intrinsics_of_fov(angle, image_size)
    else:
        return fit_intrinsics(_assumed_lens(target, notes), frames)
    lens = fit_intrinsics(lens, frames)
    _warn_about_centre(lens, image_size, source, notes)
    moved = frame_image(image_size, target).move_intrinsics(lens)
    check_field_of_view(
        moved,
        target,
        image=(lens, image_size),
        angle=angle,
        source=source,
        allow=allow_extreme_fov,
        notes=notes,
    )
    notes.info(f"intrinsics from {source}: {describe_lens(moved, target)}")
    return moved


def _assumed_lens(target: ImageSize, notes: Notes) -> Float32:
    """Return the lens `(1, 4)` that is used when nobody says anything, with a warning."""
    lens = intrinsics_of_fov(DEFAULT_FOV_DEG, target)
    notes.warn(
        f"no intrinsics and no field of view: {DEFAULT_FOV_DEG:g} degrees across the picture "
        f"are assumed ({describe_lens(lens, target)}); --fov-x or --intrinsics says otherwise"
    )
    return lens


def _size_without_image(
    trajectory: Trajectory | None, from_file: bool, target: ImageSize
) -> ImageSize:
    """Return the size of the picture that intrinsics are about when there is no image."""
    held = trajectory.source_size if trajectory is not None and from_file else None
    return target if held is None or held == FRACTIONS else held


def describe_lens(intrinsics: Float32, size: ImageSize) -> str:
    """Return `fx fy cx cy` of the first frame and the field of view in words."""
    values = " ".join(f"{value:.6g}" for value in intrinsics[0])
    across, upright = field_of_view(intrinsics, size)[0]
    zoom = "" if (intrinsics == intrinsics[0]).all() else "; it changes from frame to frame"
    return (
        f"fx fy cx cy = {values} on the {size} picture, field of view "
        f"{across:.1f} x {upright:.1f} degrees{zoom}"
    )


def scale_to_image(trajectory: Trajectory, image_size: ImageSize, notes: Notes) -> Float32:
    """Return the intrinsics of a trajectory `(F, 4)` in pixels of an image of `image_size`.

    They are scaled per axis when the file speaks of another size, with a line that says so. The
    trajectory must hold intrinsics.
    """
    assert trajectory.intrinsics is not None
    held = trajectory.source_size
    if held is None or held == image_size:
        return trajectory.intrinsics
    scale_x, scale_y = image_size.width / held.width, image_size.height / held.height
    if held != FRACTIONS:
        line = (
            f"{trajectory.source}: intrinsics of {held} pixels scaled to the image's {image_size}"
        )
        if abs(scale_x / scale_y - 1.0) > 0.02:
            notes.warn(f"{line}; the two have different shapes, so check that they belong together")
        else:
            notes.info(line)
    return scale_intrinsics(trajectory.intrinsics, scale_x, scale_y)


def _fit_supplied(supplied: Float32, frames: int, source: str, notes: Notes) -> Float32:
    """Fit `(F0, 4)` to the clip and note it when a sequence is cut or stretched."""
    given = len(supplied)
    if given > frames:
        notes.info(f"{source}: intrinsics of {given} frames, the first {frames} are used")
    elif 1 < given < frames:
        notes.change(f"{source}: intrinsics of {given} frames stretched over {frames} frames")
    return fit_intrinsics(supplied, frames)


def _warn_about_centre(lens: Float32, size: ImageSize, source: str, notes: Notes) -> None:
    """Warn when the principal point of a frame lies outside the source image."""
    centre = lens[:, 2:]
    outside = ((centre < 0) | (centre > np.array(size))).any(axis=1)
    if outside.any():
        frame = int(np.argmax(outside))
        x, y = centre[frame]
        notes.warn(
            f"{source}: frame {frame}: principal point ({x:g}, {y:g}) lies outside the {size} "
            "image; check that the intrinsics belong to this image file"
        )
