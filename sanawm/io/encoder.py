"""Video encoders: which are supported, how they are set, and one closed group of pictures a chunk.

Every chunk gets a fresh encoder, so its bytes depend on its own frames and the settings alone. That
is what makes a resumed file equal to one written in one go. It also rules out three habits of
encoders: look-ahead and B-frames (frames would be held back, lost on a kill and invisible to who
watches the file grow), key frames at scene cuts (they would leave the chunk borders), and a thread
count taken from the machine (x264 cuts each picture into as many slices as it has threads).

The encoder's own clock always runs at `CLOCK` frames per second, because x264 and x265 give longer
frames finer quantisers: with the clip's rate, `--output-fps` would change pixels. The clip's rate
is in the time stamps and in the header, which is that of an encoder told the clip's rate.

Colours: RGB is converted to BT.709, limited range, and the stream is tagged with just that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import av
import numpy as np
from av.codec.context import Flags
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream

from sanawm.errors import MachineError, UsageError
from sanawm.notes import Notes

from .rates import parse_fps

VideoPacket: TypeAlias = "Packet[VideoStream]"

#: Encoder threads, the same on every machine because the bytes depend on it.
ENCODER_THREADS = 4
#: Frames per second that encoders are told, whatever the rate of the clip: the released model's.
CLOCK = Fraction(16)
#: Code points of BT.709 and of limited range ("tv") in H.264, H.265 and MP4.
BT709 = 1
LIMITED_RANGE = 1
#: Largest width or height, pixels (level 6.2 of H.264).
MAX_SIDE = 16384

_X26X_PRESETS = (
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow",
    "placebo",
)  # fmt: skip
_NVENC_PRESETS = ("p1", "p2", "p3", "p4", "p5", "p6", "p7", "fast", "medium", "slow")


@dataclass(frozen=True)
class EncoderSpec:
    """One supported encoder: its presets, and the MP4 tag and filter of its streams."""

    name: str
    presets: tuple[str, ...]
    tag: str
    filter_to_annexb: str


ENCODERS = {
    spec.name: spec
    for spec in (
        EncoderSpec("libx264", _X26X_PRESETS, "avc1", "h264_mp4toannexb"),
        EncoderSpec("libx265", _X26X_PRESETS, "hvc1", "hevc_mp4toannexb"),
        EncoderSpec("h264_nvenc", _NVENC_PRESETS, "avc1", "h264_mp4toannexb"),
    )
}


@dataclass(frozen=True)
class VideoSettings:
    """How a video is encoded.

    `width` and `height` in pixels, both even; `fps` exact; `crf` 0 (lossless) .. 51 (worst);
    `frames_per_chunk` is the longest distance between key frames, normally the frames of one
    chunk. `metadata` goes into the file: `title`, `comment`, or any key such as `sanawm`.
    """

    width: int
    height: int
    fps: Fraction
    crf: float = 18
    encoder: str = "libx264"
    encoder_preset: str = "medium"
    frames_per_chunk: int = 24
    metadata: Mapping[str, str] = field(default_factory=dict)


def check_settings(settings: VideoSettings, *, notes: Notes | None = None) -> None:
    """Raise `UsageError` or `MachineError` for settings that no encoder would take.

    FFmpeg ignores or rounds most mistakes silently, so everything is checked here. `notes` gets a
    warning for settings that make files which not every player shows.
    """
    spec = _spec(settings.encoder)
    check_frame_size(settings.width, settings.height)
    parse_fps(settings.fps)
    crf = settings.crf
    if isinstance(crf, bool) or not isinstance(crf, (int, float)) or not 0 <= crf <= 51:
        raise UsageError(
            f"crf {crf} is out of range: expected 0 (lossless) to 51 (worst)", fix="use --crf 18"
        )
    if settings.encoder_preset not in spec.presets:
        raise UsageError(
            f"encoder preset {settings.encoder_preset!r} is unknown to {spec.name}: "
            f"expected one of {', '.join(spec.presets)}",
            fix="use --encoder-preset medium",
        )
    if settings.frames_per_chunk < 1:
        raise UsageError(
            f"frames per chunk is {settings.frames_per_chunk}, expected 1 or more",
            fix="use the frames that one block decodes to",
        )
    _check_metadata(settings.metadata)
    if notes is not None and crf == 0 and spec.name == "libx264":
        notes.warn(
            "crf 0 makes lossless H.264 (profile High 4:4:4), which many players cannot show"
        )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        if not isinstance(value, str) or not isinstance(key, str) or not key:
            raise UsageError(f"video metadata {key!r} is no text", fix="pass strings only")
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in key + value):
            raise UsageError(
                f"video metadata {key!r} holds a NUL or text that is not valid Unicode",
                fix="pass JSON with its escapes",
            )


def check_frame_size(width: int, height: int) -> None:
    """Raise `UsageError` unless both sides are even and 2 .. 16384 pixels."""
    if width % 2 or height % 2:
        raise UsageError(
            f"video size {width}x{height} cannot be encoded: width and height must be even "
            "(yuv420p halves the colour planes)",
            fix=f"use {width - width % 2}x{height - height % 2} "
            f"or {width + width % 2}x{height + height % 2}",
        )
    if not (2 <= width <= MAX_SIDE and 2 <= height <= MAX_SIDE):
        raise UsageError(
            f"video size {width}x{height} is out of range: expected 2 to {MAX_SIDE} pixels a side",
            fix="choose another --width and --height",
        )


def _spec(name: str) -> EncoderSpec:
    if name not in ENCODERS:
        raise MachineError(
            f"video encoder {name!r} is not supported; usable here: {', '.join(usable_encoders())}",
            fix="use --encoder libx264",
        )
    return ENCODERS[name]


def usable_encoders() -> list[str]:
    """Return the supported encoders that open on this machine, tried one by one."""
    return [name for name in ENCODERS if _try_encoder(name, 256, 144) is None]


def check_encoder(name: str, *, width: int = 256, height: int = 144) -> None:
    """Encode one grey frame with encoder `name`, so that a missing one is known before any work.

    Raises `MachineError` naming the encoder, the reason, and the encoders that work here.
    """
    check_frame_size(width, height)
    _spec(name)
    reason = _try_encoder(name, width, height)
    if reason is not None:
        others = ", ".join(n for n in usable_encoders() if n != name) or "none"
        raise MachineError(
            f"video encoder {name} does not work on this machine at {width}x{height} ({reason}); "
            f"usable here: {others}",
            fix="use --encoder libx264",
        )


def _try_encoder(name: str, width: int, height: int) -> str | None:
    """Return None when the encoder turns a frame into packets, else the reason it did not."""
    settings = VideoSettings(width=width, height=height, fps=Fraction(16), encoder=name)
    grey = np.full((1, height, width, 3), 128, dtype=np.uint8)
    try:
        if any(packet.size for packet in encode_chunk(settings, grey, first_frame=0)):
            return None
    except (av.error.FFmpegError, ValueError, OSError) as error:
        if name not in av.codecs_available:
            return "it is not in this FFmpeg"
        return getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return "it gave no data"


def open_encoder(settings: VideoSettings) -> VideoCodecContext:
    """Return a fresh, opened encoder, whose clock is `CLOCK`."""
    context: Any = av.CodecContext.create(settings.encoder, "w")
    configure(context, settings, rate=CLOCK)
    context.open()
    return context


def configure(context: VideoCodecContext, settings: VideoSettings, *, rate: Fraction) -> None:
    """Set everything of an encoder that is not open yet; `rate` is that of its clock."""
    context.width, context.height = settings.width, settings.height
    context.pix_fmt = "yuv420p"
    context.framerate = rate
    context.time_base = 1 / rate
    context.gop_size = settings.frames_per_chunk
    context.max_b_frames = 0
    context.color_range = LIMITED_RANGE
    context.colorspace = BT709
    context.color_primaries = BT709
    context.color_trc = BT709
    context.flags |= Flags.global_header | Flags.closed_gop
    if ENCODERS[settings.encoder].tag == "hvc1":
        context.codec_tag = "hvc1"  # FFmpeg's own choice, hev1, is unknown to Apple's players
    context.options = _options(settings)


def _options(settings: VideoSettings) -> dict[str, str]:
    """Return the encoder's private options; every name is one that the encoder knows."""
    quality = f"{settings.crf:g}"
    if settings.encoder == "libx264":
        return {
            "preset": settings.encoder_preset, "crf": quality, "tune": "zerolatency",
            "sc_threshold": "0", "threads": str(ENCODER_THREADS),
        }  # fmt: skip
    if settings.encoder == "libx265":
        # weightp=0: the analysis of weighted prediction races with the encoding threads
        fixed = (
            "scenecut=0:open-gop=0:weightp=0:frame-threads=1:log-level=error:"
            f"pools={ENCODER_THREADS}"
        )
        return {
            "preset": settings.encoder_preset, "crf": quality, "tune": "zerolatency",
            "x265-params": fixed,
        }  # fmt: skip
    return {
        "preset": settings.encoder_preset, "rc": "vbr", "cq": quality, "b": "0", "delay": "0",
        "zerolatency": "1", "no-scenecut": "1", "forced-idr": "1",
    }  # fmt: skip


