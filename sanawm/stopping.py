"""Ending a run before its end: what is raised, and how the user is told to go on."""

from __future__ import annotations

import shlex
from pathlib import Path

from .errors import SanawmError


class Interrupted(SanawmError):
    """The run was asked to stop; what was finished is on disk."""

    def __init__(self, message: str, *, exit_code: int, fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.exit_code = exit_code


def interrupted(done: int, blocks: int, *, code: int, fix: str) -> Interrupted:
    """Return the error of a run that stops after `done` of its `blocks`."""
    where = f"after block {done} of {blocks}; what was finished is kept"
    return Interrupted(
        f"interrupted {where if done else 'before the first block'}", exit_code=code, fix=fix
    )


def was_stopped(
    error: BaseException, done: int, blocks: int, *, command: list[str], state: Path | None
) -> bool:
    """Tell whether `error` ends a run that was asked to stop.

    An interrupt in the middle of a block gets the words of one that came between two, which
    `as_interrupted` reads. state: where the run state to continue from lies, if one was written.
    """
    if isinstance(error, KeyboardInterrupt):
        fix = how_to_go_on(command, resumable=state is not None and state.exists())
        error.args = (interrupted(done, blocks, code=130, fix=fix).message, fix)
    return isinstance(error, Interrupted | KeyboardInterrupt)


def as_interrupted(
    interrupt: KeyboardInterrupt, *, code: int, kept: str = "", fix: str | None = None
) -> Interrupted:
    """Return an interrupt as an error; `kept` and `fix` are for one without words of its own."""
    if len(interrupt.args) == 2:
        message, fix = interrupt.args
        return Interrupted(str(message), exit_code=code, fix=fix)
    return Interrupted(f"interrupted{kept and '; '}{kept}", exit_code=code, fix=fix)


def how_to_go_on(command: list[str], *, resumable: bool) -> str:
    """Return what to type to continue the run that `command` started."""
    if not resumable:
        return "run the same command again with --overwrite to make the whole clip"
    words = [w for w in command[1:] if w != "--resume"]
    name = Path(command[0]).name
    called = ["python", "-m", "sanawm"] if name == "__main__.py" else [name]
    return f"continue with: {shlex.join([*called, *words, '--resume'])}"
