"""Trajectories in JSON: nerfstudio, instant-ngp and Blender transforms, viewer camera paths.

Matrices are camera-to-world with OpenGL axes. Layouts: `camera.md`, sections 7.2 to 7.4.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sanawm.errors import InputError
from sanawm.notes import Notes

from .framing import ImageSize
from .geometry import Float64
from .raw import (
    FORMAT_LIST,
    LARGEST_NUMBER,
    CameraFormat,
    RawPoses,
    complete_poses,
    no_poses,
    read_text,
    unify_sizes,
)

Json = dict[str, Any]
#: Lens distortion that a pinhole cannot represent.
DISTORTION_KEYS = ("k1", "k2", "k3", "k4", "p1", "p2")
#: Camera models that are a pinhole but for the distortion named above.
PINHOLE_MODELS = (
    "OPENCV", "FULL_OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "PERSPECTIVE"
)  # fmt: skip


def load_json(path: Path) -> Json:
    """Return the object in a JSON file; raise `InputError` naming line and column otherwise."""
    try:
        document = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: line {error.lineno}, column {error.colno}: no valid JSON: {error.msg}",
            fix="correct the file or export it again",
        ) from error
    except RecursionError as error:
        raise InputError(
            f"{path}: no usable JSON: its lists and objects are nested too deep",
            fix="check that this is the right file, or export it again",
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: no usable JSON: {error}", fix="export it again") from error
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: the JSON is a {type(document).__name__}, expected an object with frames or "
            "camera_path",
            fix=f"give one of: {FORMAT_LIST}",
        )
    return document


def detect_json(path: Path) -> CameraFormat:
    """Return which of the JSON layouts a file has; raise `InputError` when it has none."""
    document = load_json(path)
    if "camera_path" in document:
        return "camera-path"
    frames = document.get("frames")
    if not isinstance(frames, list):
        raise InputError(
            f"{path}: found the keys {', '.join(list(document)[:8]) or '(none)'}, expected frames "
            "or camera_path",
            fix=f"give one of: {FORMAT_LIST}",
        )
    has_focal = any("fl_x" in entry for entry in (document, *frames) if isinstance(entry, dict))
    return "blender" if "camera_angle_x" in document and not has_focal else "nerfstudio"


def read_transforms(
    path: Path, format: CameraFormat, *, image_size: ImageSize | None, notes: Notes
) -> RawPoses:
    """Read `transforms.json` as `nerfstudio` (focal lengths) or `blender` (one angle)."""
    document = load_json(path)
    frames = _entries(document, "frames", path)
    names = [str(entry.get("file_path", "")) for entry in frames]
    labels = [f"frame {i} ({name})" if name else f"frame {i}" for i, name in enumerate(names)]
    matrices = np.stack(
        [
            _matrix(entry, "transform_matrix", f"{path}: {label}")
            for entry, label in zip(frames, labels, strict=True)
        ]
    )
    lens: Float64 | None = None
    size: ImageSize | None = None
    fov: float | None = None
    if format == "blender":
        lens, size, fov = _lens_of_angle(document, len(frames), path, image_size)
    elif any("fl_x" in entry for entry in (document, *frames)):
        lens, size = _lens_of_focals(document, frames, labels, path, image_size, notes)
    _warn_about_model(document, frames, path, notes)
    if not all(names):
        notes.warn(f"{path}: frames without file_path: the file's own order is used")
    return RawPoses(
        format, matrices, "c2w", "opengl", labels, names if all(names) else None, lens, size, fov
    )


def read_camera_path(path: Path, *, image_size: ImageSize | None, notes: Notes) -> RawPoses:
    """Read a nerfstudio viewer path: 16 numbers a pose, vertical field of view, frames a second."""
    document = load_json(path)
    entries = _entries(document, "camera_path", path)
    labels = [f"pose {number}" for number in range(len(entries))]
    pairs = list(zip(entries, labels, strict=True))
    matrices = np.stack([_matrix(e, "camera_to_world", f"{path}: {where}") for e, where in pairs])
    size = _size(document, "render_width", "render_height", str(path)) or image_size
    lens: Float64 | None = None
    if any("fov" in entry for entry in entries):
        if size is None:
            raise InputError(
                f"{path}: fov without render_width and render_height",
                fix="add both to the file, or give an image",
            )
        angles = [_number(e, "fov", f"{path}: {where}", above=0, below=180) for e, where in pairs]
        focal = [0.5 * size.height / math.tan(math.radians(angle) / 2) for angle in angles]
        lens = np.array([[f, f, size.width / 2, size.height / 2] for f in focal])
    _warn_about_model(document, entries, path, notes)
    seconds: Float64 | None = None
    if "fps" in document:
        seconds = np.arange(len(entries)) / _number(document, "fps", str(path), above=0)
    elif "seconds" in document and len(entries) > 1:
        step = _number(document, "seconds", str(path), above=0) / len(entries)
        seconds = np.arange(len(entries), dtype=np.float64) * step
    return RawPoses(
        "camera-path", matrices, "c2w", "opengl", labels, None, lens, size, timestamps=seconds
    )


def _entries(document: Json, key: str, path: Path) -> list[Json]:
    """Return the list of objects under `key`; raise `InputError` when it is none or empty."""
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"{path}: found no list of objects under {key}",
            fix="name the right --camera-format, or export the file again",
        )
    if not entries:
        raise no_poses(path)
    return entries


def _matrix(entry: Json, key: str, where: str) -> Float64:
    """Return the 4x4 matrix under `key`: rows, or 16 numbers row by row."""
    value: Any = entry.get(key)
    try:
        flat = [n for row in value for n in (row if isinstance(row, list) else [row])]
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in flat):
            raise TypeError
        matrix = np.array([float(n) for n in flat]).reshape(1, -1, 4)
        if matrix.shape[1] not in (3, 4):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        found = "nothing" if value is None else "something else"
        raise InputError(
            f"{where}: found {found} under {key}, expected 4 rows of 4 numbers",
            fix="export the file again",
        ) from None
    return complete_poses(matrix)[0]


def _number(
    entry: Json, key: str, where: str, *, above: float = -math.inf, below: float = math.inf
) -> float:
    """Return a finite number between two bounds; raise `InputError` otherwise."""
    value = entry.get(key)
    bounds = f" above {above:g}" * (above > -math.inf) + f" below {below:g}" * (below < math.inf)
    if key not in entry:
        raise InputError(
            f"{where}: {key} is missing, expected a number{bounds}", fix=f"add {key} to the file"
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if above < number < below and abs(number) <= LARGEST_NUMBER:
            return number
    raise InputError(
        f"{where}: {key} is {value!r}, expected a number{bounds}", fix="correct this value"
    )


def _size(entry: Json, width: str, height: str, where: str) -> ImageSize | None:
    """Return the size under two keys, None when neither is there."""
    if width not in entry and height not in entry:
        return None
    for key, other in ((width, height), (height, width)):
        if key not in entry:
            raise InputError(
                f"{where}: {key} is missing beside {other}, expected both or neither",
                fix=f"add {key} to the file",
            )
    sides = [_number(entry, key, where, above=0.5) for key in (width, height)]
    return ImageSize(round(sides[0]), round(sides[1]))


def _lens_of_angle(
    document: Json, frames: int, path: Path, image_size: ImageSize | None
) -> tuple[Float64 | None, ImageSize | None, float | None]:
    """Return intrinsics and size of `camera_angle_x`, or the angle in degrees without a size."""
    angle = _number(document, "camera_angle_x", str(path), above=0, below=math.pi)
    size = _size(document, "w", "h", str(path)) or image_size
    if size is None:
        return None, None, math.degrees(angle)
    focal = 0.5 * size.width / math.tan(angle / 2)
    row = [focal, focal, size.width / 2, size.height / 2]
    return np.tile(np.array(row), (frames, 1)), size, None


def _lens_of_focals(
    document: Json,
    frames: list[Json],
    labels: list[str],
    path: Path,
    image_size: ImageSize | None,
    notes: Notes,
) -> tuple[Float64, ImageSize | None]:
    """Return intrinsics `(F, 4)` of `fl_x fl_y cx cy w h`, each from the frame or from the top."""
    keys = {"fl_x", "fl_y", "cx", "cy", "w", "h"}
    rows, sizes = [], []
    for frame, label in zip(frames, labels, strict=True):
        where = f"{path}: {label}"
        merged: Json = {
            key: entry[key] for entry in (document, frame) for key in keys & entry.keys()
        }
        head = f"{path}: the top of the file"
        size = _size(merged, "w", "h", where if {"w", "h"} & frame.keys() else head) or image_size
        if size is None and not {"cx", "cy"} <= merged.keys():
            raise InputError(
                f"{where}: fl_x without cx, cy and without w, h", fix="add w and h to the file"
            )
        half = (size.width / 2, size.height / 2) if size else (0.0, 0.0)
        merged = {"fl_y": merged.get("fl_x"), "cx": half[0], "cy": half[1]} | merged
        rows.append(
            [_number(merged, key, where, above=0) for key in ("fl_x", "fl_y")]
            + [_number(merged, key, where) for key in ("cx", "cy")]
        )
        sizes.append(size)
    lens = np.array(rows)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return lens, None
    lens, size, mixed = unify_sizes(lens, known)
    if mixed:
        notes.info(f"{path}: frames of several sizes, their intrinsics are brought to {size}")
    return lens, size


def _warn_about_model(document: Json, frames: list[Json], path: Path, notes: Notes) -> None:
    """Warn about distortion and about cameras that are no pinhole."""
    found: dict[str, float] = {}
    for entry in (document, *frames):
        for key in DISTORTION_KEYS:
            value = entry.get(key)
            if isinstance(value, int | float) and value != 0:
                found.setdefault(key, value)
    if found:
        terms = " ".join(f"{key}={value:g}" for key, value in found.items())
        notes.warn(f"{path}: lens distortion {terms} ignored, the model's camera is a pinhole")
    model = document.get("camera_model", document.get("camera_type"))
    if document.get("is_fisheye") is True:
        model = "fisheye"
    if isinstance(model, str) and model.upper() not in PINHOLE_MODELS:
        notes.warn(
            f"{path}: camera model {model} is no pinhole: its focal lengths are used as if it "
            "were, so the picture will not fit; undistort the images first"
        )
