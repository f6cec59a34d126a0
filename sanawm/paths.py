"""Paths as users type them: what no file system takes is refused. Imports nothing heavy."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import UsageError

#: Longest file name that common file systems take, and longest path, in bytes.
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095


def check_path(text: str, *, where: str, pipe: bool = False) -> None:
    """Raise `UsageError` when `text` can be no file; `where` names the flag or key it came from.

    Lengths are counted in bytes, as the file system does. Devices are refused: `/dev/zero` never
    ends, and what is written to `/dev/full` never arrives. So are pipes, unless `pipe` says that
    the file is read once, from begin to end.
    """
    shown = short_path(text)
    if "\0" in text:
        raise UsageError(f"{where}: the path {shown} holds a NUL character", fix="correct the path")
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(
            f"{where}: the path {shown} is not valid Unicode text", fix="correct the path"
        ) from None
    longest = max(len(part) for part in raw.split(b"/"))
    if longest > MAX_NAME_BYTES or len(raw) > MAX_PATH_BYTES:
        raise UsageError(
            f"{where}: the path {shown} is too long: {len(raw)} bytes, a name in it {longest}; "
            f"expected at most {MAX_PATH_BYTES} and {MAX_NAME_BYTES}",
            fix="use a shorter path",
        )
    special = _special(text)
    if special and not (pipe and special == "a pipe"):
        raise UsageError(f"{where}: {shown} is {special}, expected a file", fix="name a file")


def short_path(text: str) -> str:
    """Return a path in quotes for a message, cut at 40 characters, all of them ASCII."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def real_path(path: Path) -> Path:
    """Return a path with its links followed; those that lead in a circle are left as they are.

    `Path.resolve` ends such a circle with an exception that is no `OSError`.
    """
    return Path(os.path.realpath(path))


def _special(text: str) -> str:
    """Return what a path leads to when it is neither file nor folder; empty when it is."""
    try:
        mode = Path(text).stat().st_mode
    except OSError:
        return ""
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else ""


def home_expanded(text: str, *, where: str) -> Path:
    """Return a path with `~` expanded. Raises `UsageError` for a user who does not exist."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{where}: {text}: there is no such user", fix="write the path in full"
        ) from None
