"""What the commands share: settings from flags, the cache folder, and stopping on a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from sanawm.config import DEFAULT_PRESET, Resolved, resolve
from sanawm.events import Event
from sanawm.stopping import as_interrupted

from .console import Console
from .params import Flag, given


def settings_of(values: dict[str, Any], flags: Iterable[Flag], console: Console) -> Resolved:
    """Return the settings that a command's flags ask for."""
    configs = values.get("config") or []
    if not configs:
        configs = [DEFAULT_PRESET]
        console.notes.info(f"no -c given: using the embedded preset {DEFAULT_PRESET!r}")
    return resolve(configs, sets=values.get("set_") or [], flags=given(flags, values))


def cache_folder() -> Path:
    """Return where prompt embeddings are kept: $SANAWM_CACHE, or the user's cache folder."""
    chosen = os.environ.get("SANAWM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sanawm"


class Stop:
    """Remembers the first SIGINT or SIGTERM; calling it gives the exit code, or None."""

    def __init__(self, console: Console) -> None:
        self.code: int | None = None
        self._console = console

    def __call__(self) -> int | None:
        """Return the exit code once a signal has come."""
        return self.code

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to end after the block in hand; a second signal ends it at once."""
        self._console.stop_code = 128 + number
        if self.code is not None:
            raise KeyboardInterrupt
        self.code = 128 + number
        text = "stopping after the block in hand; once more stops at once"
        if self._console.json:
            text = self._console.line(Event("warning", "warning", {"message": text}))
        # Straight to the descriptor: the signal may have come in the middle of another print.
        with suppress(OSError):
            os.write(2, f"{text}\n".encode())


@contextmanager
def stop_on_signals(console: Console, *, kept: str = "", fix: str | None = None) -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into a `Stop` while the block runs.

    The second one ends it at once: raises `Interrupted`, saying what is kept and how to
    go on, in the words of the run or else in `kept` and `fix`.
    """
    stop = Stop(console)
    previous = {n: signal.signal(n, stop.on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt as e:
        raise as_interrupted(e, code=console.stop_code or 130, kept=kept, fix=fix) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
