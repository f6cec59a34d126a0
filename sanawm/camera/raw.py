"""What a reader finds in a trajectory file, before anything is converted; and the text readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sanawm.errors import InputError
from sanawm.notes import counted

from .arrayfile import open_file
from .framing import ImageSize
from .geometry import Float64

CameraFormat = Literal[
    "npy", "npz", "nerfstudio", "camera-path", "blender", "colmap", "re10k", "tum", "kitti", "llff"
]
Convention = Literal["c2w", "w2c"]
Axes = Literal["opencv", "opengl"]

FORMATS: tuple[CameraFormat, ...] = get_args(CameraFormat)
#: One line for messages: what can be read.
FORMAT_LIST = (
    "NumPy .npy (F,4,4) or .npz, nerfstudio transforms.json or camera_path.json, Blender "
    "transforms.json, COLMAP images.txt, RealEstate10K, TUM or KITTI text, LLFF poses_bounds.npy"
)


#: Largest number taken from a file; positions and pixels beyond it are damage, not data.
LARGEST_NUMBER = 1e20


@dataclass(frozen=True, eq=False)
class RawPoses:
    """Matrices `(F, 4, 4)` float64 as a file holds them, with its own direction and axes.

    `labels` name each pose for messages (`frame 3`, `line 12`), `names` are image names to sort by.
    `intrinsics` `(F, 4)` are pixels of `size`; the other fields are those of `Trajectory`.
    """

    format: CameraFormat
    matrices: Float64
    convention: Convention
    axes: Axes
    labels: Sequence[str]
    names: Sequence[str] | None = None
    intrinsics: Float64 | None = None
    size: ImageSize | None = None
    fov_x_deg: float | None = None
    timestamps: Float64 | None = None


class NumberRow(NamedTuple):
    """Numbers of one text line; `line` counts from 1."""

    line: int
    values: list[float]


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file without its byte-order mark.

    Raises `MissingFile` when it cannot be opened and `InputError` when it is no UTF-8 text.
    """
    with open_file(path) as stream:
        head = stream.read(4096)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError(f"{path}: the text is UTF-16, expected UTF-8", fix="save it as UTF-8")
        if b"\0" in head:  # a wrong, perhaps huge file: do not read on
            raise InputError(
                f"{path}: binary data, expected a camera file: {FORMAT_LIST}",
                fix="check that this is the right file",
            )
        data = head + stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start} is no UTF-8 text; expected a camera file: {FORMAT_LIST}",
            fix="check that this is the right file",
        ) from error


def content_lines(text: str) -> list[tuple[int, str]]:
    """Return `(line number from 1, stripped line)` of every line that is no comment.

    Empty lines stay: they mean something in a COLMAP file.
    """
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(number, line) for number, line in lines if not line.startswith("#")]


def parse_number(token: str, where: str) -> float:
    """Return a finite number; raise `InputError` naming `where` otherwise."""
    try:
        value = float(token) if "_" not in token else math.nan
    except ValueError:
        value = math.nan
        if token.lower().lstrip("+-") not in ("nan", "inf", "infinity"):
            shown = token if len(token) <= 24 else token[:21] + "..."
            raise InputError(
                f"{where}: found {shown!r}, expected a number", fix="correct this line"
            ) from None
    if not abs(value) <= LARGEST_NUMBER:
        raise InputError(
            f"{where}: found {token[:24]}, expected {sound_number(value)}",
            fix="remove or repair this pose",
        )
    return value


def sound_number(value: float) -> str:
    """Return what was expected instead of `value`, a number that no file should hold."""
    return f"at most {LARGEST_NUMBER:g} either way" if math.isfinite(value) else "a finite number"


def read_number_rows(
    path: Path, *, columns: int, layout: str, skip_single: bool = False
) -> list[NumberRow]:
    """Return the rows of a text file in which every row has `columns` numbers.

    Separators are blanks or commas; comments (`#`) and empty lines are skipped, with `skip_single`
    also lines of a single word. Raises `InputError` naming the line, and the column, that is wrong;
    `layout` describes a row in that message.
    """
    rows = []
    for number, line in content_lines(read_text(path)):
        tokens = line.replace(",", " ").split()
        if not tokens or (skip_single and len(tokens) == 1):
            continue
        if len(tokens) != columns:
            raise InputError(
                f"{path}: line {number} has {counted(len(tokens), 'column')}, expected {columns}: "
                f"{layout}",
                fix="correct this line, or name the right --camera-format",
            )
        values = [
            parse_number(token, f"{path}: line {number}, column {column}")
            for column, token in enumerate(tokens, start=1)
        ]
        rows.append(NumberRow(number, values))
    if not rows:
        raise no_poses(path)
    return rows


def no_poses(path: Path) -> InputError:
    """Return the error for a file without a single pose."""
    return InputError(f"{path}: no poses in this file", fix="give a file with at least one pose")


def complete_poses(matrices: NDArray[np.floating]) -> Float64:
    """Return `(F, 4, 4)` float64 from `(F, 3, 4)` or `(F, 4, 4)`: the last row is appended."""
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks the values
        given = np.asarray(matrices, dtype=np.float64)
    if given.shape[1:] == (4, 4):
        return given
    last = np.broadcast_to(np.array([0.0, 0.0, 0.0, 1.0]), (len(given), 1, 4))
    return np.concatenate([given, last], axis=1)


def unify_sizes(intrinsics: Float64, sizes: Sequence[ImageSize]) -> tuple[Float64, ImageSize, bool]:
    """Return intrinsics `(F, 4)` in pixels of the first size, that size, and if one differed."""
    first = sizes[0]
    scale = np.array([[first.width / s.width, first.height / s.height] for s in sizes])
    return intrinsics * np.tile(scale, 2), first, any(size != first for size in sizes)
