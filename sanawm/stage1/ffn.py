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

from sanawm.ops.linear import needs_gradients

from .config import Stage1Config
from .positions import TokenGrid


class Conv(nn.Module):
    """A 2-D convolution under the name that the checkpoint uses for it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)

    def pointwise(self, x: Tensor) -> Tensor:
        """Return the result of a convolution of size 1 on `x` `(..., D)`, channels last."""
        return F.linear(x, self.conv.weight.flatten(1), self.conv.bias)


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
        return self._temporal(y, tail).flatten(1, 2), y[:, -1:]

    def prepare(self) -> None:
        """Lay the temporal weights out as one matrix `(D, 3 D)`, which `_temporal` reads."""
        weight = self.t_conv.weight
        if not weight.requires_grad:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)

    def _temporal(self, y: Tensor, tail: Tensor) -> Tensor:
        """Return `y` `(B, T, HW, D)` plus its convolution along time.

        Every token beside its neighbours in time, as one product: less than the convolution takes.
        """
        before = torch.cat([tail, y[:, :-1]], dim=1)
        after = torch.cat([y[:, 1:], torch.zeros_like(tail)], dim=1)
        weight = self.t_conv.weight.permute(0, 2, 3, 1).flatten(1)  # (D, 3 D)
        return y + F.linear(torch.cat([before, y, after], dim=-1), weight)

    def _spatial(self, x: Tensor, grid: TokenGrid) -> Tensor:
        T, H, W = grid
        # Channels stay last: convolutions of size 1 are products of tokens then.
        in_place = not needs_gradients(x, self.t_conv.weight)  # what stays in a cache is quicker
        wide = F.silu(self.inverted_conv.pointwise(x), inplace=in_place)  # (B, S, 2*hidden)
        pictures = wide.view(-1, H, W, wide.shape[-1]).permute(0, 3, 1, 2)  # (B*T, 2*hidden, H, W)
        value, gate = self.depth_conv(pictures).permute(0, 2, 3, 1).chunk(2, dim=-1)
        y = self.point_conv.pointwise(value * F.silu(gate, inplace=in_place))  # (B*T, H, W, D)
        return y.reshape(len(x), T, H * W, -1)
