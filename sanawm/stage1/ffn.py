"""Feed-forward part of a block: gated convolutions in space, then a residual one along time.

| step | dtype |
|---|---|
| everything, and the carried tail | dtype of the weights |

Source: the public SANA-WM model (GLUMBConv with a temporal convolution).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import Stage1Config
from .positions import TokenGrid


class Conv(nn.Module):
    """A 2-D convolution under the name that the checkpoint uses for it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class ConvFeedForward(nn.Module):
    """Gated feed-forward on the latent grid with a temporal residual across chunks."""

    def __init__(self, config: Stage1Config) -> None:
        super().__init__()
        D, hidden = config.width, config.width * config.mlp_ratio
        self.inverted_conv = Conv(nn.Conv2d(D, 2 * hidden, 1))
        self.depth_conv = Conv(nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, groups=2 * hidden))
        self.point_conv = Conv(nn.Conv2d(hidden, D, 1, bias=False))
        self.t_conv = nn.Conv2d(D, D, (3, 1), bias=False)

    def forward(self, x: Tensor, grid: TokenGrid, *, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the result for tokens `x` `(B, S, D)` and the tail for the next chunk.

        tail: last frame of the spatial part's result in the previous chunk, `(B, 1, HW, D)`, or
        None (zeros). The frame after the chunk's end is zero.
        """
        y = self._spatial(x, grid)  # (B, T, HW, D)
        if tail is None:
            tail = torch.zeros_like(y[:, :1])
        known = torch.cat([tail, y, torch.zeros_like(tail)], dim=1).permute(0, 3, 1, 2)
        mixed = self.t_conv(known).permute(0, 2, 3, 1)  # (B, T, HW, D)
        return (y + mixed).flatten(1, 2), y[:, -1:]

    def _spatial(self, x: Tensor, grid: TokenGrid) -> Tensor:
        T, H, W = grid
        pictures = x.unflatten(1, (T, H, W)).flatten(0, 1).permute(0, 3, 1, 2)  # (B*T, D, H, W)
        wide = self.depth_conv(F.silu(self.inverted_conv(pictures)))
        value, gate = wide.chunk(2, dim=1)
        y = self.point_conv(value * F.silu(gate))  # (B*T, D, H, W)
        return y.unflatten(0, (x.shape[0], T)).flatten(3).permute(0, 1, 3, 2)