def encode_chunk(
    settings: VideoSettings,
    frames: np.ndarray,
    *,
    first_frame: int,
    reformatter: VideoReformatter | None = None,
) -> Iterator[VideoPacket]:
    """Yield the packets of `frames`, uint8 `(T, H, W, 3)` RGB, as a closed group of pictures.

    Time stamps count frames from `first_frame` in units of `1 / settings.fps`. A `reformatter` that
    lives longer than the chunk saves setting up the colour conversion again.
    """
    converter = reformatter or VideoReformatter()
    encoder = open_encoder(settings)
    for number, pixels in enumerate(frames, start=first_frame):
        frame = converter.reformat(
            av.VideoFrame.from_ndarray(pixels, format="rgb24"),
            format="yuv420p",
            src_color_range=ColorRange.JPEG,
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
        )
        frame.pts = number
        frame.time_base = 1 / CLOCK
        yield from _at_rate(encoder.encode(frame), settings.fps)
    yield from _at_rate(encoder.encode(None), settings.fps)


def _at_rate(packets: list[VideoPacket], fps: Fraction) -> Iterator[VideoPacket]:
    """Yield packets of one frame each, their time stamps in units of `1 / fps`."""
    for packet in packets:
        packet.time_base = 1 / fps
        packet.duration = 1
        yield packet
