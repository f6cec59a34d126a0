"""Lossless videos and latents files whose differences are known to the value."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import torch
from safetensors.torch import save_file

FRAMES, HEIGHT, WIDTH = 37, 32, 48
#: Frames a block; the clip begins with one more, as a clip with its sink picture does.
BLOCK = 12


def moving(frames: int = FRAMES, *, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Return soft shapes that move evenly, uint8 `(frames, height, width, 3)`."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    t = np.arange(frames)[:, None, None]
    planes = [
        128 + 60 * np.sin((x + 2 * t) / 7),
        128 + 60 * np.cos((y - t) / 9),
        100 + x / 2 + y / 2 + 0 * t,
    ]
    return np.rint(np.stack(planes, axis=-1)).astype(np.uint8)


def write_lossless(path: Path, frames: np.ndarray, *, fps: int = 16) -> Path:
    """Write frames to a video that gives them back bit for bit (FFV1 in RGB)."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="bgr0")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_latents(path: Path, latents: torch.Tensor, **metadata: str) -> Path:
    """Write a latents file."""
    save_file({"latents": latents.contiguous()}, path, metadata=metadata)
    return path


def latents(frames: int = 7) -> torch.Tensor:
    """Return seeded latents `(1, 16, frames, 6, 8)`."""
    return torch.randn(1, 16, frames, 6, 8, generator=torch.Generator().manual_seed(1))
