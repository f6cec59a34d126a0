"""Names, checks and atomic replacement of output files. Imports nothing heavy.

A file under its final name is always whole: it is written under another name in the same folder
and renamed when complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sanawm.errors import OutputError, UsageError
from sanawm.paths import MAX_NAME_BYTES

#: What is put behind a video's stem while it grows.
VIDEO_PART_SUFFIX = ".part.mp4"
#: Seconds without a write after which the temporary file of a process not seen here is abandoned.
ABANDONED_AFTER = 5.0
#: Names that `atomic_write` gives: a hash of the target, its process, and a random part.
_TEMPORARY = re.compile(r"\.sanawm-[0-9a-f]{12}-([0-9]+)-[0-9a-f]{8}(?:\..*)?")

_CAUSES = {
    errno.ENOSPC: ("no space left on device", "free some space, or write to another disk"),
    errno.EDQUOT: ("disk quota exceeded", "free some space, or write to another disk"),
    errno.EFBIG: (
        "file size limit reached",
        "raise the limit (ulimit -f), or write to a file system for large files",
    ),
    errno.EROFS: ("the file system is read-only", "write to another folder"),
    errno.EACCES: ("permission denied", "choose a folder that you may write to"),
    errno.EPERM: ("permission denied", "choose a folder that you may write to"),
    errno.ENOENT: ("the folder is gone", "create it again, or write to another folder"),
    errno.EISDIR: ("it is a folder", "move it away, or choose another name"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter name"),
    errno.EIO: ("the device failed (input/output error)", "check the disk and the mount"),
}


def write_error(path: Path, error: OSError, *, done: str = "", keep: str = "") -> OutputError:
    """Return the `OutputError` for an operating system error while writing `path`.

    `done` says how much was written, `keep` what remains usable; both may be empty.
    """
    cause, fix = _CAUSES.get(error.errno or 0, (error.strerror or str(error), None))
    if error.errno == errno.ENOENT and path.parent.is_dir():  # such as /proc
        cause = f"the folder {path.parent} takes no new files"
        fix = "write to another folder"
    message = f"{path}: {cause}"
    if done:
        message += f" after {done}"
    if keep:
        message += f"; {keep}"
    return OutputError(message, fix=fix)


def part_path(target: Path) -> Path:
    """Return the name that `target` has while it grows: `out.mp4` gives `out.part.mp4`."""
    return target.with_name(f"{target.stem}.part{target.suffix}")


def check_stem(name: str, *, suffix: str = VIDEO_PART_SUFFIX) -> str:
    """Return `name` when it is a plain file name that leaves room for `suffix`.

    Braces, stars, percent signs, a tilde, a leading dot or dash are ordinary characters. Raises
    `UsageError` for an empty name, `.` and `..`, separators (both kinds), control characters, text
    that is not valid Unicode, and names over 255 bytes with the suffix.
    """
    shown = ascii(name if len(name) <= 40 else name[:37] + "...")
    fix = "use a plain name such as clip_01"
    if name == "":
        raise UsageError("the output name is empty", fix=fix)
    if name in (".", ".."):
        raise UsageError(f"output name {shown} is a folder, not a file name", fix=fix)
    if any(c in "/\\" for c in name):
        raise UsageError(
            f"output name {shown} holds a path separator: a name must stay in the output folder",
            fix=fix,
        )
    for position, c in enumerate(name):
        if ord(c) < 32 or 127 <= ord(c) < 160:
            raise UsageError(
                f"output name {shown} holds the control character {c!a} at position {position}",
                fix=fix,
            )
    try:
        size = len(name.encode("utf-8")) + len(suffix.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError(f"output name {shown} is not valid Unicode text", fix=fix) from None
    if size > MAX_NAME_BYTES:
        room = MAX_NAME_BYTES - (size - len(name.encode("utf-8")))
        raise UsageError(
            f"output name {shown} is too long: {size} bytes with {suffix}, "
            f"expected at most {MAX_NAME_BYTES}",
            fix=f"shorten it to {room} bytes (one letter outside ASCII takes 2 to 4)",
        )
    return name


def check_output(
    path: Path,
    *,
    overwrite: bool,
    inputs: Iterable[Path] = (),
    suffixes: tuple[str, ...] = (),
) -> None:
    """Check, before any work, that `path` can become an output file; create nothing.

    `suffixes` are the accepted endings (any case); empty accepts all. Raises `UsageError` for a
    wrong ending (a folder's, too), a name over 255 bytes (with `.part` in it) or an output that is
    one of `inputs`, and `OutputError` for a missing folder, a folder in its place, a folder that
    cannot be written to, or an existing file without `overwrite`.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        check_named(path)
        ends = f"the name ends in {path.suffix!r}" if path.suffix else "the name has no ending"
        raise UsageError(
            f"output {path}: {ends}, expected {' or '.join(suffixes)}",
            fix=f"use {path.with_suffix(suffixes[0]).name}",
        )
    size = len(os.fsencode(part_path(path).name)) if path.name else 0
    if size > MAX_NAME_BYTES:
        raise UsageError(
            f"output name {path.name[:32]}... is too long: {size} bytes while it grows "
            f"(with .part), expected at most {MAX_NAME_BYTES}",
            fix="choose a shorter name",
        )
    _check_folder(path)
    if path.is_dir():
        raise OutputError(f"output {path} is a folder", fix="name a file in it")
    refuse_inputs([path], inputs)
    if os.path.lexists(path) and not overwrite:
        raise OutputError(f"{path} exists", fix="add --overwrite, or choose another name")


def check_named(path: Path) -> None:
    """Raise `UsageError` for a path that names no file: `.`, `..`, `/` or a folder without ending.

    A folder under the name of a file (`out.mp4`) is left to `check_output`.
    """
    if not path.stem or path.name == ".." or (not path.suffix and path.is_dir()):
        raise UsageError(f"output {path} is a folder", fix="name a file in it")


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raise `UsageError` when an output, or what it is called while it grows, is an input file.

    Hard and symbolic links are followed: the file itself counts, not its name.
    """
    given = list(inputs)
    for output in outputs:
        for name in (output, part_path(output)):
            for path in given:
                if not _same_file(name, path):
                    continue
                grows = "" if name == output else f" grows as {name}, which"
                raise UsageError(
                    f"output {output}{grows} is also an input of this run ({path})",
                    fix="write to another file",
                )


def _check_folder(path: Path) -> None:
    folder = path.parent
    if not folder.exists():
        raise OutputError(
            f"output {path}: the folder {folder} does not exist", fix=f"mkdir -p {folder}"
        )
    if not folder.is_dir():
        raise OutputError(f"output {path}: {folder} is a file, not a folder", fix="name a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"output {path}: no permission to write in {folder.resolve()}",
            fix="choose a folder that you may write to",
        )


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return a.absolute() == b.absolute()


def free_space(path: Path) -> int:
    """Return the bytes free for this user on the disk that `path` (file or folder) is on.

    Folders that do not exist yet are looked up at their nearest existing parent.
    """
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` when the body succeeds.

    The temporary name keeps the ending of `path`. On any error the temporary file is removed and
    `path` is as it was. Operating system errors become `OutputError`.
    """
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    temporary = path.with_name(f"{_temporary_prefix(path)}{unique}{path.suffix[-40:]}")
    try:
        yield temporary
        temporary.replace(path)
    except OutputError:
        temporary.unlink(missing_ok=True)
        raise
    except OSError as error:
        _unlink_quietly(temporary)
        raise write_error(path, error) from None
    except BaseException:
        _unlink_quietly(temporary)
        raise


def remove_stale(path: Path) -> None:
    """Remove what `atomic_write` to `path` left when its process was killed in the middle.

    Only for who holds the run's lock: another process may be writing right now.
    """
    if path.parent.is_dir():
        for entry in os.scandir(path.parent):
            if entry.name.startswith(_temporary_prefix(path)):
                _unlink_quietly(Path(entry.path))


def remove_abandoned(folder: Path) -> None:
    """Remove what `atomic_write` left in `folder` in whatever process was killed in the middle.

    For files whose own run is not started again, because the file it wrote is finished. One counts
    as left when its process does not run here and nothing was written to it for `ABANDONED_AFTER`
    seconds: the process may run on another machine that shares the folder.
    """
    for entry in os.scandir(folder):
        found = _TEMPORARY.fullmatch(entry.name)
        if found is None or _runs(int(found[1])):
            continue
        try:
            idle = time.time() - entry.stat(follow_symlinks=False).st_mtime
        except OSError:  # renamed or removed meanwhile
            continue
        if idle > ABANDONED_AFTER:
            _unlink_quietly(Path(entry.path))


def _runs(pid: int) -> bool:
    """Tell whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def _temporary_prefix(path: Path) -> str:
    return f".sanawm-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]}-"


def _unlink_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
