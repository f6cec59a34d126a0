"""Frame arithmetic and the glossary of shape letters. Imports no torch.

| letter | meaning |
|---|---|
| B | batch |
| C | latent channels |
| T | latent frames (VAE time steps); *frames* alone are pixel frames |
| H, W | latent height and width |
| S | query tokens of a block |
| P | key tokens that a block's queries see |
| D | model width |
| N | attention heads |
| K | head size |
| L | text tokens |
| E | text width |
| M | layers |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from .errors import UsageError

#: Most frames that can be asked for: 17 hours at 16 a second. Above it, a typing error is likelier.
MAX_FRAMES = 1_000_000


class LatentShape(NamedTuple):
    """Shape of a clip of latents, `(B, C, T, H, W)`."""

    batch: int
    channels: int
    frames: int
    height: int
    width: int

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of one latent frame (patch size 1): `H * W`."""
        return self.height * self.width


class VAERatios(NamedTuple):
    """Pixels per latent: temporal ratio `time`, spatial ratio `space`."""

    time: int
    space: int

    def frames_of(self, latent_frames: int) -> int:
        """Return the pixel frames that `latent_frames` (>= 1) decode to: `time * (T - 1) + 1`."""
        return self.time * (latent_frames - 1) + 1

    def latent_frames_of(self, frames: int) -> int:
        """Return the latent frames of `frames` pixel frames, which must be `time * k + 1`."""
        if frames < 1 or (frames - 1) % self.time:
            below = max(0, (frames - 1) // self.time) * self.time + 1
            raise UsageError(
                f"{frames} frames cannot be encoded: expected {self.time}*k + 1 frames",
                fix=f"use {below} or {below + self.time} frames",
            )
        return (frames - 1) // self.time + 1


class PixelShape(NamedTuple):
    """Size of a clip in pixels: `frames`, `height`, `width`."""

    frames: int
    height: int
    width: int


class BlockSpan(NamedTuple):
    """Latent frames `start .. stop - 1` of block `number` (from 0)."""

    number: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """Latent frames in the block."""
        return self.stop - self.start


class Window(NamedTuple):
    """The refiner's attention window in latent frames; `kv_max` bounds sink + history."""

    sink: int
    block: int
    kv_max: int

    @property
    def history_max(self) -> int:
        """Most history frames that are kept."""
        return self.kv_max - self.sink

    def blocks(self, latent_frames: int) -> Iterator[BlockSpan]:
        """Yield the blocks of a clip of `latent_frames`; the last may be shorter."""
        for number, start in enumerate(range(self.sink, latent_frames, self.block)):
            yield BlockSpan(number, start, min(start + self.block, latent_frames))

    def history_at(self, block_start: int) -> int:
        """Return the history frames that the block starting at `block_start` sees."""
        return min(block_start - self.sink, self.history_max)

    def sink_position_at(self, block_start: int) -> int:
        """Return the frame position of the first sink frame: right in front of the history."""
        return block_start - self.history_at(block_start) - self.sink


def check_window(window: Window) -> str | None:
    """Raise `UsageError` for an impossible window; return a warning line for a doubtful one.

    Rules of the streaming refiner: `sink >= 0`, `block >= 1`, `kv_max > sink`.
    """
    sink, block, kv_max = window
    if sink < 0:
        raise UsageError(f"sink size {sink} is negative", fix="use --sink-size 0 or more")
    if block < 1:
        raise UsageError(
            f"refiner block size {block} is below 1", fix="use --refiner-block-size 1 or more"
        )
    if kv_max <= sink:
        raise UsageError(
            f"the refiner window of {kv_max} latent frames holds no history: "
            f"it must be larger than the sink ({sink})",
            fix=f"use --refiner-kv-max-frames {sink + 1} or more, best {sink + block} or more",
        )
    if kv_max < sink + block:
        return (
            f"refiner window {kv_max} is below sink + block = {sink + block}: "
            "expect flicker at block borders"
        )
    return None


def check_fps(fps: float) -> None:
    """Raise `UsageError` unless the frame rate is a positive number."""
    if not 0 < fps < math.inf:
        raise UsageError(f"frame rate {fps} is not a positive number", fix="use a rate such as 16")


def snap_frames(frames: int, stride: int, upper: int | None = None) -> int:
    """Return the count `stride * k + 1` nearest to `frames`: ties go up, never above `upper`."""
    if frames < 1:
        return 1
    below = frames - (frames - 1) % stride
    if below == frames:
        return frames
    snapped = below if frames - below < below + stride - frames else below + stride
    return below if upper is not None and snapped > upper else snapped
