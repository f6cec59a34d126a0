"""Paths as users type them: what no file system takes is refused. Imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import UsageError

#: Longest file name that common file systems take, and longest path, in bytes.
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095


def check_path(text: str, *, where: str) -> None:
    """Raise `UsageError` when `text` can be no path; `where` names the flag or key it came from.

    Lengths are counted in bytes, as the file system does.
    """
    shown = ascii(text if len(text) <= 40 else text[:37] + "...")
    if "\0" in text:
        raise UsageError(f"{where}: the path {shown} holds a NUL character")
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{where}: the path {shown} is not valid Unicode text") from None
    longest = max(len(part) for part in raw.split(b"/"))
    if longest > MAX_NAME_BYTES or len(raw) > MAX_PATH_BYTES:
        raise UsageError(
            f"{where}: the path {shown} is too long: {len(raw)} bytes, a name in it {longest}; "
            f"expected at most {MAX_PATH_BYTES} and {MAX_NAME_BYTES}",
            fix="use a shorter path",
        )


def home_expanded(text: str, *, where: str) -> Path:
    """Return a path with `~` expanded. Raises `UsageError` for a user who does not exist."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{where}: {text}: there is no such user", fix="write the path in full"
        ) from None
