"""Look at a finished MP4: count frames, read metadata; and move its index to the front."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from sanawm.errors import InputError, MissingFile, OutputError

from .encoder import VideoPacket
from .files import atomic_write

#: Tags that the muxer writes by itself; they say nothing about the video.
_MUXER_TAGS = {"major_brand", "minor_version", "compatible_brands", "encoder"}


class FrameCount(NamedTuple):
    """Frames that the header claims (0 or 1 in a growing file), found, and whether data is torn."""

    header: int
    found: int
    torn: bool


def open_input(path: Path) -> InputContainer:
    """Open a local media file for reading.

    Raises `MissingFile` when it cannot be opened and `InputError` when FFmpeg cannot read it. The
    name is never taken for a protocol or a playlist of other places.
    """
    try:
        if path.is_dir():
            raise MissingFile(f"{path}: a folder, not a video file")
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty", fix="fetch or make the video again")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, (MissingFile, InputError)):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise MissingFile(f"{path}: cannot be read ({reason})") from None
    try:
        return av.open(f"file:{path}", "r", options={"protocol_whitelist": "file"})
    except (av.error.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(path, reason) from None


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path}: not a video that can be read ({reason})",
        fix="fetch the file again; an MP4 that was cut off before its end has no index",
    )


def video_stream(container: InputContainer, path: Path) -> VideoStream:
    """Return the first video stream that is no cover picture. Raises `InputError` without one."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    kinds = sorted({str(s.type) for s in container.streams})
    if not kinds:
        raise _unreadable(path, "no stream in it")
    raise InputError(
        f"{path}: no video in this file (it holds {', '.join(kinds)})", fix="give a video file"
    )


def whole_packets(container: InputContainer, stream: VideoStream) -> Iterator[VideoPacket]:
    """Yield the packets of one frame each, whole and meant to be shown.

    Raises `av.error.InvalidDataError` where the data is torn: FFmpeg itself hands out the piece of
    a packet that is left at the end of a file that was cut.
    """
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise av.error.InvalidDataError(0, "torn packet")
        if packet.size and not packet.is_discard:
            yield packet


def count_frames(path: Path) -> FrameCount:
    """Count the frames of a video by reading its packets, without decoding."""
    with open_input(path) as container:
        stream = video_stream(container, path)
        found, torn = 0, False
        try:
            for _ in whole_packets(container, stream):
                found += 1
        except av.error.InvalidDataError:
            torn = True
        return FrameCount(stream.frames, found, torn)


def whole_boxes(path: Path) -> int:
    """Return the bytes at the start of a growing MP4 that hold whole fragments alone."""
    end = at = 0
    total = path.stat().st_size
    with path.open("rb") as file:
        while len(head := file.read(16)) >= 8:
            size, name = int.from_bytes(head[:4], "big"), head[4:8]
            if size == 1:
                size = int.from_bytes(head[8:16], "big")
            if size < 8 or at + size > total:
                break
            at += size
            file.seek(at)
            if name != b"moof":  # a fragment's head is nothing without its data
                end = at
    return end


def read_metadata(path: Path) -> dict[str, str]:
    """Return the tags of a video file, such as `sanawm`, `title`; works on unfinished files too."""
    with open_input(path) as container:
        tags = {str(k): str(v) for k, v in container.metadata.items()}
    return {k: v for k, v in tags.items() if k not in _MUXER_TAGS}


def faststart(path: Path) -> None:
    """Move the index of the MP4 `path` to its front, so that it plays while it downloads.

    The packets are copied, not encoded again, and the metadata is kept. The file is replaced only
    when the copy is complete and holds the same number of frames. Raises `OutputError` when the
    copy cannot be written; `path` is then as it was.
    """
    before = count_frames(path)
    with atomic_write(path) as temporary:
        try:
            _copy_index_first(path, temporary)
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):
                raise
            raise OutputError(
                f"{path}: the index cannot be moved to the front ({error})",
                fix="the video is whole; leave out --faststart",
            ) from None
        after = count_frames(temporary)
        if after.found != before.found:
            raise OutputError(
                f"{path}: moving the index gave {after.found} frames, expected {before.found}; "
                "the file is unchanged",
                fix="the video is whole; leave out --faststart",
            )
        _sync(temporary)


def _copy_index_first(source_path: Path, target_path: Path) -> None:
    options = {"movflags": "+faststart+use_metadata_tags"}
    with (
        open_input(source_path) as source,
        av.open(f"file:{target_path}", "w", format="mp4", options=options) as target,
    ):
        stream = video_stream(source, source_path)
        for key, value in source.metadata.items():
            if key not in _MUXER_TAGS:
                target.metadata[key] = value
        out = target.add_stream_from_template(stream)
        if stream.codec_context.codec_tag == "hvc1":
            out.codec_context.codec_tag = "hvc1"
        for packet in source.demux(stream):
            if packet.dts is None:
                continue
            packet.stream = out
            target.mux(packet)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
