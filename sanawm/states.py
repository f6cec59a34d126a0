"""States of the stages between blocks: handed out when a run continues, collected while it runs.

A run state is the state of every stage after the same block. Stages may be at different blocks when
they overlap, so each hands over a snapshot as it finishes a block; once the block's frames are in
the file, its snapshots are written together, in a thread of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Lock, Thread
from typing import Any

from .errors import InputError, SanawmError, UsageError
from .io.files import write_error
from .io.run_state import load_state, save_state
from .notes import Notes
from .tensorfile import short

#: Characters of a value that a message shows.
SHOWN = 60
#: Row of the recipe that stands for the prompt.
PROMPT_KEY = "prompt (sha256)"
#: Blocks whose snapshots may wait to be written; further ones are skipped meanwhile.
IN_FLIGHT = 2

State = Mapping[str, Any]


class UnusableState(InputError):
    """A saved run state is broken, or belongs to another run (exit 2)."""


#: What reading a state raises that is whole but does not hold what it should.
BAD_CONTENT = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError,
)  # fmt: skip


def incomplete(path: Path, what: str) -> UnusableState:
    """Return the error for a state that is whole but does not hold what it should."""
    return UnusableState(
        f"run state {path}: it is not that of such a run ({what})", fix="start without --resume"
    )


class StageStates:
    """States of a run that is neither continued nor kept: the default everywhere."""

    #: Blocks that are finished already.
    done = 0
    #: Where the states are kept.
    path: Path | None = None

    def restore(self, stage: str, load: Callable[[State], None]) -> bool:
        """Give `load` the state that `stage` continues from; return False for a fresh start."""
        return False

    def passed(self, stage: str, number: int, state: Callable[[], State]) -> None:
        """Take note that `stage` has finished block `number`; `state` makes its snapshot."""


NO_STATES = StageStates()


class RunStates(StageStates):
    """Keep the states of a run in `path`, every `every` blocks, and continue from a saved one.

    recipe: everything that fixes the result, as a flat table; a saved state with another recipe is
    refused. `expected` names the stages whose snapshots make a whole state.
    """

    def __init__(
        self,
        path: Path,
        *,
        every: int,
        recipe: State,
        expected: tuple[str, ...],
        notes: Notes,
        saved: State | None = None,
        on_saved: Callable[[int, int], None] = lambda block, size: None,
    ) -> None:
        self.path: Path = path
        self.every = every
        self.recipe = recipe
        self.expected = expected
        self.notes = notes
        self.done = 0 if saved is None else int(saved["block"]) + 1
        self.saved = saved
        #: Time from begin to end of all work on states, in every thread together.
        self.seconds = 0.0
        #: What of it the run pays for: waits in its own thread, processor time in the others.
        self.cost_seconds = 0.0
        self.bytes = 0
        self._on_saved = on_saved
        self._pending: dict[int, dict[str, State]] = {}
        self._lock = Lock()
        self._failed = False
        self._queue: Queue[tuple[int, dict[str, Any]] | None] = Queue()
        self._thread = Thread(target=self._work, name="sanawm-state", daemon=True)
        self._thread.start()

    def restore(self, stage: str, load: Callable[[State], None]) -> bool:
        """Give `load` the saved state of `stage`, if the run is continued.

        Raises `UnusableState` when it is missing, or not what `load` expects.
        """
        if self.saved is None:
            return False
        try:
            load(self.saved["stages"][stage])
        except UsageError as e:
            raise UnusableState(f"run state {self.path}: {e.message}", fix=e.fix) from None
        except BAD_CONTENT as e:
            raise incomplete(self.path, f"{stage}: {short(e)}") from None
        return True

    def passed(self, stage: str, number: int, state: Callable[[], State]) -> None:
        """Keep the snapshot of a stage after a block that will be saved.

        The first stage to finish a block decides whether it is one.
        """
        with self._lock:
            chosen = self._pending.get(number)
            if chosen is None:
                due = (number + 1) % self.every == 0 and len(self._pending) < IN_FLIGHT
                if not due or self._failed or stage != self.expected[0]:
                    return
                chosen = self._pending[number] = {}
        began = time.monotonic()
        snapshot = dict(state())
        with self._lock:
            chosen[stage] = snapshot
            self.seconds += time.monotonic() - began
            self.cost_seconds += time.monotonic() - began

    def written(self, number: int, extra: Callable[[], State], *, sync: Callable[[], None]) -> None:
        """Save block `number`, whose frames are in the file now. Called in the writer's thread.

        `extra` gives what the run itself keeps; `sync` flushes the outputs to the disk first, so
        that a state is never ahead of them.
        """
        with self._lock:
            chosen = self._pending.get(number)
        if chosen is None:
            return
        if set(chosen) != set(self.expected):
            self._drop(number)
            return
        with self._timed():
            sync()
        state = {"block": number, "recipe": self.recipe, "stages": chosen, **extra()}
        self._queue.put((number, state))

    def close(self, *, seconds: float | None = None) -> None:
        """Finish writing; give up after `seconds`, if given: the state before it stays whole."""
        self._queue.put(None)
        self._thread.join(seconds)

    def remove(self) -> None:
        """Delete the state of a run that is complete."""
        self.path.unlink(missing_ok=True)

    def _drop(self, number: int) -> None:
        with self._lock:
            self._pending.pop(number, None)

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            number, state = entry
            try:
                with self._timed():
                    self.bytes = save_state(self.path, state)
                self._on_saved(number, self.bytes)
            except (SanawmError, OSError) as error:
                self._failed = True
                why = error.message if isinstance(error, SanawmError) else str(error)
                self.notes.warn(
                    f"the run state cannot be kept ({why}); the run goes on, but --resume will "
                    "start from the last state that was written"
                )
            finally:
                self._drop(number)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time that the body takes in this thread, which is not that of the stages."""
        wall, processor = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self.seconds += time.monotonic() - wall
                self.cost_seconds += time.thread_time() - processor


