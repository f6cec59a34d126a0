"""The MP4 that plays while it grows: the container side of the video writer.

The header is there from the start, so the file opens before its first frame. Every frame is a
fragment of its own and is handed to the kernel when the next one comes, so a reader that opens the
file sees all frames but the newest, and a kill loses one frame at most. At the end one complete
index is appended and the fragments become plain data: an ordinary MP4.

The bytes go through `Sink`, which owns the descriptor. After the first failed write it drops all
the rest, above all the last step of the muxer (turn the fragments into plain data), which works on
a full disk too and would leave a file without an index.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from typing import Any

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from .begun import MADE_HERE
from .encoder import VideoPacket, VideoSettings, configure

#: In order of preference; the second gives files that stay fragmented.
MOVFLAGS = (
    "hybrid_fragmented+empty_moov+frag_every_frame+use_metadata_tags",
    "frag_every_frame+empty_moov+default_base_moof+use_metadata_tags",
)


class Sink(io.RawIOBase):
    """A file descriptor as a file object for the muxer; keeps the first error instead of raising.

    Raising would go through C code that loses the cause. `error` is that first `OSError`; from
    then on everything is accepted and dropped.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._position = 0
        self.error: OSError | None = None
        self.frozen = False

    def writable(self) -> bool:
        """Tell that it takes data."""
        return True

    def seekable(self) -> bool:
        """Tell that the muxer may go back to fill in sizes."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an absolute or relative position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (os.fstat(self._fd).st_size if base is None else base)
        return self._position

    def write(self, data: object) -> int:
        """Write all of `data` at the position; `write` of the system may take less at a time."""
        view = memoryview(data)  # type: ignore[arg-type]
        done = 0
        while done < len(view) and not self.frozen:
            try:
                done += os.pwrite(self._fd, view[done:], self._position + done)
            except OSError as error:
                self.error = error
                self.frozen = True
        self._position += len(view)
        return len(view)


class GrowingMP4:
    """A fragmented MP4 on the descriptor `fd`, empty and at position 0.

    Errors of the file are raised as the plain `OSError` of the failed write, errors of the
    container as `av.error.FFmpegError`.
    """

    def __init__(self, fd: int, settings: VideoSettings) -> None:
        self._fd = fd
        self.sink = Sink(fd)
        self.frames = 0
        self._whole = 0  # bytes of whole fragments: what is left after an error
        flags = movflags()
        self.stays_fragmented = flags != MOVFLAGS[0]
        self._container: OutputContainer = av.open(
            self.sink, "w", format="mp4", options={"movflags": flags, "flush_packets": "1"}
        )
        self._container.metadata.update(settings.metadata or MADE_HERE)
        stream: Any = self._container.add_stream(settings.encoder, rate=settings.fps)
        self.stream: VideoStream = stream
        configure(self.stream.codec_context, settings, rate=settings.fps)
        self.stream.codec_context.open()  # fills in the parameter sets that the header holds
        self._container.start_encoding()
        self._raise_sink_error()

    @property
    def extradata(self) -> bytes:
        """The parameter sets that decoders read from the header."""
        return self.stream.codec_context.extradata or b""

    def add(self, packets: Iterable[VideoPacket]) -> None:
        """Append one packet a frame."""
        for packet in packets:
            packet.stream = self.stream
            self._container.mux_one(packet)
            self._raise_sink_error()
            self.frames += 1
            self._whole = self.sink.tell()

    def finish(self) -> None:
        """Append the index and turn the file into an ordinary MP4."""
        self._container.close()
        self._raise_sink_error()

    def give_up(self) -> int:
        """Close without touching the file again; return the bytes of whole fragments in it."""
        self.sink.close()  # a closed file object makes the container skip the index
        self._container.close()
        return self._whole

    def _raise_sink_error(self) -> None:
        if self.sink.error is not None:
            raise self.sink.error


@cache
def movflags() -> str:
    """Return the first of `MOVFLAGS` that the FFmpeg in use knows."""
    for flags in MOVFLAGS:
        container = av.open(io.BytesIO(), "w", format="mp4", options={"movflags": flags})
        stream = container.add_mux_stream("mjpeg", rate=1, width=16, height=16)
        packet = av.Packet(bytes(32))  # an unknown flag shows when the first packet is written
        packet.stream = stream
        packet.pts = packet.dts = 0
        packet.time_base = Fraction(1)
        try:
            container.mux_one(packet)
        except (av.error.FFmpegError, ValueError):
            continue
        container.close()
        return flags
    return MOVFLAGS[-1]
