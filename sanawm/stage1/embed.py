"""What enters the model: latent cells, Plücker rays, timesteps, the caption; and its last layer.

| step | dtype |
|---|---|
| timestep truncation and sinusoid | float32, then cast to the dtype of the weights |
| caption norm | float32, rounded back |
| all else | dtype of the weights |

Source: the public SANA-WM model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.ops.attention import attention, merge_heads, split_heads
from sanawm.ops.norm import modulate

from .config import Stage1Config
from .norm import RMSNorm

#: Width of the timestep sinusoid.
SINUSOID = 256
LAYER_NORM_EPS = 1e-6
CROSS_NORM_EPS = 1e-6
#: Bias of padded caption positions.
MASKED = -10000.0


def layer_norm(x: Tensor) -> Tensor:
    """Return the layer norm of `x` over its last axis, without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)


class CellEmbedder(nn.Module):
    """A linear layer on every latent cell, kept in checkpoints as a 3-D convolution of size 1."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.channels = channels
        self.proj = nn.Conv3d(channels, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, channels, T, H, W)` as tokens `(B, S, D)`."""
        cells = x.flatten(2).transpose(1, 2)  # (B, S, channels)
        return F.linear(cells, self.proj.weight.flatten(1), self.proj.bias)


def timestep_sinusoid(timestep: Tensor) -> Tensor:
    """Return cosines then sines of `timestep` (0 … 1000, truncated to integers), `(..., 256)`."""
    half = SINUSOID // 2
    k = torch.arange(half, dtype=torch.float32, device=timestep.device)
    angles = timestep.long().float()[..., None] * torch.exp(-math.log(10000.0) * k / half)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class TimeEmbedder(nn.Module):
    """Two linear layers on the sinusoid of a timestep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(SINUSOID, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, timestep: Tensor) -> Tensor:
        """Return the embedding `(B, T, D)` of timesteps `(B, T)`."""
        dtype = next(self.mlp.parameters()).dtype
        return self.mlp(timestep_sinusoid(timestep).to(dtype))


class CaptionProjection(nn.Module):
    """The caption's two-layer projection to the model's width."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(text_width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, caption: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(caption), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Holds the projection under the checkpoint's name."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.y_proj = CaptionProjection(text_width, width)

    def forward(self, caption: Tensor) -> Tensor:
        """Return `(B, L, D)` from `(B, L, E)`."""
        return self.y_proj(caption)


class TextKV(NamedTuple):
    """One block's keys and values of the caption, `(B, N, L, K)`: computed once a prompt."""

    k: Tensor
    v: Tensor


class CrossAttention(nn.Module):
    """Attention from video tokens to the caption."""

    def __init__(self, config: Stage1Config) -> None:
        super().__init__()
        D = config.width
        self.heads = config.cross_heads
        self.q_linear = nn.Linear(D, D)
        self.kv_linear = nn.Linear(D, 2 * D)
        self.proj = nn.Linear(D, D)
        self.q_norm = RMSNorm(D, eps=CROSS_NORM_EPS)
        self.k_norm = RMSNorm(D, eps=CROSS_NORM_EPS)

    def text_kv(self, y: Tensor) -> TextKV:
        """Return the keys and values of the embedded caption `y` `(B, L, D)`."""
        k, v = self.kv_linear(y).chunk(2, dim=-1)
        return TextKV(split_heads(self.k_norm(k), self.heads), split_heads(v, self.heads))

    def forward(self, x: Tensor, text: TextKV, *, bias: Tensor | None) -> Tensor:
        """Return the update of `x` `(B, S, D)`; bias `(B, 1, 1, L)` hides padding, None: none."""
        q = split_heads(self.q_norm(self.q_linear(x)), self.heads)  # (B, N, S, K)
        return self.proj(merge_heads(attention(q, text.k, text.v, bias=bias)))


class FinalLayer(nn.Module):
    """Modulated layer norm and projection to a velocity."""

    def __init__(self, config: Stage1Config) -> None:
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.zeros(2, config.width))
        self.linear = nn.Linear(config.width, config.latent_channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return `(B, T, HW, C)` from tokens `(B, T, HW, D)` and the time embedding `(B, T, D)`."""
        shift, scale = (self.scale_shift_table + time[:, :, None]).unsqueeze(3).unbind(2)
        return self.linear(modulate(layer_norm(x), shift, scale))
