"""Tell an unfinished file of sanawm from someone else's under the name that an output grows by.

An MP4 carries its tags, and latents count their frames, from the first byte on.
"""

from __future__ import annotations

import json
from pathlib import Path

from sanawm.errors import OutputError, SanawmError

from .files import part_path

#: Tag of a video whose writer was given none.
MADE_HERE = {"comment": "made by sanawm"}
#: Bytes at the beginning of a file that are looked at.
_HEAD = 1 << 16
#: Bytes of a file that was cut before its tags.
_FEW = 1 << 12
#: Boxes in front of the first frame of a growing MP4.
_BOXES = (b"ftyp", b"free", b"moov")
#: How a batch's report begins.
_ROW = b'{"id": '


def check_part(target: Path, *, overwrite: bool) -> None:
    """Raise `OutputError` when the name that `target` grows by is taken by someone else's file.

    With `overwrite` it may be replaced, but not if it is a folder.
    """
    part = part_path(target)
    if part.is_dir():
        raise refusal(target, "is a folder")
    if not overwrite and not is_ours(part):
        raise refusal(target, "was not made by sanawm")


def refusal(target: Path, why: str) -> OutputError:
    """Return the error for an output that cannot grow under its name."""
    return OutputError(
        f"{part_path(target)} exists and {why}; {target} would grow under this name",
        fix="move it away, or choose another name",
    )


def is_ours(part: Path) -> bool:
    """Tell whether a part file is missing, empty, or one that sanawm has begun."""
    try:
        if not part.exists() or part.stat().st_size == 0:
            return True
        if part.suffix.lower() == ".mp4":
            return _is_our_video(part)
        with part.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:  # a run that has just ended gave it its name
        return True
    except OSError:
        return False
    if part.suffix.lower() == ".safetensors":
        return _is_our_latents(head[8:])
    return _is_our_row(head)


def _is_our_video(part: Path) -> bool:
    from .remux import read_metadata

    try:
        tags = read_metadata(part)
    except SanawmError:
        return _is_torn_video(part)
    return "sanawm" in tags or tags.get("comment", "").startswith(MADE_HERE["comment"])


def _is_torn_video(part: Path) -> bool:
    """Tell whether an MP4 that cannot be read was begun here.

    It names sanawm near its begin, or it is no more than the beginning of a header: no frame is
    lost with it.
    """
    with part.open("rb") as file:
        head = file.read(_HEAD)
    if head[4:8] != _BOXES[0]:
        return False
    if b"sanawm" in head:
        return True
    at = 0
    while at < len(head):
        name = head[at + 4 : at + 8]
        if name == b"mdat":  # a finished file's data begin with the header that it grew with
            return _BOXES[0] in head[at + 8 : at + 24] and len(head) < _FEW
        if not any(box.startswith(name) for box in _BOXES):
            return False
        at += max(8, int.from_bytes(head[at : at + 4], "big"))
    return len(head) < _HEAD


def _is_our_latents(header: bytes) -> bool:
    """Tell whether a safetensors header, which may be torn, begins with the count of frames."""
    from .latents import WRITTEN_KEY

    return header.startswith(f'{{"__metadata__":{{"{WRITTEN_KEY}":"'.encode())


def _is_our_row(head: bytes) -> bool:
    """Tell whether a file begins like a report of a batch; its first row may be torn."""
    first, newline, _ = head.partition(b"\n")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return not newline and first.startswith(_ROW[: len(first)])
    return isinstance(row, dict) and {"id", "line", "status"} <= set(row)
