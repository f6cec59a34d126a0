"""Take over the frames that a stopped run left in its part file, without encoding them again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import av
from av.bitstream import BitStreamFilterContext
from av.video.stream import VideoStream

from sanawm.errors import InputError, OutputError, SanawmError

from .encoder import ENCODERS, VideoPacket, VideoSettings
from .files import write_error
from .growing import GrowingMP4
from .part import PartFile
from .remux import count_frames, open_input, video_stream, whole_boxes

_START_CODE = b"\x00\x00\x00\x01"
_REDO = "run again without --resume"


def keep_frames(part: PartFile, settings: VideoSettings, frames: int) -> GrowingMP4:
    """Return a growing MP4 that starts with the first `frames` frames of `part`.

    They are copied into a new file, which then takes the part's place; until then the old part is
    untouched, but for a torn end that keeps it from opening, which is cut off. The result has the
    same bytes as if it had been written in one go. Raises `OutputError` when the part holds fewer
    frames, or was made with other settings.
    """
    found = _count(part)
    if found < frames:
        raise OutputError(
            f"cannot continue {part.target}: {part.path} holds {found} frames, "
            f"expected at least {frames}",
            fix=_REDO,
        )
    fresh = fresh_path(part.path)
    fd = _open_new(fresh)
    growing = None
    try:
        growing = GrowingMP4(fd, settings)
        growing.add(_kept_packets(part.path, settings, frames, growing.extradata))
        part.adopt(fd, fresh)
    except BaseException as error:
        if growing is not None:
            growing.give_up()
        os.close(fd)
        fresh.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, OutputError):
            raise write_error(part.path, error) from None
        raise
    return growing


def fresh_path(part: Path) -> Path:
    """Return where kept frames are gathered; a run that was killed just then leaves it behind."""
    return part.with_name(f".sanawm-keep-{part.stem[-80:]}")


def _count(part: PartFile) -> int:
    """Return the frames in a part file, cutting its end off when that is torn (a power cut)."""
    try:
        return count_frames(part.path).found
    except InputError:
        part.truncate(whole_boxes(part.path))
    try:
        return count_frames(part.path).found
    except SanawmError as error:
        raise OutputError(f"cannot continue {part.target}: {error.message}", fix=_REDO) from None


def _open_new(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise write_error(path, error) from None


def _kept_packets(
    path: Path, settings: VideoSettings, frames: int, extradata: bytes
) -> Iterator[VideoPacket]:
    """Yield the first packets of a part in the form in which an encoder gives them."""
    with open_input(path) as container:
        stream = video_stream(container, path)
        _check_same_stream(path, stream, settings)
        packets = (p for p in container.demux(stream) if p.size)
        for number, packet in enumerate(islice(packets, frames)):
            if number == 0:
                _check_parameter_sets(path, stream, packet, settings, extradata)
            copy: Any = av.Packet(_start_codes(bytes(packet)))
            copy.pts = copy.dts = number
            copy.duration = 1
            copy.time_base = 1 / settings.fps
            copy.is_keyframe = packet.is_keyframe
            yield copy


def _check_same_stream(path: Path, stream: VideoStream, settings: VideoSettings) -> None:
    found = (stream.width, stream.height, stream.average_rate, stream.codec_context.codec_tag)
    spec = ENCODERS[settings.encoder]
    wanted = (settings.width, settings.height, settings.fps, spec.tag)
    if found != wanted:
        raise OutputError(
            f"cannot continue {path}: it is {_describe(*found)}, this run makes "
            f"{_describe(*wanted)}",
            fix=_REDO,
        )


def _describe(width: int, height: int, rate: object, tag: str) -> str:
    return f"{width}x{height} {tag} at {rate} frames per second"


def _check_parameter_sets(
    path: Path, stream: VideoStream, packet: VideoPacket, settings: VideoSettings, extradata: bytes
) -> None:
    """Check that the header which the new file gets fits the old packets.

    FFmpeg's filter puts the old parameter sets in front of the first packet, where they can be
    compared with those of the encoder in use.
    """
    to_annexb = BitStreamFilterContext(ENCODERS[settings.encoder].filter_to_annexb, stream)
    clone = av.Packet(bytes(packet))
    clone.pts = clone.dts = 0
    clone.time_base = stream.time_base or 1 / settings.fps
    clone.is_keyframe = True
    old = {unit for p in to_annexb.filter(clone) for unit in _units(bytes(p))}
    if not set(_units(extradata)) <= old:
        raise OutputError(
            f"cannot continue {path}: it was encoded with other settings or another version "
            f"of {settings.encoder}",
            fix=_REDO,
        )


def _units(data: bytes) -> list[bytes]:
    """Split a byte stream at its start codes (three or four bytes)."""
    return [u for u in re.split(rb"\x00*\x00\x00\x01", data) if u]


def _start_codes(data: bytes) -> bytes:
    """Replace the four length bytes in front of each unit of an MP4 packet by a start code."""
    units, position = [], 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        units += [_START_CODE, data[position + 4 : position + 4 + size]]
        position += 4 + size
    return b"".join(units)
