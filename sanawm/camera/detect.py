"""Find the format of a trajectory file by its content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from sanawm.errors import InputError, UsageError
from sanawm.notes import counted

from .arrayfile import NPY_MAGIC, ZIP_MAGIC, npy_shape, open_file
from .raw import FORMAT_LIST, FORMATS, CameraFormat, content_lines, read_text
from .read_arrays import LLFF_COLUMNS
from .read_json import detect_json

#: Columns of the text formats with one pose a line.
COLUMNS: dict[int, CameraFormat] = {19: "re10k", 12: "kitti", 8: "tum"}


def resolve_format(path: Path, camera_format: str | None = None) -> tuple[Path, CameraFormat]:
    """Return the file to read and its format, found by content unless `camera_format` names it.

    A folder stands for its `images.txt` (COLMAP) or `transforms.json`.
    """
    if path.is_dir():
        path = _file_in_folder(path)
    if camera_format is None:
        return path, detect_format(path)
    if camera_format not in FORMATS:
        near = get_close_matches(camera_format, FORMATS, n=1)
        raise UsageError(
            f"camera format {camera_format!r} does not exist",
            fix=f"use {near[0]}" if near else f"use one of {', '.join(FORMATS)}",
        )
    return path, camera_format


def detect_format(path: Path) -> CameraFormat:
    """Return the format of a trajectory file by its content; raise `InputError` when unknown."""
    if path.name in ("images.bin", "cameras.bin"):
        raise _binary_model(path)
    with open_file(path) as stream:
        head = stream.read(4096)
    if not head:
        raise InputError(f"{path}: the file is empty", fix=f"give one of: {FORMAT_LIST}")
    if head.startswith(NPY_MAGIC):
        return "llff" if npy_shape(path)[1:] == (LLFF_COLUMNS,) else "npy"
    if head.startswith(ZIP_MAGIC):
        return "npz"
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return detect_json(path)
    return _detect_text(path)


def _detect_text(path: Path) -> CameraFormat:
    """Return the text format by comments, then by the number of columns that most lines have."""
    text = read_text(path)
    comments = " ".join(line for line in text.splitlines()[:16] if line.startswith("#"))
    if "MODEL" in comments and "PARAMS" in comments:
        raise InputError(
            f"{path}: this is COLMAP's camera list, it holds no poses",
            fix="give images.txt or the folder that holds both",
        )
    rows = [line.split() for _, line in content_lines(text) if line]
    if path.name == "images.txt" or "IMAGE_ID" in comments or (rows and _is_image_line(rows[0])):
        return "colmap"
    counts = Counter(len(" ".join(row).replace(",", " ").split()) for row in rows if len(row) > 1)
    counts += Counter(row[0].count(",") + 1 for row in rows if len(row) == 1 and "," in row[0])
    columns = counts.most_common(1)[0][0] if counts else 0
    if columns in COLUMNS:
        return COLUMNS[columns]
    found = f"{counted(columns, 'column')} a line" if columns else "no rows of numbers"
    raise InputError(
        f"{path}: {found}: no trajectory that can be read; expected {FORMAT_LIST}",
        fix="save the poses with numpy.save as (F,4,4), or use one of these formats",
    )


def _is_image_line(tokens: Sequence[str]) -> bool:
    """Return whether a line can be a COLMAP image line: ten columns, the last one a name."""
    number = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf)", re.IGNORECASE)
    return (
        len(tokens) >= 10
        and tokens[0].isdigit()
        and tokens[8].isdigit()
        and all(number.fullmatch(token) for token in tokens[1:8])
        and number.fullmatch(tokens[-1]) is None
    )


def _file_in_folder(folder: Path) -> Path:
    for name in ("images.txt", "transforms.json"):
        if (folder / name).is_file():
            return folder / name
    if (folder / "images.bin").is_file():
        raise _binary_model(folder / "images.bin")
    for inner in (folder / "sparse" / "0", folder / "sparse"):
        if (inner / "images.txt").is_file() or (inner / "images.bin").is_file():
            raise InputError(
                f"{folder}: a folder without images.txt (COLMAP) or transforms.json (nerfstudio); "
                f"its COLMAP model lies in {inner.relative_to(folder)}",
                fix=f"name {inner}",
            )
    raise InputError(
        f"{folder}: a folder without images.txt (COLMAP) or transforms.json (nerfstudio)",
        fix=f"give the file itself: {FORMAT_LIST}",
    )


def _binary_model(path: Path) -> InputError:
    return InputError(
        f"{path}: a binary COLMAP model, expected the text model",
        fix="colmap model_converter --input_path DIR --output_path OUT --output_type TXT",
    )
