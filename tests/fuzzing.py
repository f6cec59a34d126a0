"""Damage files of every kind that sanawm reads, and hold the readers to their promise.

Whatever a file holds, it is read or refused with a `SanawmError` that names it (exit 2 or 3): no
other exception, no hang, no file left, no code run.
"""

from __future__ import annotations

import random
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from sanawm.errors import SanawmError

from .fuzz_kinds import KINDS, Kind, Sample

MARKER = "PWNED_MARKER"
#: Pieces that parsers stumble over.
TOKENS = [
    b"nan", b"inf", b"-1", b"1e400", b"0", b"7", b"\n", b" ", b",", b"{}", b"[]", b"null", b"true",
    b'"', b"\xff", b"\0", b"\xef\xbb\xbf", b"!!python/name:os.system", b"[" * 3000, b"{" * 3000,
    b"9" * 400, b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"../",
    b"&a [*a]", b"a/" * 3000, b"~nobody/x", b"/dev/zero", b".", rb"\u0000", rb"\ud800", b"hf://",
]  # fmt: skip
#: Seconds after which a reader hangs.
SECONDS = 20.0


class Edit(NamedTuple):
    """One change: `what` happens at `at` (0 begin .. 1 end of the file) to `size` bytes."""

    what: str
    at: float
    size: int
    data: bytes


EDITS = ("flip", "cut", "drop", "put", "insert", "repeat", "zero", "word")
#: A number, a name or what stands between quotes: what text formats give a meaning to.
WORD = re.compile(rb'"[^"\n\\]{0,200}"|[A-Za-z0-9_./+-]{1,200}')


def damage(data: bytes, edits: list[Edit]) -> bytes:
    """Return `data` with the edits made."""
    changed = bytearray(data)
    for edit in edits:
        at = int(edit.at * len(changed))
        if edit.what == "flip" and at < len(changed):
            changed[at] ^= 1 << (edit.size % 8)
        elif edit.what == "cut":
            del changed[at:]
        elif edit.what == "drop":
            del changed[at : at + edit.size]
        elif edit.what == "put":
            changed[at : at + len(edit.data)] = edit.data
        elif edit.what == "insert":
            changed[at:at] = edit.data
        elif edit.what == "repeat":
            changed[at:at] = changed[at : at + edit.size]
        elif edit.what == "zero":
            end = min(len(changed), at + edit.size)
            changed[at:end] = bytes(end - at)
        elif edit.what == "word" and (found := WORD.search(changed, at)):
            quotes = int(found[0][:1] == b'"')
            changed[found.start() + quotes : found.end() - quotes] = edit.data
    return bytes(changed)


def random_edits(rng: random.Random, other: bytes) -> list[Edit]:
    """Return one to four edits, more of them near the file's begin, where headers are.

    Pieces of `other`, a file of this or another kind, are spliced in.
    """
    edits = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        start = rng.randrange(max(1, len(other)))
        piece = other[start : start + rng.choice((1, 4, 8, 64, 400))]
        data = rng.choice((rng.choice(TOKENS), piece, rng.randbytes(rng.choice((1, 2, 4, 8)))))
        at = rng.random() ** rng.choice((1, 1, 3, 6))
        size = rng.choice((1, 1, 2, 4, 8, 64, 300))
        edits.append(Edit(rng.choice(EDITS), at, rng.choice((size, rng.randrange(8))), data))
    return edits


@dataclass
class Outcome:
    """What became of one input: `fault` is empty when the promise was kept."""

    refused: bool = False
    fault: str = ""


class Hang(BaseException):
    """A reader took too long; no handler of the code under test may swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the body after `seconds` (main thread only)."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(kind: Kind, sample: Sample, data: bytes, folder: Path) -> Outcome:
    """Give damaged `data` to the reader of a kind in the empty `folder`; judge what happens."""
    path = folder / sample.name
    for name, content in sample.beside.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    before = listing(folder)
    outcome = judge(lambda: kind.read(path), folder)
    if not outcome.fault and listing(folder) != before:
        outcome.fault = f"files left: {sorted(listing(folder) ^ before)}"
    if Path(MARKER).exists() or (folder / MARKER).exists():
        outcome.fault = "code was run"
    for name in sorted(listing(folder), reverse=True):
        entry = folder / name
        entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return outcome


def judge(read: Callable[[], object], folder: Path) -> Outcome:
    """Call a reader: only a `SanawmError` with a code of bad input, naming the file, may come."""
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            for lenient in (DeprecationWarning, ResourceWarning):
                warnings.simplefilter("ignore", lenient)
            read()
    except SanawmError as error:
        if error.exit_code not in (2, 3):
            return Outcome(True, f"exit code {error.exit_code}: {error.message}")
        if str(folder) not in str(error):
            return Outcome(True, f"the file is not named: {error.message}")
        return Outcome(True)
    except Hang:
        return Outcome(False, f"it took more than {SECONDS:g} s")
    except BaseException as error:  # a Rust panic is no Exception
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Outcome(False, f"{text} at {frame.filename}:{frame.lineno}")
    return Outcome()


def listing(folder: Path) -> set[str]:
    """Return the names of everything below a folder."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


__all__ = ["KINDS", "Edit", "Outcome", "attempt", "damage", "random_edits"]
