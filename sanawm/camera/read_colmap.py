"""Trajectories in COLMAP's text model: `images.txt` and the `cameras.txt` beside it.

World-to-camera, OpenCV axes, Hamilton quaternions w first. Layout: `camera.md`, section 7.5.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sanawm.errors import InputError
from sanawm.notes import Notes, counted

from .framing import ImageSize
from .geometry import poses_from_parts, rotations_from_quaternions
from .intrinsics import check_lens
from .raw import RawPoses, content_lines, no_poses, parse_number, read_text, unify_sizes

#: Where `fx fy cx cy` stand among a model's parameters, and how many it has.
MODELS: dict[str, tuple[tuple[int, int, int, int], int]] = {
    "SIMPLE_PINHOLE": ((0, 0, 1, 2), 3),
    "PINHOLE": ((0, 1, 2, 3), 4),
    "SIMPLE_RADIAL": ((0, 0, 1, 2), 4),
    "RADIAL": ((0, 0, 1, 2), 5),
    "OPENCV": ((0, 1, 2, 3), 8),
    "FULL_OPENCV": ((0, 1, 2, 3), 12),
    "OPENCV_FISHEYE": ((0, 1, 2, 3), 8),
    "SIMPLE_RADIAL_FISHEYE": ((0, 0, 1, 2), 4),
    "RADIAL_FISHEYE": ((0, 0, 1, 2), 5),
    "THIN_PRISM_FISHEYE": ((0, 1, 2, 3), 12),
    "FOV": ((0, 1, 2, 3), 5),
}
IMAGE_LAYOUT = "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME"


class ColmapImage(NamedTuple):
    """One image line: `numbers` are QW QX QY QZ TX TY TZ."""

    line: int
    id: str
    numbers: list[float]
    camera: str
    name: str


class ColmapCamera(NamedTuple):
    """One camera line reduced to a pinhole; `distortion` holds the parameters left over."""

    model: str
    size: ImageSize
    lens: list[float]  # fx fy cx cy
    distortion: list[float]


def cameras_path(images: Path) -> Path:
    """Return where an image list has its camera list: `cameras` in the name for `images`."""
    stem = images.name.replace("images", "cameras")
    return images.with_name(stem if stem != images.name else "cameras.txt")


def read_colmap(images: Path, *, notes: Notes) -> RawPoses:
    """Read `images.txt`; without a camera list beside it the poses stand alone, with a line."""
    rows = _read_images(images)
    labels = [f"line {row.line} ({row.name})" for row in rows]
    _warn_about_ids(rows, images, notes)
    quaternions = np.array([row.numbers[:4] for row in rows])
    short = np.linalg.norm(quaternions, axis=1) < 1e-6
    if short.any():
        raise InputError(
            f"{images}: {labels[int(np.argmax(short))]}: the quaternion QW QX QY QZ is zero",
            fix="remove or repair this pose",
        )
    matrices = poses_from_parts(
        rotations_from_quaternions(quaternions), [row.numbers[4:] for row in rows]
    )
    lens, size = None, None
    listed = cameras_path(images)
    if listed.is_file():
        cameras = _read_cameras(listed)
        used = [_camera_of(row, cameras, images, listed) for row in rows]
        _warn_about_lenses(
            {row.camera: cam for row, cam in zip(rows, used, strict=True)}, listed, notes
        )
        lens, size, mixed = unify_sizes(
            np.array([camera.lens for camera in used]), [camera.size for camera in used]
        )
        if mixed:
            notes.info(f"{listed}: cameras of several sizes, intrinsics are brought to {size}")
    else:
        notes.info(f"{images}: no {listed.name} beside it, so no intrinsics")
    names = [row.name for row in rows]
    return RawPoses("colmap", matrices, "w2c", "opencv", labels, names, lens, size)


def _read_images(path: Path) -> list[ColmapImage]:
    """Return the image lines: strictly two lines an image, the second one may be empty."""
    lines = content_lines(read_text(path))
    while lines and not lines[-1][1]:
        lines.pop()
    rows = []
    for index in range(0, len(lines), 2):
        rows.append(_parse_image(*lines[index], path))
        if index + 1 < len(lines):
            _check_points(*lines[index + 1], path)
    if not rows:
        raise no_poses(path)
    return rows


def _parse_image(number: int, line: str, path: Path) -> ColmapImage:
    where = f"{path}: line {number}"
    tokens = line.split(maxsplit=9)
    if len(tokens) != 10:
        found = counted(len(tokens), "column") if tokens else "an empty line"
        raise InputError(
            f"{where}: found {found}, expected an image line {IMAGE_LAYOUT} (two lines an image, "
            "the second may be empty)",
            fix="correct this line, or export the model again",
        )
    numbers = [
        parse_number(token, f"{where}, column {column}")
        for column, token in enumerate(tokens[1:8], start=2)
    ]
    return ColmapImage(number, tokens[0], numbers, tokens[8], tokens[9])


def _warn_about_ids(rows: list[ColmapImage], path: Path, notes: Notes) -> None:
    """Warn when an IMAGE_ID stands more than once: such a file was joined or edited."""
    doubled = [(id_, count) for id_, count in Counter(row.id for row in rows).items() if count > 1]
    if doubled:
        id_, count = doubled[0]
        others = f" (doubled numbers: {len(doubled)})" if len(doubled) > 1 else ""
        notes.warn(
            f"{path}: IMAGE_ID {id_} stands for {count} images{others}; all of them are read as "
            "poses of their own"
        )


def _check_points(number: int, line: str, path: Path) -> None:
    """Raise `InputError` when the line after an image cannot be a list of X Y POINT3D_ID."""
    tokens = line.split()
    try:
        wrong = len(tokens) % 3 != 0 or (tokens and int(tokens[-1]) < -1)
    except ValueError:
        wrong = True
    if wrong:
        raise InputError(
            f"{path}: line {number}: found something else than the 2-D points of the image above "
            "(X Y POINT3D_ID ..., or an empty line)",
            fix="keep two lines an image: leave the second one empty when there are no points",
        )


def _read_cameras(path: Path) -> dict[str, ColmapCamera]:
    """Return the cameras of a `cameras.txt` by their id."""
    cameras = {}
    for number, line in content_lines(read_text(path)):
        tokens = line.split()
        if not tokens:
            continue
        where = f"{path}: line {number}"
        if len(tokens) < 5 or tokens[1] not in MODELS:
            raise InputError(
                f"{where}: found {' '.join(tokens[:4])}, expected CAMERA_ID MODEL WIDTH HEIGHT and "
                f"parameters, with a model of {', '.join(MODELS)}",
                fix="export the cameras again, best as PINHOLE",
            )
        columns, count = MODELS[tokens[1]]
        numbers = [
            parse_number(token, f"{where}, column {column}")
            for column, token in enumerate(tokens[2:], start=3)
        ]
        sides, parameters = numbers[:2], numbers[2:]
        if len(parameters) != count or min(sides) < 1:
            raise InputError(
                f"{where}: size {tokens[2]}x{tokens[3]} with {len(parameters)} parameters, "
                f"expected a size in pixels and {count} parameters for {tokens[1]}",
                fix="export the cameras again",
            )
        lens = [parameters[column] for column in columns]
        check_lens(np.array([lens]), source=str(path), labels=[f"line {number}"])
        size = ImageSize(round(sides[0]), round(sides[1]))
        cameras[tokens[0]] = ColmapCamera(tokens[1], size, lens, parameters[max(columns) + 1 :])
    return cameras


def _camera_of(
    row: ColmapImage, cameras: dict[str, ColmapCamera], images: Path, listed: Path
) -> ColmapCamera:
    if row.camera not in cameras:
        raise InputError(
            f"{images}: line {row.line} ({row.name}) names camera {row.camera}, which "
            f"{listed.name} does not hold (it has {', '.join(list(cameras)[:8]) or 'none'})",
            fix="use the two files of one model, or move the camera list away",
        )
    return cameras[row.camera]


def _warn_about_lenses(used: dict[str, ColmapCamera], path: Path, notes: Notes) -> None:
    """Warn for each camera in use that is no pinhole."""
    for name, camera in used.items():
        if "FISHEYE" in camera.model or camera.model == "FOV":
            notes.warn(
                f"{path}: camera {name} is {camera.model}, no pinhole: its focal lengths are used "
                "as if it were, so the picture will not fit; undistort the images first"
            )
        elif any(camera.distortion):
            terms = " ".join(f"{value:g}" for value in camera.distortion)
            notes.warn(
                f"{path}: camera {name} ({camera.model}): lens distortion {terms} ignored, the "
                "model's camera is a pinhole"
            )
