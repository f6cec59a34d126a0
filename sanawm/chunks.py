"""What passes between the stages of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .shapes import BlockSpan


@dataclass(frozen=True)
class RefinedChunk:
    """One refined block. The first chunk of a clip starts with the sink frames.

    `latents` is `(B, C, T, H, W)` float32: `span.frames` refined frames, after the sink's in
    chunk 0.
    """

    span: BlockSpan
    latents: Tensor
    history_frames: int
    sink_position: int


@dataclass(frozen=True)
class FrameChunk:
    """The frames of one block: `frames` `(T, H, W, 3)` uint8, `first` the number of the first.

    `first` counts decoded frames, so a dropped frame 0 makes the first chunk start at 1: frame i
    belongs to camera pose i.
    """

    span: BlockSpan
    first: int
    frames: np.ndarray
