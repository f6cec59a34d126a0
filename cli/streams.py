"""Keep the standard streams usable: closed by the caller, of another encoding, reader gone."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

_ERRORS = "sanawm"


def prepare_streams() -> None:
    """Make stdout and stderr take every text; call it before any file is opened."""
    _open_closed()
    codecs.register_error(_ERRORS, _printable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _open_closed() -> None:
    """Point closed stdin, stdout and stderr at nothing, before a file of ours gets their number.

    A video opened as number 2 would get what libraries print to stderr.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nothing())


def silence(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter's own flush at exit does not fail."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, number)
    os.close(devnull)


def _nothing() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _printable(error: UnicodeError) -> tuple[bytes, int]:
    """Encode what a stream cannot: bytes of file names as they are, the rest as `\\u…`."""
    assert isinstance(error, UnicodeEncodeError)
    raw = b""
    for c in error.object[error.start : error.end]:
        escaped = 0xDC80 <= ord(c) <= 0xDCFF  # a byte of a name that is not UTF-8
        raw += bytes([ord(c) - 0xDC00]) if escaped else c.encode("ascii", "backslashreplace")
    return raw, error.end
