"""Read the frames of a video one by one, as upright 8-bit RGB, without holding the clip.

Colours: the matrix and range that the file is tagged with. Untagged YUV is read as players read it:
BT.709 from 1280 pixels of width or above 576 lines (on the coded picture), else BT.601; limited
range. Range and matrix are converted, transfer functions are not: HDR video gets a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream

from sanawm.errors import InputError, UsageError
from sanawm.notes import Notes

from .image import Fit, apply_fit, check_fit, fit_size
from .remux import open_input, read_metadata, video_stream, whole_packets

_MATRICES = {
    1: Colorspace.ITU709, 4: Colorspace.FCC, 5: Colorspace.ITU601, 6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M, 9: Colorspace.BT2020, 10: Colorspace.BT2020,
}  # fmt: skip
#: Transfer functions of HDR: PQ and HLG.
_HDR = (16, 18)
#: A frame may be this much off the even beat before the rate counts as variable (containers round
#: time stamps, often to 1 ms).
_JITTER_SECONDS = 0.002
#: A video that ends this many frames before its header says is worth a warning.
_MISSING = 2.5


class Scan(NamedTuple):
    """What one pass over the packets found: time stamps in display order (seconds), torn data."""

    times: np.ndarray
    torn: bool


class VideoReader:
    """A video file opened for reading; the first stream that is no cover picture.

    Raises `MissingFile` when it cannot be opened, `InputError` when it is no video or holds no
    frame. A file that is cut short gives the frames that are there, with a warning.
    """

    def __init__(self, path: Path, *, notes: Notes | None = None) -> None:
        self.path = path
        self._notes = notes if notes is not None else Notes()
        with open_input(path) as container:
            stream = video_stream(container, path)
            self._header_rate = stream.average_rate or stream.guessed_rate
            aspect = stream.sample_aspect_ratio
        first = self._first_frame()
        self._coded = (first.width, first.height)
        self._turn = first.rotation % 360
        self._note_oddities(first)
        if aspect not in (None, 0, 1):
            self._notes.warn(f"{path}: pixels of shape {aspect} are read as if they were square")

    def _first_frame(self) -> VideoFrame:
        for frame in self._decode():
            return frame
        raise InputError(f"{self.path}: no frame in this video", fix="fetch the file again")

    def _note_oddities(self, first: VideoFrame) -> None:
        if first.color_trc in _HDR:
            self._notes.warn(f"{self.path}: HDR video is read without tone mapping; colours differ")
        if first.interlaced_frame:
            self._notes.warn(f"{self.path}: interlaced video is read as it is, combs included")
        if self._turn % 90:
            self._notes.warn(f"{self.path}: turned by {self._turn} degrees, read as it is stored")

    @property
    def width(self) -> int:
        """Pixels a line, after the file's rotation."""
        return self._coded[self._turn % 180 == 90]

    @property
    def height(self) -> int:
        """Lines, after the file's rotation."""
        return self._coded[self._turn % 180 != 90]

    @property
    def rotation(self) -> int:
        """Degrees counter-clockwise by which the stored picture is turned for display."""
        return self._turn

    @cached_property
    def fps(self) -> Fraction:
        """Average frames per second.

        From the header where it has them, else from the time stamps. Raises `InputError` when
        neither tells.
        """
        if self._header_rate:
            return Fraction(self._header_rate)
        times = self._scan.times
        if len(times) > 1 and times[-1] > times[0]:
            rate = (len(times) - 1) / float(times[-1] - times[0])
            return Fraction(rate).limit_denominator(1001)
        raise InputError(f"{self.path}: the video tells no frame rate", fix="pass --fps")

    @property
    def frame_count(self) -> int:
        """Frames in the file, counted from its packets: headers of growing files are wrong."""
        return len(self._scan.times)

    @property
    def variable_rate(self) -> bool:
        """Whether the frames are unevenly spaced in time."""
        gaps = np.diff(self._scan.times)
        return bool(len(gaps) and gaps.max() - gaps.min() > 2 * _JITTER_SECONDS)

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The file's tags."""
        return read_metadata(self.path)

    @cached_property
    def _scan(self) -> Scan:
        times: list[float] = []
        torn = False
        with open_input(self.path) as container:
            stream = video_stream(container, self.path)
            unit = float(stream.time_base or 0)
            try:
                for packet in whole_packets(container, stream):
                    stamp = packet.pts if packet.pts is not None else packet.dts
                    times.append(float("nan") if stamp is None else stamp * unit)
            except av.error.InvalidDataError:
                torn = True
            except av.error.FFmpegError as error:
                raise self._undecodable(error) from None
            declared = _declared_seconds(container, stream)
        stamps = np.sort(np.array(times))
        if np.isnan(stamps).any():
            stamps = np.arange(len(times)) / float(self._header_rate or 1)
        if not torn and declared is not None:
            self._check_end(stamps, declared)
        return Scan(stamps, torn)

    def _check_end(self, stamps: np.ndarray, declared: float) -> None:
        """Warn when frames end well before the header says: a cut that tore no frame apart."""
        if len(stamps) < 2:
            return
        frame = float(np.diff(stamps).max())
        found = float(stamps[-1]) + frame - min(float(stamps[0]), 0.0)
        if declared - found > _MISSING * frame:
            self._notes.warn(
                f"{self.path}: the video is cut short: its header says {declared:.2f} s, "
                f"{found:.2f} s are there; the first {len(stamps)} frames are used"
            )

    def _decode(self) -> Iterator[VideoFrame]:
        """Decode from the start; data that is cut off or damaged ends the clip with a warning."""
        with open_input(self.path) as container:
            stream = video_stream(container, self.path)
            stream.thread_type = "AUTO"
            count, torn = 0, False
            try:
                for packet in container.demux(stream):
                    if packet.is_corrupt:  # the piece left at the end of a file that was cut
                        torn = True
                        break
                    for frame in stream.decode(packet):
                        yield frame
                        count += 1
            except av.error.InvalidDataError:
                torn = True
            except av.error.FFmpegError as error:
                raise self._undecodable(error) from None
            if not torn:
                return
            for frame in _flush(stream):
                yield frame
                count += 1
            self._notes.warn(
                f"{self.path}: the video is cut short or damaged; the first {count} frames are used"
            )

    def _undecodable(self, error: av.error.FFmpegError) -> InputError:
        return InputError(
            f"{self.path}: the video cannot be decoded ({error.strerror or error})",
            fix="encode it again as H.264 MP4, or fetch the file again",
        )

    def frames(
        self, *, count: int | None = None, indices: Iterable[int] | None = None
    ) -> Iterator[np.ndarray]:
        """Yield frames as uint8 `(H, W, 3)`: the first `count`, or those at `indices`, or all.

        `indices` must not descend; a repeated index yields the same frame again. Raises
        `InputError` when the file ends before the last index, or when its size changes on the way.
        """
        if indices is not None:
            chosen = self._pick(indices)
            yield from chosen if count is None else islice(chosen, count)
            return
        reformatter = VideoReformatter()
        for number, frame in enumerate(islice(self._decode(), count)):
            yield self._to_rgb(frame, number, reformatter)

    def _pick(self, indices: Iterable[int]) -> Iterator[np.ndarray]:
        reformatter = VideoReformatter()
        decoded = enumerate(self._decode())
        at, pixels = -1, np.empty(0)
        for wanted in indices:
            if wanted < max(at, 0):
                raise UsageError(f"frame index {wanted} after {at}: indices must not descend")
            if wanted > at:
                entry = next((e for e in decoded if e[0] == wanted), None)
                if entry is None:
                    raise InputError(
                        f"{self.path}: no frame {wanted}, the video ends before it",
                        fix="fetch the file again, or ask for fewer frames",
                    )
                at, pixels = wanted, self._to_rgb(entry[1], wanted, reformatter)
            yield pixels

    def resampled(self, fps: Fraction) -> list[int]:
        """Return the source frame nearest in time to `k / fps` for k = 0, 1, … to the clip's end.

        Time stamps of the file are used, so clips of variable rate come out even. Of two frames
        equally near the earlier is taken.
        """
        times = self._scan.times - self._scan.times[0]
        last = float(times[-1])
        ticks = np.arange(int(last * float(fps) + 1e-6) + 1) / float(fps)
        after = np.clip(np.searchsorted(times, ticks), 1, max(1, len(times) - 1))
        if len(times) == 1:
            return [0] * len(ticks)
        before = after - 1
        nearer = (times[after] - ticks) < (ticks - times[before]) - 1e-9
        return [int(i) for i in np.where(nearer, after, before)]

    def sample(self, sampling: str, *, fps: Fraction) -> list[int] | None:
        """Return the indices to read for `--video-sampling`, with a line when that changes frames.

        `keep` gives None (every frame, whatever `fps` is); `resample` see `resampled`.
        """
        if sampling == "keep":
            if self.variable_rate:
                self._notes.warn(
                    f"{self.path}: frames are unevenly spaced in time; --video-sampling resample "
                    "evens them out"
                )
            return None
        if sampling != "resample":
            raise UsageError(
                f"video sampling {sampling!r} is unknown: expected keep or resample",
                fix="use --video-sampling keep",
            )
        indices = self.resampled(fps)
        skipped = self.frame_count - len(set(indices))
        repeated = sum(a == b for a, b in pairwise(indices))
        if skipped or repeated:
            self._notes.change(
                f"{self.path}: {self.frame_count} frames at {self.fps} resampled to "
                f"{len(indices)} at {fps} ({skipped} skipped, {repeated} repeated)"
            )
        return indices

    def fit(self, *, width: int, height: int) -> Fit:
        """Return how the frames fit the target, with the lines that `fit_image` gives."""
        fit = fit_size(self.width, self.height, width, height)
        check_fit(fit, notes=self._notes, name=str(self.path))
        return fit

    def fit_frames(
        self,
        *,
        width: int,
        height: int,
        count: int | None = None,
        indices: Iterable[int] | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield frames as `frames` does, resized and cropped to uint8 `(height, width, 3)`."""
        fit = self.fit(width=width, height=height)
        for pixels in self.frames(count=count, indices=indices):
            yield apply_fit(pixels, fit)

    def _to_rgb(self, frame: VideoFrame, number: int, reformatter: VideoReformatter) -> np.ndarray:
        if (frame.width, frame.height) != self._coded:
            raise InputError(
                f"{self.path}: frame {number} is {frame.width}x{frame.height}, "
                f"the clip began with {self._coded[0]}x{self._coded[1]}",
                fix="encode it again at one size",
            )
        rgb = reformatter.reformat(
            frame,
            format="rgb24",
            src_colorspace=_matrix_of(frame),
            src_color_range=_range_of(frame),
            dst_color_range=ColorRange.JPEG,
        )
        pixels = rgb.to_ndarray()
        if self._turn % 90 == 0 and self._turn:
            pixels = np.rot90(pixels, self._turn // 90)
        return np.ascontiguousarray(pixels, dtype=np.uint8)


def _declared_seconds(container: InputContainer, stream: VideoStream) -> float | None:
    """Return how long the header says the video is; None where no header tells for sure.

    Other formats than these have no length in their header: FFmpeg estimates it from what is there.
    """
    name = container.format.name
    if name == "avi":  # FFmpeg takes its duration from the file's size, the frames from its header
        return float(stream.frames / stream.average_rate) if stream.average_rate else None
    if "mov" in name:
        return float(stream.duration * (stream.time_base or 0)) if stream.duration else None
    if "matroska" not in name:
        return None
    clock = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    if clock is not None:
        return 3600 * int(clock[1]) + 60 * int(clock[2]) + float(clock[3])
    alone = len(container.streams) == 1 and container.duration
    return container.duration / 1e6 if alone and container.duration else None


def _flush(stream: VideoStream) -> list[VideoFrame]:
    """Return the frames that the decoder's threads still hold."""
    try:
        return stream.codec_context.decode(None)
    except (av.error.InvalidDataError, av.error.EOFError):
        return []


def _matrix_of(frame: VideoFrame) -> Colorspace | None:
    if frame.format.is_rgb:
        return None
    if frame.colorspace in _MATRICES:
        return _MATRICES[frame.colorspace]
    return Colorspace.ITU709 if frame.width >= 1280 or frame.height > 576 else Colorspace.ITU601


def _range_of(frame: VideoFrame) -> ColorRange:
    if frame.format.is_rgb or frame.format.name.startswith(("yuvj", "gray")):
        return ColorRange.JPEG if frame.color_range != ColorRange.MPEG else ColorRange.MPEG
    return ColorRange.JPEG if frame.color_range == ColorRange.JPEG else ColorRange.MPEG
