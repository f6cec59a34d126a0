"""Small clips and plain PyAV reading for the tests of `sanawm.io`."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from sanawm.io.video import VideoWriter

CASES = Path(__file__).parent.parent / "cases"


def moving_clip(
    frames: int, *, width: int = 64, height: int = 32, seed: int = 0, start: int = 0
) -> np.ndarray:
    """Return soft moving shapes, uint8 `(frames, height, width, 3)`; `start` shifts time."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = np.random.default_rng(seed).uniform(0.05, 0.2, (3, 3))
    t = np.arange(start, start + frames)[:, None, None]
    planes = [128 + 100 * np.sin(a * x + b * y + c * t * 2) for a, b, c in waves]
    return np.rint(np.stack(planes, axis=-1)).astype(np.uint8)


def wait_for(writer: VideoWriter, frames: int) -> None:
    """Wait until the writer's thread has handed `frames` frames to the file."""
    deadline = time.monotonic() + 30
    while writer.frames_written < frames:
        assert time.monotonic() < deadline, "the writer stands still"
        time.sleep(0.002)


def decode(path: Path) -> np.ndarray:
    """Return all frames as PyAV gives them, uint8 `(T, H, W, 3)`, up to the end of usable data."""
    frames = []
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                frames.append(frame.to_ndarray(format="rgb24"))
    except av.error.InvalidDataError:
        pass  # the torn end of a file that was cut
    return np.stack(frames) if frames else np.zeros((0, 0, 0, 3), np.uint8)


def box_ends(path: Path) -> list[tuple[str, int]]:
    """Return the names of an MP4's top-level boxes and where each ends, in file order."""
    data, boxes, at = path.read_bytes(), [], 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8].decode("latin-1")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8:
            break
        at += size
        boxes.append((name, at))
    return boxes


def box_names(path: Path) -> list[str]:
    """Return the names of an MP4's top-level boxes in file order."""
    return [name for name, _ in box_ends(path)]


def encode_plain(
    path: Path,
    frames: np.ndarray,
    *,
    fps: Fraction = Fraction(16),
    stamps: list[int] | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    colorspace: int = 2,
    color_range: int = 0,
    matrix: int | None = None,
    rotation: int = 0,
    crf: int = 4,
) -> Path:
    """Write a video with PyAV alone: `matrix` converts, `colorspace`/`color_range` only tag.

    `stamps` are presentation times in milliseconds, for clips of uneven rate.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        if codec.startswith("libx264"):
            stream.options = {"crf": str(crf), "bf": "0"}
        stream.codec_context.colorspace = colorspace
        stream.codec_context.color_range = color_range
        if stamps:
            stream.codec_context.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)
        for i, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if matrix is not None:
                frame = frame.reformat(
                    format=pix_fmt,
                    dst_colorspace=matrix,
                    src_color_range=2,
                    dst_color_range=2 if color_range == 2 else 1,
                )
            frame.pts = stamps[i] if stamps else i
            frame.time_base = Fraction(1, 1000) if stamps else 1 / fps
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
