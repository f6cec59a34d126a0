"""Between the VAE's pixels, about [-1, 1], and bytes. All arithmetic is in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from sanawm.errors import NumericsError, UsageError


def pixels_to_uint8(pixels: Tensor) -> Tensor:
    """Return pixels `(B, 3, frames, height, width)` as bytes `(B, frames, height, width, 3)`.

    The formula is `round((x + 1) * 127.5)`, clamped to [0, 255], ties to the even byte. Public
    implementations truncate instead, which is half a level darker on average.

    Raises `NumericsError` when a pixel is NaN or infinite.
    """
    levels = (pixels.float() + 1).mul_(127.5)
    if not torch.isfinite(levels).all():
        bad = int(levels.numel() - torch.isfinite(levels).sum())
        raise NumericsError(
            f"VAE decoder: {bad} of {levels.numel()} pixel values are NaN or infinite",
            fix="check the latents; if they are finite, decode in float32 or bfloat16",
        )
    return levels.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous()


def uint8_to_pixels(frames: Tensor) -> Tensor:
    """Return bytes `(B, frames, height, width, 3)` as float32 `(B, 3, frames, height, width)`.

    The formula is `x / 255 * 2 - 1`. Raises `UsageError` when `frames` is not uint8.
    """
    if frames.dtype != torch.uint8 or frames.ndim != 5:
        raise UsageError(
            f"frames are {frames.dtype} {tuple(frames.shape)}, expected uint8 (B, frames, H, W, 3)"
        )
    return (frames.float() / 255 * 2 - 1).permute(0, 4, 1, 2, 3).contiguous()
