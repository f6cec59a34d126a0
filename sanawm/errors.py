"""Exceptions of sanawm. Each carries the exit code of the command line (see `exit_code`).

Every class also derives from the builtin that fits, so library users may catch either.
This module imports nothing heavy.
"""

from __future__ import annotations


class SanawmError(Exception):
    """Base of every error that sanawm raises on purpose.

    `message` says what is wrong, where, what was found and what was expected; `fix` says what to do
    about it. Both are shown to the user, in at most three lines and without a traceback.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return self.message if self.fix is None else f"{self.message}\n  fix: {self.fix}"


class UsageError(SanawmError, ValueError):
    """A flag, setting or argument has a value that cannot be used (exit 2)."""

    exit_code = 2


class InputError(UsageError):
    """A camera, latents, image, video, prompt, noise or config file is malformed (exit 2)."""


class MissingFile(SanawmError, FileNotFoundError):
    """A file or folder does not exist or cannot be read (exit 3)."""

    exit_code = 3


class CheckpointError(SanawmError, ValueError):
    """Weights are broken, incomplete, of another model, or not safe to load (exit 3)."""

    exit_code = 3


class MachineError(SanawmError, RuntimeError):
    """This machine cannot do it: no such device, out of memory, encoder missing (exit 4)."""

    exit_code = 4


class OutputError(SanawmError, OSError):
    """The output cannot be written: disk full, exists already, folder missing (exit 5)."""

    exit_code = 5


class OutputBusy(OutputError):
    """Another run is writing this output (exit 5)."""


class NumericsError(SanawmError, ArithmeticError):
    """A computed tensor holds NaN or infinity (exit 1)."""


class MissingCapturedKV(SanawmError, RuntimeError):
    """Captured keys and values were asked for that no pass in that mode has written (exit 1)."""


class IncompletePass(SanawmError, RuntimeError):
    """A pass ended before every attention layer had written its keys and values (exit 1)."""


class UnsupportedCaptureMode(UsageError):
    """A capture mode other than `pre_rope` and `post_rope` was named (exit 2)."""


class BlockOrderError(UsageError):
    """A block does not continue the stream: gap, repeat, other shape, or after the last block."""
