"""Write two clips beside each other into one video, as they are compared."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from sanawm.errors import UsageError
from sanawm.io.rates import parse_fps
from sanawm.io.video import VideoFile, VideoSettings, VideoWriter, check_encoder
from sanawm.notes import Notes

from .clips import Clip, Frame
from .compare import Watcher

#: Frames that are encoded at once.
CHUNK = 24
#: Rate of clips that tell none (pictures).
DEFAULT_FPS = "16"


class SideBySide:
    """The video `path` with A left and B right: pass `open` as a watcher of `compare_paths`.

    As a context manager it keeps a playable part file on an exception. Raises `UsageError` for
    latents, and the errors of `VideoWriter`.
    """

    def __init__(self, path: Path, *, overwrite: bool, notes: Notes) -> None:
        self._path, self._overwrite, self._notes = path, overwrite, notes
        self._writer: VideoWriter | None = None
        self._frames: list[np.ndarray] = []

    def open(self, a: Clip, b: Clip) -> Watcher:
        """Start the video for a pair of clips."""
        if a.kind != "pictures":
            raise UsageError(
                "--side-by-side needs videos, these are latents", fix="sanawm decode makes videos"
            )
        height, width, _ = a.size
        if height % 2:
            self._notes.change(f"{self._path}: one black line is added, videos have even heights")
        settings = VideoSettings(
            2 * width, height + height % 2, parse_fps(a.fps or DEFAULT_FPS), frames_per_chunk=CHUNK
        )
        check_encoder(settings.encoder, width=settings.width, height=settings.height)
        self._writer = VideoWriter(
            self._path, settings, overwrite=self._overwrite, notes=self._notes
        )
        return self._add

    def _add(self, number: int, a: Frame, b: Frame) -> None:
        pair = np.concatenate([a, b], axis=1)
        if len(pair) % 2:
            pair = np.pad(pair, ((0, 1), (0, 0), (0, 0)))
        self._frames.append(pair)
        if len(self._frames) == CHUNK:
            self._flush()

    def _flush(self) -> None:
        if self._frames and self._writer is not None:
            self._writer.write(np.stack(self._frames))
        self._frames.clear()

    def close(self) -> VideoFile:
        """Finish the video and give it its name."""
        self._flush()
        assert self._writer is not None, "no clips were compared"
        return self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._writer is not None:
            self._writer.abort()
