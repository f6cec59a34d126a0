"""Write the frames of a video as numbered PNG files: `frame_000000.png`, `frame_000001.png`, …"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sanawm.errors import OutputError, UsageError

from .files import write_error
from .image import png_bytes
from .video import check_chunk

_NAME = re.compile(r"frame_\d{6,}\.png")


class FramesDir:
    """A folder that gets one lossless PNG a frame, numbered from 0 with six digits or more.

    The folder is made when it is missing (its parent must exist). A folder with files in it is
    refused without `overwrite`; with it, earlier `frame_*.png` are removed and other files are left
    alone. `keep_frames` continues a stopped run: the first frames stay, later ones are removed.

    Raises `OutputError` when the folder cannot be used, or frames to keep are missing.
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
        if names and not overwrite and not keep_frames:
            raise OutputError(
                f"frames folder {folder} is not empty ({len(names)} files)",
                fix="add --overwrite, or choose another folder",
            )
        self._remove_from(keep_frames, names)

    def _remove_from(self, keep_frames: int, names: list[str]) -> None:
        frames = {int(n[6:-4]): n for n in names if _NAME.fullmatch(n)}
        missing = [i for i in range(keep_frames) if i not in frames]
        if missing:
            raise OutputError(
                f"cannot continue {self.folder}: frame {missing[0]} of the {keep_frames} frames "
                "to keep is missing",
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
        if self.frames_written == 0:
            raise UsageError(f"{self.folder}: no frames were written")
        return self.frames_written
