"""Run the command in processes of their own that start at once and can be killed.

Each is forked from a server that has imported everything already, so it costs no start-up; from
there on it is `sanawm` itself: its own signals, descriptors and exit code.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.forked",
        "sanawm.cli.app",
        "sanawm.cli.refine",
        "sanawm.convert",
        "sanawm.describe",
        "sanawm.image_source",
        "sanawm.job",
        "sanawm.text.caption",
        "sanawm.text.encode",
        "sanawm.video_source",
        "safetensors.torch",
        "torch._dynamo",  # arithmetic on the meta device imports it
    ]
)


class Ended(NamedTuple):
    """How a process ended: its exit code (`-9` for SIGKILL) and what it said."""

    code: int
    out: str
    err: str


class Running:
    """A started command. `out` and `err` are files, so a full pipe never stops it."""

    def __init__(self, process: ForkServerProcess, out: Path, err: Path) -> None:
        self._process = process
        self._out, self._err = out, err

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    def said(self, word: str) -> int:
        """Return how often `word` has been printed on stderr so far."""
        return self._err.read_text(encoding="utf-8").count(word) if self._err.exists() else 0

    def wait_for(self, word: str, count: int = 1, *, seconds: float = 120) -> None:
        """Wait until `word` was printed `count` times, or the process has ended."""
        end = time.monotonic() + seconds
        while self.said(word) < count and self.alive:
            assert time.monotonic() < end, f"{word!r} did not come within {seconds} s"
            time.sleep(0.003)

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def end(self, *, seconds: float = 180) -> Ended:
        """Wait for the end."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"still running after {seconds} s"
        texts = (f.read_text(encoding="utf-8", errors="replace") for f in (self._out, self._err))
        return Ended(self._process.exitcode, *texts)


@contextmanager
def started(
    *arguments: object,
    folder: Path,
    env: Mapping[str, str] | None = None,
    file_limit: int | None = None,
    close_stdout: bool = False,
) -> Iterator[Running]:
    """Start `sanawm` in `folder`; it is killed at the end if it still runs.

    `file_limit` bounds the size of every file it writes (`ulimit -f`), in bytes.
    """
    streams = folder.with_name(f"{folder.name}.streams")
    streams.mkdir(exist_ok=True)
    number = len(list(streams.iterdir()))
    out, err = streams / f"{number}.out", streams / f"{number}.err"
    for file in (out, err):
        file.touch()  # the next one takes another number
    words = [str(a) for a in arguments]
    process = _CONTEXT.Process(
        target=_command, args=(words, folder, out, err, dict(env or {}), file_limit, close_stdout)
    )
    process.start()
    try:
        yield Running(process, out, err)
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def _command(
    arguments: list[str],
    folder: Path,
    out: Path,
    err: Path,
    env: dict[str, str],
    file_limit: int | None,
    close_stdout: bool,
) -> None:
    """Become the command: what runs in the forked process."""
    for number, file in ((1, out), (2, err)):
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(fd, number)
        os.close(fd)
    if close_stdout:
        os.close(1)
    os.chdir(folder)
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["/usr/bin/sanawm", *arguments]
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    from sanawm.cli import app

    app.main()
