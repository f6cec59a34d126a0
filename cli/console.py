"""What the user sees: notes, events and errors on stderr, the result on stdout.

Three faces of the same events: `rich` on a terminal (one bar), `plain` elsewhere (one line a
block), `json` for scripts (one object a line). `--log-file` gets the JSON lines as well.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from sanawm.errors import MissingFile, OutputError, SanawmError
from sanawm.events import Event
from sanawm.notes import Level, Notes

from .streams import silence

QUIET, NORMAL, VERBOSE = -1, 0, 1
#: What to do about a file that is not there, or that nobody may read.
CHECK_THE_PATH = "check the path, and that you may read it"


class Face(Protocol):
    """One way of showing events."""

    def show(self, event: Event) -> None:
        """Show an event."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Console:
    """Send notes, events, errors and the result where they belong."""

    def __init__(self, *, log_format: str, log_file: Path | None, verbosity: int) -> None:
        self.log_format = _chosen(log_format)
        self.verbosity = verbosity
        self.stop_code: int | None = None  # exit code of the latest signal
        self._started = time.monotonic()
        self._log = _open_log(log_file)
        self._face = _face(self.log_format, verbosity)
        self._lock = threading.Lock()
        self.notes = Notes(listener=self._note)

    @property
    def json(self) -> bool:
        """True when the result on stdout is one JSON object."""
        return self.log_format == "json"

    @property
    def terminal(self) -> Any:
        """The rich console on stderr, None unless lines are drawn on a terminal."""
        return self._face.console if isinstance(self._face, RichFace) else None

    def __call__(self, event: Event) -> None:
        """Show an event and log it."""
        with self._lock:  # the writer's thread reports chunks
            self._show(event)

    def _show(self, event: Event) -> None:
        line = self.line(event)
        self._write_log(line)
        try:
            if self.log_format != "json":
                self._face.show(event)
            elif self.verbosity > QUIET or event.level in ("warning", "error"):
                print(line, file=sys.stderr, flush=True)
        except OSError:  # nobody reads stderr any more: no reason to lose the run
            silence(sys.stderr)

    def error(self, error: SanawmError) -> None:
        """Show an error in at most three lines."""
        remedy = CHECK_THE_PATH if isinstance(error, MissingFile) else None
        self.failure(error.message, error.exit_code, fix=error.fix or remedy)

    def failure(self, message: str, exit_code: int, *, fix: str | None = None) -> None:
        """Show why the command ends with `exit_code`."""
        data: dict[str, Any] = {"message": message, "exit_code": exit_code}
        if fix:
            data["fix"] = fix
        self(Event("error", "error", data))

    def log_traceback(self, error: BaseException) -> str | None:
        """Put a traceback into the log file; return its name, or None without a log file."""
        if self._log is None:
            return None
        import traceback

        text = "".join(traceback.format_exception(error))
        self._write_log(self.line(Event("error", "error", {"traceback": text})))
        return None if self._log is None else self._log.name

    def result(self, text: str, data: dict[str, Any]) -> None:
        """Print the result, and only that, on stdout. A closed stdout does not fail the run."""
        try:
            print(json.dumps(data) if self.json else text, flush=True)
        except UnicodeEncodeError:  # a file name that is no text; its bytes are what scripts need
            sys.stdout.buffer.write(os.fsencode(text) + b"\n")
        except OSError:
            silence(sys.stdout)

    def _write_log(self, line: str) -> None:
        if self._log is None:
            return
        try:
            self._log.write(line + "\n")
            self._log.flush()
        except OSError as e:
            name, self._log = self._log.name, None
            text = f"log file {name}: cannot be written any more ({e.strerror}); the run goes on"
            self._show(Event("warning", "warning", {"message": text}))

    def close(self) -> None:
        """Finish the display and the log."""
        self._face.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _note(self, level: Level, text: str) -> None:
        data: dict[str, Any] = {"message": text}
        if level == "change":
            data["change"] = True
        self(Event("warning" if level == "warning" else "config", level, data))

    def line(self, event: Event) -> str:
        """Return an event as a line of JSON."""
        t = round(time.monotonic() - self._started, 3)
        level = "info" if event.level == "change" else event.level
        return json.dumps({"t": t, "level": level, "event": event.name, **event.data})


