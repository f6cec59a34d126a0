"""Latents as a hurried stage 1 would make them: soft, drifting in colour, noisy.

On normalised latents `(B, C, T, H, W)`. The first latent frame, the image, stays as it is.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def degrade(latents: Tensor, generator: torch.Generator) -> Tensor:
    """Return worse latents, another degree of it in every item of the batch."""
    B, C, T, _, _ = latents.shape

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(B, 1, 1, 1, 1, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x = latents
    x = x.lerp(_blur_space(x), uniform(0.2, 0.7))
    x = x.lerp(_blur_time(x), uniform(0.0, 0.6))
    gain = 1 + 0.12 * normal(B, C, 1, 1, 1) * _drift(B, T, generator)
    shift = 0.22 * uniform(0.3, 1.3) * normal(B, C, 1, 1, 1) * _drift(B, T, generator)
    x = x * gain + shift + uniform(0.15, 0.4) * _slow_noise(latents, generator)
    return torch.cat((latents[:, :, :1], x[:, :, 1:]), dim=2)


def _blur_space(x: Tensor) -> Tensor:
    B, _, T, H, W = x.shape
    frames = x.transpose(1, 2).flatten(0, 1)
    soft = F.interpolate(F.avg_pool2d(frames, 2), size=(H, W), mode="bilinear", align_corners=False)
    return soft.unflatten(0, (B, T)).transpose(1, 2)


def _blur_time(x: Tensor) -> Tensor:
    padded = torch.cat((x[:, :, :1], x, x[:, :, -1:]), dim=2)
    return (padded[:, :, :-2] + padded[:, :, 1:-1] + padded[:, :, 2:]) / 3


def _drift(batch: int, frames: int, generator: torch.Generator) -> Tensor:
    """Return a slow wave around 1 over the frames, `(B, 1, T, 1, 1)`."""
    period = 12 + 20 * torch.rand(batch, 1, generator=generator)
    phase = 2 * math.pi * torch.rand(batch, 1, generator=generator)
    wave = 1 + 0.5 * torch.sin(2 * math.pi * torch.arange(frames) / period + phase)
    return wave[:, None, :, None, None]


def _slow_noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return unit noise, half of it smooth in space, that changes slowly from frame to frame."""
    B, C, T, H, W = like.shape
    white = torch.randn(like.shape, generator=generator)
    smooth = F.avg_pool2d(white.flatten(0, 1), 3, stride=1, padding=1).view(B, C, T, H, W) * 3
    fresh = 0.7 * white + 0.7 * smooth
    steps = [fresh[:, :, 0]]
    for t in range(1, T):
        steps.append(0.7 * steps[-1] + math.sqrt(1 - 0.49) * fresh[:, :, t])
    return torch.stack(steps, dim=2)
