"""Write a trajectory as NumPy, nerfstudio, COLMAP, RealEstate10K, TUM or KITTI.

Numbers are written with all their digits, so a file read back gives the same poses.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from sanawm.errors import OutputError, UsageError
from sanawm.notes import Notes

from .framing import ImageSize, scale_intrinsics
from .geometry import GL_TO_CV, Float64, invert_poses, quaternions_from_rotations
from .intrinsics import intrinsics_of_fov
from .motion import centred_size
from .trajectory import FRACTIONS, Trajectory

OutputFormat = Literal["npy", "nerfstudio", "colmap", "re10k", "tum", "kitti"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
#: Formats that hold intrinsics; the first one can do without.
WITH_LENS = ("nerfstudio", "colmap", "re10k")
#: Formats that hold the time of each pose.
WITH_TIME = ("re10k", "tum")


def save_trajectory(
    trajectory: Trajectory,
    path: Path,
    *,
    to: str | None = None,
    size: ImageSize | None = None,
    fps: float = 16.0,
    overwrite: bool = False,
    notes: Notes,
) -> Path:
    """Write a trajectory and return the file, or the folder of a COLMAP model.

    `to` names the format; without it `.npy` is NumPy, `.json` nerfstudio, and a name without suffix
    a COLMAP folder. `size` is the picture whose pixels the intrinsics are in, needed only where the
    trajectory does not know it. Frames without timestamps are `1 / fps` seconds apart.

    Raises `UsageError` when the format cannot be told or needs intrinsics that are not there, and
    `OutputError` when the file exists (without `overwrite`) or cannot be written.
    """
    kind = _output_format(path, to)
    if kind == "colmap" and path.name == "images.txt":
        path = path.parent
    lens = _lens_of(trajectory, kind, size, notes)
    seconds = _seconds_of(trajectory, kind, fps, notes)
    poses = trajectory.poses.astype(np.float64)
    files: dict[Path, bytes]
    if kind == "npy":
        files = {path: _npy(trajectory)}
    elif kind == "nerfstudio":
        files = {path: _nerfstudio(poses, lens)}
    elif kind == "tum":
        files = {path: _tum(poses, seconds)}
    elif kind == "kitti":
        files = {path: _lines(_numbers(row) for row in poses[:, :3].reshape(-1, 12))}
    else:
        assert lens is not None  # _lens_of has refused
        if kind == "re10k":
            files = {path: _re10k(poses, lens, seconds)}
        else:
            files = {path / name: text for name, text in _colmap(poses, lens).items()}
    _write(files, overwrite=overwrite)
    return path


def _output_format(path: Path, to: str | None) -> OutputFormat:
    """Return the format to write, from `to` or from the file name."""
    if to is not None:
        for name in OUTPUT_FORMATS:
            if name == to:
                return name
        raise UsageError(
            f"output format {to!r} does not exist", fix=f"use one of {', '.join(OUTPUT_FORMATS)}"
        )
    if path.name == "images.txt" or not path.suffix:
        return "colmap"
    if path.suffix.lower() in (".npy", ".json"):
        return "npy" if path.suffix.lower() == ".npy" else "nerfstudio"
    raise UsageError(
        f"{path}: the suffix {path.suffix} does not tell the format",
        fix=f"name it with --to {'|'.join(OUTPUT_FORMATS)}",
    )


class _Lens:
    """Intrinsics `(F, 4)` float64 in pixels of a picture of `size`."""

    def __init__(self, rows: Float64, size: ImageSize) -> None:
        self.rows = rows
        self.size = size

    @property
    def fixed(self) -> bool:
        """Whether all frames share one lens."""
        return bool((self.rows == self.rows[0]).all())


def _lens_of(
    trajectory: Trajectory, kind: str, size: ImageSize | None, notes: Notes
) -> _Lens | None:
    """Return the lens to write, None for a file without one; note what is left out or assumed."""
    rows, known = trajectory.intrinsics, trajectory.source_size
    if kind not in WITH_LENS:
        if rows is not None or trajectory.fov_x_deg is not None:
            notes.info(
                f"{kind} files hold no intrinsics: those of {trajectory.source} are left out"
            )
        return None
    if rows is None and trajectory.fov_x_deg is not None and size is not None:
        row = intrinsics_of_fov(trajectory.fov_x_deg, size)
        rows, known = np.repeat(row, len(trajectory), axis=0), size
    if rows is None:
        if kind != "nerfstudio":
            raise UsageError(
                f"{kind} files hold intrinsics, but {trajectory.source} has none",
                fix="add --intrinsics fx,fy,cx,cy, or --fov-x DEGREES with --width and --height; "
                "or write npy, tum, kitti or nerfstudio",
            )
        notes.warn(f"{trajectory.source}: no intrinsics to write, the file holds poses alone")
        return None
    if known == FRACTIONS and kind != "re10k":
        if size is None:
            raise UsageError(
                f"{trajectory.source} gives its lens as fractions of a picture of unknown size",
                fix="say the size of the picture, or write re10k, npy, tum or kitti",
            )
        rows, known = scale_intrinsics(rows, size.width, size.height), size
    elif known is None:
        known = size or centred_size(trajectory)
        if size is None:
            notes.warn(
                f"{trajectory.source}: the picture's size is not known; {known} is written, which "
                "puts the principal point in the middle"
            )
    return _Lens(rows.astype(np.float64), known)


def _seconds_of(trajectory: Trajectory, kind: str, fps: float, notes: Notes) -> Float64:
    """Return the times to write `(F,)`; note when a file without times would have had others."""
    even = np.arange(len(trajectory)) / fps
    if trajectory.timestamps is None:
        return even
    own = trajectory.timestamps - trajectory.timestamps[0]
    if kind not in WITH_TIME and np.abs(own - even).max() > 0.5 / fps:
        notes.info(f"{kind} files hold no times: those of {trajectory.source} are left out")
    return trajectory.timestamps


def _npy(trajectory: Trajectory) -> bytes:
    stream = io.BytesIO()
    np.save(stream, trajectory.poses, allow_pickle=False)
    return stream.getvalue()


def _nerfstudio(poses: Float64, lens: _Lens | None) -> bytes:
    document: dict[str, object] = {"camera_model": "OPENCV"}
    frames: list[dict[str, object]] = []
    for number, pose in enumerate(poses @ GL_TO_CV):
        frames.append({"file_path": f"images/{_name(number)}", "transform_matrix": pose.tolist()})
    if lens is not None:
        document |= {"w": lens.size.width, "h": lens.size.height}
        keys = ("fl_x", "fl_y", "cx", "cy")
        if lens.fixed:
            document |= zip(keys, lens.rows[0].tolist(), strict=True)
        else:
            for frame, row in zip(frames, lens.rows.tolist(), strict=True):
                frame |= zip(keys, row, strict=True)
    document["frames"] = frames
    return (json.dumps(document, indent=1) + "\n").encode()


def _tum(poses: Float64, seconds: Float64) -> bytes:
    quaternions = quaternions_from_rotations(poses[:, :3, :3])[:, [1, 2, 3, 0]]
    rows = np.column_stack([seconds, poses[:, :3, 3], quaternions])
    return _lines(["# timestamp tx ty tz qx qy qz qw", *(_numbers(row) for row in rows)])


def _re10k(poses: Float64, lens: _Lens, seconds: Float64) -> bytes:
    fractions = lens.rows / np.tile(np.array(lens.size, dtype=np.float64), 2)
    w2c = invert_poses(poses)[:, :3].reshape(-1, 12)
    lines = ["sanawm-trajectory"]
    for second, fraction, matrix in zip(seconds, fractions, w2c, strict=True):
        lines.append(f"{round(second * 1e6)} {_numbers(fraction)} 0 0 {_numbers(matrix)}")
    return _lines(lines)


def _colmap(poses: Float64, lens: _Lens) -> dict[str, bytes]:
    w2c = invert_poses(poses)
    quaternions = quaternions_from_rotations(w2c[:, :3, :3])
    images = ["# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME", "# POINTS2D[]: none"]
    for number, (quaternion, pose) in enumerate(zip(quaternions, w2c, strict=True)):
        numbers = _numbers([*quaternion, *pose[:3, 3]])
        camera = 1 if lens.fixed else number + 1
        images += [f"{number + 1} {numbers} {camera} {_name(number)}", ""]
    cameras = ["# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]"]
    for number, row in enumerate(lens.rows[:1] if lens.fixed else lens.rows, start=1):
        cameras.append(f"{number} PINHOLE {lens.size.width} {lens.size.height} {_numbers(row)}")
    points = ["# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[]: none"]
    return {
        "images.txt": _lines(images),
        "cameras.txt": _lines(cameras),
        "points3D.txt": _lines(points),
    }


def _name(number: int) -> str:
    return f"frame_{number:05d}.png"


def _numbers(values: Iterable[float]) -> str:
    return " ".join(repr(float(value)) for value in values)


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _write(files: dict[Path, bytes], *, overwrite: bool) -> None:
    """Write each file under a temporary name and rename it."""
    for path in files:
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists already", fix="choose another name or overwrite it")
    for path, data in files.items():
        part = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise OutputError(
                f"{path}: cannot be written: {error.strerror or error}",
                fix="check the folder and the free space",
            ) from error