class PlainFace:
    """One line an event that a person wants to read; no colours, no cursor movement."""

    def __init__(self, verbosity: int, out: TextIO | None = None) -> None:
        self.verbosity = verbosity
        self.out = out

    def show(self, event: Event) -> None:
        """Print the lines of an event."""
        for line in lines_of(event, self.verbosity):
            print(line, file=self.out or sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to do."""


def lines_of(event: Event, verbosity: int) -> list[str]:
    """Return the lines that describe an event to a person."""
    data = event.data
    if event.level == "error":
        fix = [f"  fix: {data['fix']}"] if data.get("fix") else []
        return [f"error: {data['message']}", *fix]
    if event.level == "warning":
        return [f"warning: {data['message']}"]
    if verbosity <= QUIET:
        return []
    if event.level == "change":
        return [f"note: {data['message']}"]
    if event.name == "config" and "message" in data:
        return [str(data["message"])]
    if event.name == "run_start":
        return [str(line) for line in data.get("lines", ())]
    if event.name == "block_done":
        return [block_line(data)]
    if event.name == "job_done":
        return [str(data["message"])]
    if event.name == "run_done":
        return [str(data["summary"])]
    if verbosity >= VERBOSE and event.name in ("load_start", "load_done", "encode_done"):
        shown = ", ".join(f"{k} {v}" for k, v in data.items())
        return [f"{event.name.replace('_', ' ')}: {shown}"]
    return []


def block_line(data: Any) -> str:
    """Return the line of a finished block."""
    rate = data.get("realtime_factor")
    real = f", {rate:.2f}x real time" if rate else ""
    return (
        f"block {data['index'] + 1}/{data['blocks']}: latent frames {data['start']}.."
        f"{data['stop'] - 1}, {data['seconds']:.2f} s{real}, "
        f"{data['memory_bytes'] / 1e9:.2f} GB"
    )


class RichFace:
    """Lines above one bar: block, seconds a block, real-time factor, memory, time left."""

    def __init__(self, verbosity: int) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.verbosity = verbosity
        self.console = RichConsole(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("block"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            transient=True,
        )
        self.task: Any = None

    def show(self, event: Event) -> None:
        """Print the lines of an event and move the bar."""
        if event.name == "block_done":
            self._advance(event)
            return
        style = {"error": "bold red", "warning": "yellow", "change": "cyan"}.get(event.level)
        if event.name in ("run_done", "error"):
            self.progress.stop()
        for line in lines_of(event, self.verbosity):
            self.console.print(line, style=style, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self.progress.stop()

    def _advance(self, event: Event) -> None:
        data = event.data
        if self.verbosity <= QUIET:
            return
        if self.task is None:
            self.task = self.progress.add_task("refine", total=data["blocks"], speed="")
            self.progress.start()
        rate = data.get("realtime_factor")
        real = f"{rate:.2f}x real time  " if rate else ""
        speed = f"{data['seconds']:.2f} s/block  {real}{data['memory_bytes'] / 1e9:.2f} GB"
        self.progress.update(self.task, completed=data["index"] + 1, speed=speed)


def _chosen(log_format: str) -> str:
    if log_format == "auto":
        return "rich" if sys.stderr.isatty() else "plain"
    return log_format


def _face(log_format: str, verbosity: int) -> Face:
    return RichFace(verbosity) if log_format == "rich" else PlainFace(verbosity)


def _open_log(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    try:
        if path.is_file() and not _is_log(path):
            raise OutputError(
                f"log file {path} exists and holds something else than JSON lines",
                fix="name another file; a log is appended to, never replaced",
            )
        return path.open("a", encoding="utf-8")
    except OutputError:
        raise
    except OSError as e:
        raise OutputError(
            f"log file {path}: cannot be written ({e.strerror})", fix="name another file"
        ) from None


def _is_log(path: Path) -> bool:
    """Tell whether a file can be a log: empty, or its first line is one JSON object."""
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        return not first.strip() or isinstance(json.loads(first), dict)
    except ValueError:
        return False
