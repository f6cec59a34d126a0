"""Parts shared by encoder and decoder. Tensors are `(B, channels, frames, height, width)`.

| step | dtype |
|---|---|
| channel RMS norm | float32, rounded once to the module's dtype |
| SiLU behind it | in float32 before that rounding; with gradients, in the module's dtype after it |
| convolutions, LayerNorm of a shortcut, residual sums, group means | the module's dtype |

The steps are written twice where the plain form is slow: the plain one runs when gradients are
needed, the other, from `channels_last`, works in place. Rounding inside torch's kernels (float32
accumulation of 16-bit inputs) is torch's own. Source of the formulas: the public LTX-2 VAE
(diffusers `AutoencoderKLLTX2Video`); of the carried tails: the NVlabs/Sana causal VAE.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import channels_last
from .config import PaddingMode, Stride
from .state import StreamState

#: Added to the mean square by the channel norm; not the `resnet_norm_eps` of the config.
RMS_EPS = 1e-8
#: Frames in front of a convolution's input: its time kernel is 3 and nothing follows the input.
TAIL_FRAMES = 2


def channel_rms_norm(x: Tensor) -> Tensor:
    """Return `x / sqrt(mean(x^2 over channels) + 1e-8)`, computed in float32."""
    y = x.float()
    return (y / (y.square().mean(1, keepdim=True) + RMS_EPS).sqrt()).to(x.dtype)


def before_first(x: Tensor) -> Tensor:
    """Return what stands in front of a stream: the first frame of `x`, repeated."""
    return x[:, :, :1].expand(-1, -1, TAIL_FRAMES, -1, -1)


def drop_first(x: Tensor, frames: int) -> Tensor:
    """Return `x` without its first `frames` frames."""
    return x[:, :, frames:]


def tile_channels(x: Tensor, times: int) -> Tensor:
    """Repeat the whole block of channels `times`: 0..n-1, 0..n-1, and so on."""
    return x.repeat(1, times, 1, 1, 1)


def space_to_depth(x: Tensor, stride: Stride) -> Tensor:
    """Fold cells of `stride` positions into channels `((c*st + i)*sh + j)*sw + k`.

    `(B, C, T*st, H*sh, W*sw)` becomes `(B, C*st*sh*sw, T, H, W)`.
    """
    st, sh, sw = stride
    B, C, T, H, W = x.shape
    x = x.reshape(B, C, T // st, st, H // sh, sh, W // sw, sw)
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6)  # (B, C, st, sh, sw, T, H, W)
    return x.reshape(B, C * stride.cells, T // st, H // sh, W // sw)


def depth_to_space(x: Tensor, stride: Stride) -> Tensor:
    """Undo `space_to_depth`: `(B, C*st*sh*sw, T, H, W)` becomes `(B, C, T*st, H*sh, W*sw)`."""
    st, sh, sw = stride
    B, C, T, H, W = x.shape
    C //= stride.cells
    x = x.reshape(B, C, st, sh, sw, T, H, W)
    x = x.permute(0, 1, 5, 2, 6, 3, 7, 4)  # (B, C, T, st, H, sh, W, sw)
    return x.reshape(B, C, T * st, H * sh, W * sw)


def patchify(x: Tensor, patch: int) -> Tensor:
    """Fold patches into channels `(c*p + column)*p + row`: the column is the slower of the two.

    `(B, C, T, H*p, W*p)` becomes `(B, C*p*p, T, H, W)`.
    """
    B, C, T, H, W = x.shape
    x = x.reshape(B, C, T, H // patch, patch, W // patch, patch)
    x = x.permute(0, 1, 6, 4, 2, 3, 5)  # (B, C, column, row, T, H, W)
    return x.reshape(B, C * patch * patch, T, H // patch, W // patch)


def unpatchify(x: Tensor, patch: int) -> Tensor:
    """Undo `patchify`: `(B, C*p*p, T, H, W)` becomes `(B, C, T, H*p, W*p)`."""
    B, C, T, H, W = x.shape
    C //= patch * patch
    x = x.reshape(B, C, patch, patch, T, H, W)
    x = x.permute(0, 1, 4, 5, 3, 6, 2)  # (B, C, T, H, row, W, column)
    return x.reshape(B, C, T, H * patch, W * patch)


class CausalConv3d(nn.Module):
    """A 3x3x3 convolution that sees its own frame and the two before it.

    `key` names its tail in the stream's state; `name_convs` sets it once the model is built.
    """

    def __init__(self, channels: int, out: int, *, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.key = ""
        self.conv = nn.Conv3d(channels, out, 3, padding=(0, 1, 1), padding_mode=padding_mode)

    def is_first(self, state: StreamState) -> bool:
        """Return whether the stream has not passed through this convolution yet."""
        return self.key not in state.tails

    def forward(self, x: Tensor, state: StreamState, *, activate: bool = False) -> Tensor:
        """Return as many frames as `x` has (1 or more), and leave the new tail in `state`.

        `activate`: normalise `x` and apply SiLU first.
        """
        if not channels_last.needs_gradients(x, self.conv.weight):
            return self.convolve(self.padded(x, state, activate=activate))
        if activate:
            x = F.silu(channel_rms_norm(x))
        front = before_first(x) if self.is_first(state) else state.tails[self.key]
        x = torch.cat((front, x), dim=2)  # (B, channels, frames + 2, H, W)
        state.tails[self.key] = x[:, :, -TAIL_FRAMES:].clone()
        return self.conv(x)

    def padded(self, x: Tensor, state: StreamState, *, activate: bool) -> Tensor:
        """Return the convolution's whole input: the tail, `x` and, unless it is zeros, the border.

        It is written once into one buffer; the new tail is left in `state`.
        """
        B, C, T, H, W = x.shape
        edge = self._edge
        buffer = channels_last.new_tensor(x, B, C, TAIL_FRAMES + T, H + 2 * edge, W + 2 * edge)
        inner = buffer[..., edge : edge + H, edge : edge + W]
        new = inner[:, :, TAIL_FRAMES:]
        if activate:
            channels_last.norm_silu_into(new, x, eps=RMS_EPS)
        else:
            new.copy_(x)
        front = before_first(new) if self.is_first(state) else state.tails[self.key]
        inner[:, :, :TAIL_FRAMES] = front
        tail = channels_last.new_tensor(x, B, C, TAIL_FRAMES, H, W)
        state.tails[self.key] = tail.copy_(inner[:, :, -TAIL_FRAMES:])
        if edge:
            channels_last.fill_border(buffer, self.conv.padding_mode)
        return buffer

    def convolve(self, padded: Tensor, *, order: Tensor | None = None) -> Tensor:
        """Return the convolution of what `padded` returned, its channels in `order` if given."""
        weight, bias = self.conv.weight, self.conv.bias
        if order is not None:
            weight, bias = weight[order], None if bias is None else bias[order]
        zeros = 1 - self._edge  # a border of zeros is left to the kernel
        return channels_last.convolve(padded, weight, bias, (0, zeros, zeros))

    @property
    def _edge(self) -> int:
        return int(self.conv.padding_mode != "zeros")


def name_convs(model: nn.Module) -> dict[str, int]:
    """Give every causal convolution its place in `model` as its key; return their channels."""
    convs = {n: m for n, m in model.named_modules() if isinstance(m, CausalConv3d)}
    for name, conv in convs.items():
        conv.key = name
    return {name: conv.conv.in_channels for name, conv in convs.items()}


class ResnetBlock(nn.Module):
    """Two normalised convolutions around a skip, which is a convolution if the width changes."""

    def __init__(self, channels: int, out: int, *, eps: float, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.conv1 = CausalConv3d(channels, out, padding_mode=padding_mode)
        self.conv2 = CausalConv3d(out, out, padding_mode=padding_mode)
        self.changes_width = channels != out
        if self.changes_width:
            self.norm3 = nn.LayerNorm(channels, eps=eps)
            self.conv_shortcut = nn.Conv3d(channels, out, 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return `(B, out, frames, H, W)`."""
        if channels_last.needs_gradients(x, self.conv1.conv.weight):
            h = self.conv1(x, state, activate=True)
            return self.conv2(h, state, activate=True) + self._skip(x)
        h = self.conv1(x, state, activate=True)
        h = self.conv2.padded(h, state, activate=True)  # frees conv1's output before conv2 runs
        h = self.conv2.convolve(h)
        return h.add_(self._skip(x))

    def _skip(self, x: Tensor) -> Tensor:
        if not self.changes_width:
            return x
        n = self.norm3(x.movedim(1, -1)).movedim(-1, 1)
        return self.conv_shortcut(n)


class MidBlock(nn.Module):
    """Resnets of one width, at the inner end of encoder and decoder."""

    def __init__(
        self, channels: int, *, layers: int, eps: float, padding_mode: PaddingMode
    ) -> None:
        super().__init__()
        self.resnets = resnets(channels, layers=layers, eps=eps, padding_mode=padding_mode)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return a tensor of the shape of `x`."""
        for resnet in self.resnets:
            x = resnet(x, state)
        return x


def resnets(channels: int, *, layers: int, eps: float, padding_mode: PaddingMode) -> nn.ModuleList:
    """Return `layers` resnet blocks that keep the width."""
    return nn.ModuleList(
        ResnetBlock(channels, channels, eps=eps, padding_mode=padding_mode) for _ in range(layers)
    )
