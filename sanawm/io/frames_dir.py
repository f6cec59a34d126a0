"""Write the frames of a video as numbered PNG files: `frame_000000.png`, `frame_000001.png`, …"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

import numpy as np

from sanawm.errors import OutputBusy, OutputError, UsageError

from .files import write_error
from .image import png_bytes
from .video import check_chunk

#: The last chunk of every PNG: no data, the name, its checksum.
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_NAME = re.compile(r"frame_\d{6,}\.png")


class FramesDir:
    """A folder that gets one lossless PNG a frame, numbered from 0 with six digits or more.

    The folder is made when it is missing (its parent must exist). A folder with files in it is
    refused without `overwrite`; with it, earlier `frame_*.png` are removed and other files are left
    alone. `keep_frames` continues a stopped run: the first frames stay, later ones are removed.

    Raises `OutputError` when the folder cannot be used, frames to keep are missing or cut short, or
    another run writes there; the lock goes away with `close`, `release` or the process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        width: int,
        height: int,
        overwrite: bool = False,
        keep_frames: int = 0,
    ) -> None:
        self.folder = folder
        self._lock = -1
        self.frames_written = keep_frames
        self._size = (width, height)
        try:
            folder.mkdir(exist_ok=True)
            names = [p.name for p in folder.iterdir()]
        except (FileExistsError, NotADirectoryError):
            raise OutputError(f"frames folder {folder} is a file", fix="choose a folder") from None
        except FileNotFoundError:
            raise OutputError(
                f"frames folder {folder}: {folder.parent} does not exist",
                fix=f"mkdir -p {folder.parent}",
            ) from None
        except OSError as error:
            raise write_error(folder, error) from None
        self._lock = _locked(folder)
        try:
            self._prepare(keep_frames, names, overwrite=overwrite)
        except BaseException:
            self.release()
            raise

    def _prepare(self, keep_frames: int, names: list[str], *, overwrite: bool) -> None:
        """Make room for the frames after the kept ones."""
        folder = self.folder
        if names and not overwrite and not keep_frames:
            raise OutputError(
                f"frames folder {folder} is not empty ({len(names)} files)",
                fix="add --overwrite, or choose another folder",
            )
        self._remove_from(keep_frames, names)

    def _remove_from(self, keep_frames: int, names: list[str]) -> None:
        frames = {int(n[6:-4]): n for n in names if _NAME.fullmatch(n)}
        for i in range(keep_frames):
            if i in frames and _is_whole(self.folder / frames[i]):
                continue
            raise OutputError(
                f"cannot continue {self.folder}: frame {i} of the {keep_frames} frames to keep is "
                + ("cut short" if i in frames else "missing"),
                fix="run again without --resume",
            )
        for number, name in frames.items():
            if number >= keep_frames:
                (self.folder / name).unlink(missing_ok=True)

    def path_of(self, frame: int) -> Path:
        """Return the file of frame `frame`."""
        return self.folder / f"frame_{frame:06d}.png"

    def write(self, chunk: np.ndarray) -> None:
        """Write frames, uint8 `(T, H, W, 3)`. Raises `UsageError` for others, `OutputError`."""
        check_chunk(chunk, width=self._size[0], height=self._size[1])
        for pixels in chunk:
            path = self.path_of(self.frames_written)
            try:
                path.write_bytes(png_bytes(pixels))
            except OSError as error:
                path.unlink(missing_ok=True)
                raise write_error(path, error, done=f"{self.frames_written} frames") from None
            self.frames_written += 1

    def close(self) -> int:
        """Return the number of frames in the folder. Raises `UsageError` when there is none."""
        self.release()
        if self.frames_written == 0:
            raise UsageError(f"{self.folder}: no frames were written")
        return self.frames_written

    def release(self) -> None:
        """Let another run use the folder. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(folder: Path) -> int:
    """Return a descriptor of the folder that no other run can lock."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise OutputBusy(
            f"frames folder {folder} is being written by another run",
            fix="wait for that run to end, or choose another folder",
        ) from None
    except OSError:
        pass  # a file system without locks; the video's part file has warned of it
    return fd


def _is_whole(picture: Path) -> bool:
    """Tell whether a PNG ends as one must; a power cut may leave it short."""
    with picture.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(PNG_END)))
        return file.read() == PNG_END
