"""Keep the standard streams usable: closed by the caller, or their reader gone."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def open_closed_streams() -> None:
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