def read_saved(path: Path, recipe: State, *, prompt: str | None = None) -> State | None:
    """Return the run state in `path` for a run of `recipe`, or None when there is none.

    Raises `UnusableState` naming every difference between the saved recipe and this one; `prompt`,
    the text itself if there is one, is compared with the saved one in words.
    """
    if not path.exists():
        return None
    try:
        saved = load_state(path)
    except InputError as e:
        raise UnusableState(e.message, fix=e.fix) from None
    try:
        found = dict(saved["recipe"])
        int(saved["block"])
        if not isinstance(saved["stages"], Mapping):
            raise TypeError("stages")
    except BAD_CONTENT as e:
        raise incomplete(path, short(e)) from None
    texts = {PROMPT_KEY: (prompt, saved.get("prompt"))}
    differences = [
        _difference(key, *texts.get(key, (None, None)), recipe.get(key), found.get(key))
        for key in sorted({*found, *recipe})
        if found.get(key) != recipe.get(key)
    ]
    if differences:
        more = f"; and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise UnusableState(
            f"{path} belongs to another run: {'; '.join(differences[:4])}{more}",
            fix="repeat the command of the saved run with --resume, or start without --resume",
        )
    return saved


def sync_file(path: Path | None) -> None:
    """Flush a file's data to the disk, so that it outlives a power cut.

    Nothing is done for a file that is not there. Raises `OutputError` naming the file.
    """
    if path is None:
        return
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(path, error) from None


def _difference(key: str, text: object, saved_text: object, value: object, saved: object) -> str:
    """Say how one row of the recipe differs: by its texts where they are known, else its values."""
    if isinstance(text, str) and isinstance(saved_text, str):
        now, then = _where_they_differ(text, saved_text)
        return f"{key.partition(' (')[0]} is {now!r} now, {then!r} in the saved run"
    if isinstance(value, str) and isinstance(saved, str) and key.endswith(("(sha256)", "(hash)")):
        name, _, kind = key.partition(" (")
        return (
            f"{name} is another now ({kind.rstrip(')')} {value[:12]}, "
            f"{saved[:12]} in the saved run)"
        )
    return f"{key} is {_short(value)} now, {_short(saved)} in the saved run"


def _where_they_differ(a: str, b: str) -> tuple[str, str]:
    """Return two texts cut to the part around their first difference."""
    pairs = enumerate(zip(a, b, strict=False))
    same = next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
    start = 0 if same <= SHOWN // 2 else same - SHOWN // 3
    shown = [
        f"{'...' * bool(start)}{text[start : start + SHOWN]}{'...' * (len(text) > start + SHOWN)}"
        for text in (a, b)
    ]
    return shown[0], shown[1]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
