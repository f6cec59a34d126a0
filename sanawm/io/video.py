"""Write a video chunk by chunk, in a thread of its own, into a file that plays while it grows.

`out.mp4` grows as `out.part.mp4` beside it and gets its name when it is complete and counted. What
is in the part survives a kill, a full disk and an interrupt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from queue import Queue
from threading import Semaphore, Thread
from types import TracebackType
from typing import NamedTuple, Self

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from sanawm.errors import OutputError, SanawmError, UsageError
from sanawm.notes import Notes

from .encoder import VideoSettings, check_encoder, check_settings, encode_chunk, usable_encoders
from .files import check_output, write_error
from .growing import GrowingMP4
from .kept import keep_frames as keep_part_frames
from .part import PartFile
from .rates import parse_fps
from .remux import count_frames, faststart, read_metadata

__all__ = [
    "VideoFile",
    "VideoSettings",
    "VideoWriter",
    "check_encoder",
    "check_settings",
    "faststart",
    "parse_fps",
    "read_metadata",
    "usable_encoders",
]


class VideoFile(NamedTuple):
    """A finished video: its path, frames, frames per second and size in bytes."""

    path: Path
    frames: int
    fps: Fraction
    bytes: int


#: Called in the writer's thread when a chunk is in the file:
#: `(index of the chunk, its first frame, its frames, seconds it took to encode and write)`.
ChunkCallback = Callable[[int, int, int, float], None]


class VideoWriter:
    """Write chunks of frames to the MP4 `path`.

    `write` copies the chunk, waits until fewer than `queue_chunks` chunks are on their way to the
    file, and returns, so encoding overlaps with the caller's work: with 1, every chunk but the
    newest is in the file when `write` returns. An error in the thread is raised by the next `write`
    or by `close`, with its real cause; whatever was written stays playable.

    As a context manager it closes on success and, on an exception, finishes the part file as a
    playable video and keeps it.

    `keep_frames` continues a stopped run: the first `keep_frames` frames of its part file
    (`keep_chunks` chunks) are taken over unchanged. `continued` says that what else is in the part
    is not lost: the run state holds those frames, and they are written again.

    Raises `UsageError` for impossible settings, `MachineError` for an unknown encoder and
    `OutputError` when `path` exists (without `overwrite`), cannot be written, or is being written
    by another run. The existing file is replaced at the end only.
    """

    def __init__(
        self,
        path: Path,
        settings: VideoSettings,
        *,
        overwrite: bool = False,
        queue_chunks: int = 2,
        keep_frames: int = 0,
        keep_chunks: int = 0,
        continued: bool = False,
        on_chunk: ChunkCallback | None = None,
        notes: Notes | None = None,
    ) -> None:
        notes = notes if notes is not None else Notes()
        check_settings(settings, notes=notes)
        check_output(path, overwrite=overwrite, suffixes=(".mp4",))
        if queue_chunks < 1 or keep_frames < 0 or keep_chunks < 0:
            raise UsageError(
                f"queue of {queue_chunks} chunks, {keep_frames} kept frames, {keep_chunks} kept "
                "chunks: expected a queue of 1 or more, nothing negative"
            )
        self.path = path
        self.settings = settings
        self._overwrite = overwrite
        self._on_chunk = on_chunk
        self._chunks = keep_chunks
        self._reformatter = VideoReformatter()
        self._error: Exception | None = None
        self._result: VideoFile | None = None
        self._kept: tuple[int, int] | None = None
        self._part = PartFile(
            path, keep=keep_frames > 0, known=continued, overwrite=overwrite, notes=notes
        )
        try:
            self._mp4 = (
                keep_part_frames(self._part, settings, keep_frames)
                if keep_frames
                else GrowingMP4(self._part.fd, settings)
            )
        except BaseException as error:
            raise self._not_begun(error, kept=keep_frames > 0) from None
        if self._mp4.stays_fragmented:
            notes.warn("this FFmpeg cannot finish a growing MP4: the video stays fragmented")
        self._room = Semaphore(queue_chunks)
        self._queue: Queue[np.ndarray | None] = Queue()
        self._thread: Thread | None = Thread(
            target=self._work, name="sanawm-video-writer", daemon=True
        )
        self._thread.start()

    def _not_begun(self, error: BaseException, *, kept: bool) -> BaseException:
        """Let go of the part when not even its header could be written; return what to raise."""
        if kept:
            self._part.release()
        else:
            self._part.discard()
        if isinstance(error, av.error.FFmpegError):
            return OutputError(
                f"{self._part.path}: encoder {self.settings.encoder} cannot begin ({error})"
            )
        if isinstance(error, OSError) and not isinstance(error, SanawmError):
            return write_error(self._part.path, error)
        return error

    @property
    def part_path(self) -> Path:
        """The file that grows; any player opens it while it does."""
        return self._part.path

    @property
    def frames_written(self) -> int:
        """Frames handed to the file so far; the newest is readable when the next one comes."""
        return self._mp4.frames

    def write(self, chunk: np.ndarray) -> None:
        """Queue frames, uint8 `(T, H, W, 3)` RGB with `T >= 1`; the array may be reused afterwards.

        Raises `UsageError` for anything else; values are never guessed or rescaled.
        """
        if self._thread is None:
            raise UsageError(f"{self.path}: the video is closed, it takes no more frames")
        check_chunk(chunk, width=self.settings.width, height=self.settings.height)
        if self._error is None:
            copy = np.array(chunk, order="C", copy=True)
            self._room.acquire()
            self._queue.put(copy)
        if self._error is not None:
            self._fail()

    def drain(self) -> None:
        """Wait until every chunk handed over is in the file; the writer then takes no more.

        Raises nothing: what went wrong is raised by `close`.
        """
        self._settle()

    def close(self) -> VideoFile:
        """Write what is queued and the index, count the frames, give the file its name.

        Raises `OutputError` when that fails; the playable part file is kept. Without any frame
        there is an error and no file.
        """
        if self._result is not None:
            return self._result
        self._settle()
        if self._error is not None:
            self._fail()
        if self._mp4.frames == 0:
            self._salvage()
            raise OutputError(
                f"{self.path}: no frames were written, so there is no video",
                fix="write at least one chunk before closing",
            )
        try:
            self._mp4.finish()
        except (OSError, av.error.FFmpegError) as error:
            self._error = error
            self._fail()
        self._check_count()
        size = self._part.size
        self._part.commit(overwrite=self._overwrite)
        self._result = VideoFile(self.path, self._mp4.frames, self.settings.fps, size)
        return self._result

    def abort(self) -> Path | None:
        """Write what is queued, finish the part file as a playable video and keep it.

        Return its path, or None when no frame was written. Raises nothing: it is called when
        something else has gone wrong.
        """
        self._settle()
        if self._result is not None:
            return self._result.path
        if self._part.fd < 0:  # `close` or `write` has failed before
            return self._part.path if self._part.path.exists() else None
        return self._part.path if self._salvage()[0] else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _work(self) -> None:
        """Run in the thread: write chunks until None comes; after an error only empty the queue."""
        while (chunk := self._queue.get()) is not None:
            try:
                if self._error is None:
                    self._write_chunk(chunk)
            except Exception as error:  # crosses the thread: `_fail` raises it in the caller's
                self._error = error
            finally:
                self._room.release()

    def _write_chunk(self, chunk: np.ndarray) -> None:
        started = time.perf_counter()
        first = self._mp4.frames
        self._mp4.add(
            encode_chunk(self.settings, chunk, first_frame=first, reformatter=self._reformatter)
        )
        index, self._chunks = self._chunks, self._chunks + 1
        if self._on_chunk is not None:
            self._on_chunk(index, first, len(chunk), time.perf_counter() - started)

    def _settle(self) -> None:
        """Let the thread write what is queued and end. May be called again, also after Ctrl-C."""
        if self._thread is not None:
            if self._thread.is_alive():
                self._queue.put(None)
                self._thread.join()
            self._thread = None

    def _fail(self) -> None:
        """Raise the thread's error with its cause and what is left of the file."""
        self._settle()
        frames, size = self._salvage()
        error = self._error
        if isinstance(error, OSError) and not isinstance(error, SanawmError) and error.errno:
            keep = f"{frames} frames are kept and playable" if frames else "nothing was kept"
            raise write_error(
                self._part.path, error, done=f"{size} bytes written", keep=keep
            ) from error
        if isinstance(error, av.error.FFmpegError):
            raise OutputError(
                f"{self._part.path}: encoder {self.settings.encoder} failed after {frames} frames "
                f"({error})",
                fix="use --encoder libx264, or another --encoder-preset; then --resume",
            ) from error
        assert error is not None, "no error to raise"
        raise error

    def _salvage(self) -> tuple[int, int]:
        """End the part as well as can be, let go of it; return the frames and bytes in it.

        Without an error of the file itself it becomes an ordinary MP4, else it is cut behind its
        last whole fragment. A part without a frame is removed.
        """
        if self._kept is None:
            try:
                if self._mp4.frames:
                    self._mp4.finish()
            except (OSError, av.error.FFmpegError) as error:
                self._error = self._error or error
            if self._mp4.sink.error is not None or not self._mp4.frames:
                self._part.truncate(self._mp4.give_up())
            size = self._part.size
            frames = self._readable_frames() if size else 0
            if frames:
                self._part.release()
            else:
                self._part.discard()
            self._kept = (frames, size)
        return self._kept

    def _readable_frames(self) -> int:
        try:
            return count_frames(self._part.path).found
        except SanawmError:
            return 0

    def _check_count(self) -> None:
        """Open the finished part again and compare its frames with what was written."""
        wanted = self._mp4.frames
        try:
            count = count_frames(self._part.path)
        except SanawmError as error:
            self._part.release()
            raise OutputError(
                f"{self.path}: the finished file cannot be read back ({error.message})",
                fix="check the disk and its folders, and run again",
            ) from None
        header = wanted if self._mp4.stays_fragmented else count.header
        if (header, count.found, count.torn) != (wanted, wanted, False):
            self._part.release()
            raise OutputError(
                f"{self._part.path} holds {count.found} frames (its header says {count.header}), "
                f"expected {wanted}; it is kept under this name",
                fix="check the disk, and run again",
            )


