"""A growing output file that one run at a time holds.

The lock is the operating system's (`flock`) on the part file itself: it goes away with the process,
so a part left by a killed run blocks nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from sanawm.errors import OutputBusy, OutputError
from sanawm.notes import Notes

from .begun import is_ours, refusal
from .files import part_path, write_error

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class PartFile:
    """`FILE.part.ext` beside `FILE.ext`, open for reading and writing and locked.

    With `keep` what an earlier run left in it stays (it must exist); otherwise it is emptied, with
    a line in `notes` when something was in it, unless it is `known`: then a run state holds the
    same, and nothing is lost. A file that sanawm has not begun is replaced with `overwrite` alone.
    Raises `OutputBusy` when another run holds it, and `OutputError` when it cannot be opened.
    """

    def __init__(
        self,
        target: Path,
        *,
        keep: bool = False,
        known: bool = False,
        overwrite: bool = False,
        notes: Notes,
    ) -> None:
        self.target = target
        self.path = part_path(target)
        self._notes = notes
        self.fd = self._lock(keep)
        if not keep:
            self._empty(known=known, overwrite=overwrite)

    def _empty(self, *, known: bool, overwrite: bool) -> None:
        """Empty the file and say what was in it; refuse when it is someone else's."""
        left = self.size
        if not is_ours(self.path):
            if not overwrite:
                self.release()
                raise refusal(self.target, "was not made by sanawm")
            self._notes.change(f"replaced {self.path}, which was not made by sanawm ({left} bytes)")
        elif left and not known:
            self._notes.info(f"replaced {self.path}, left by an unfinished run ({left} bytes)")
        self.truncate(0)

    def _lock(self, keep: bool) -> int:
        """Return a locked descriptor of the file that bears the part's name now."""
        flags = os.O_RDWR | (0 if keep else os.O_CREAT)
        while True:
            try:
                fd = os.open(self.path, flags, 0o666)
            except FileNotFoundError as error:
                if keep:
                    raise OutputError(
                        f"cannot continue {self.target}: {self.path} is gone",
                        fix="run again without --resume",
                    ) from None
                raise write_error(self.path, error) from None
            except OSError as error:
                raise write_error(self.path, error) from None
            try:
                self._take_lock(fd)
            except BaseException:
                os.close(fd)
                raise
            if self._is_named(fd):
                return fd
            os.close(fd)  # renamed away between open and lock: another run finished just then

    def _take_lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputBusy(
                f"{self.path} is being written by another run",
                fix="wait for that run to end, or choose another output name",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise write_error(self.path, error) from None
            self._notes.warn(
                f"the file system of {self.path} has no locks: "
                "nothing keeps a second run off this file"
            )

    def _is_named(self, fd: int) -> bool:
        """Return whether the part's name still leads to the file behind `fd`."""
        try:
            named, held = self.path.stat(), os.fstat(fd)
        except FileNotFoundError:
            return False
        return (named.st_ino, named.st_dev) == (held.st_ino, held.st_dev)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        """Cut the file at `size` bytes; devices that cannot be cut are left alone."""
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise write_error(self.path, error) from None

    def adopt(self, fd: int, path: Path) -> None:
        """Let the file `path`, open as `fd`, take the part's place, without losing the lock."""
        self._take_lock(fd)
        try:
            path.replace(self.path)
        except OSError as error:
            raise write_error(self.path, error) from None
        os.close(self.fd)
        self.fd = fd

    def commit(self, *, overwrite: bool) -> None:
        """Rename the part to its target and let go of it."""
        try:
            if not overwrite and os.path.lexists(self.target):
                raise OutputError(
                    f"{self.target} appeared while this run was working; "
                    f"the finished file is kept as {self.path}",
                    fix=f"mv {self.path} to a free name",
                )
            os.fsync(self.fd)
            self.path.replace(self.target)
        except OutputError:
            raise
        except OSError as error:
            keep = f"the finished file is kept as {self.path}" if self.path.exists() else ""
            raise write_error(self.target, error, keep=keep) from None
        finally:
            self.release()

    def release(self) -> None:
        """Close the descriptor and the lock with it; the file stays. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """Remove the part and let go of it."""
        if self.fd >= 0 and self._is_named(self.fd):
            self.path.unlink(missing_ok=True)
        self.release()