def check_chunk(chunk: np.ndarray, *, width: int, height: int) -> None:
    """Raise `UsageError` unless `chunk` is uint8 `(T, height, width, 3)` with `T >= 1`.

    The message names dtype, shape and range of what was found.
    """
    if not isinstance(chunk, np.ndarray):
        raise UsageError(
            f"a chunk of frames is {type(chunk).__name__}, expected a NumPy array of uint8",
            fix="convert it to a uint8 array (frames, height, width, 3)",
        )
    fix = None
    if chunk.dtype != np.uint8:
        fix = "map the values to 0..255, round, and convert to uint8 before writing"
    elif chunk.ndim == 4 and chunk.shape[1] == 3 and chunk.shape[3] != 3:
        fix = "move the colour axis last"
    elif chunk.ndim == 4 and chunk.shape[3] == 4:
        fix = "drop the alpha channel, or blend it over a colour"
    elif chunk.ndim == 3:
        fix = "one frame needs a leading axis of 1, grey frames need three equal channels"
    if chunk.dtype == np.uint8 and chunk.shape[1:] == (height, width, 3) and len(chunk):
        return
    raise UsageError(
        f"a chunk of frames is {chunk.dtype} {chunk.shape} with {_range_of(chunk)}, "
        f"expected uint8 (1 or more frames, {height}, {width}, 3)",
        fix=fix,
    )


def _range_of(array: np.ndarray) -> str:
    """Describe the values of an array that was refused."""
    if array.size == 0:
        return "no values"
    if array.dtype.kind not in "fiub":
        return "values that are no numbers"
    bad = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if bad == array.size:
        return "only NaN"
    text = f"values {np.nanmin(array)} to {np.nanmax(array)}"
    return f"{text} and {bad} NaN" if bad else text
