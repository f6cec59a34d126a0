"""The decoder: normalised latents to frames, in chunks of any size.

| step | dtype |
|---|---|
| denormalisation `latents * latents_std / scaling_factor + latents_mean` | float32, then rounded |
| network, pixels | the module's dtype |

Source: the public LTX-2 VAE, causal decode; streaming as in the NVlabs/Sana causal VAE. Always
causal: a decoder trained to see the future runs too, but `load_decoder` warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sanawm.errors import UsageError

from . import channels_last
from .blocks import (
    CausalConv3d,
    MidBlock,
    ResnetBlock,
    depth_to_space,
    drop_first,
    name_convs,
    resnets,
    tile_channels,
    unpatchify,
)
from .config import PaddingMode, Stride, UpBlockPlan, VAEConfig
from .state import DecoderState, StreamKey, StreamState, dtype_name

#: Values that one block makes at a time (4 MiB in bf16): later levels run in pieces of this size.
PIECE_VALUES = 1 << 21
#: The same on a card, where launches cost more than memory.
CARD_PIECE_VALUES = 1 << 27


class Upsampler(nn.Module):
    """Unfold channels into cells of `stride`, beside a skip that unfolds the input itself."""

    def __init__(
        self,
        channels: int,
        *,
        stride: Stride,
        factor: int,
        residual: bool,
        padding_mode: PaddingMode,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.residual = residual
        self.repeats = stride.cells // factor
        self.conv = CausalConv3d(
            channels, channels * stride.cells // factor, padding_mode=padding_mode
        )

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return `(B, channels/factor, frames*st, H*sh, W*sw)`, in the first chunk `st - 1` fewer.

        The stream's first frame stands for one frame only, so its surplus copies are dropped.
        """
        surplus = self.stride.time - 1 if self.conv.is_first(state) else 0
        y = self.conv(x, state)
        if not channels_last.needs_gradients(x, self.conv.conv.weight):
            if self.residual:  # tiling commutes with unfolding: add before, in runs of all of x
                y.unflatten(1, (self.repeats, -1)).add_(x.unsqueeze(1))
            return drop_first(channels_last.depth_to_space(y, self.stride), surplus)
        h = drop_first(depth_to_space(y, self.stride), surplus)
        if not self.residual:
            return h
        skip = tile_channels(depth_to_space(x, self.stride), self.repeats)
        return h + drop_first(skip, surplus)


class UpBlock(nn.Module):
    """A resnet if the width changes, an upsampler if the block has one, then resnets."""

    def __init__(self, block: UpBlockPlan, *, eps: float, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.plan = block
        self.conv_in: ResnetBlock | None = None
        if block.inner != block.width:
            self.conv_in = ResnetBlock(block.width, block.inner, eps=eps, padding_mode=padding_mode)
        self.upsamplers = nn.ModuleList()
        if block.stride is not None:
            self.upsamplers.append(
                Upsampler(
                    block.inner,
                    stride=block.stride,
                    factor=block.factor,
                    residual=block.residual,
                    padding_mode=padding_mode,
                )
            )
        self.resnets = resnets(block.out, layers=block.layers, eps=eps, padding_mode=padding_mode)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return `(B, out, frames, H, W)` of the next level."""
        if self.conv_in is not None:
            x = self.conv_in(x, state)
        for layer in (*self.upsamplers, *self.resnets):
            x = layer(x, state)
        return x


class DecoderNetwork(nn.Module):
    """The tensors under `decoder.` in a checkpoint."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.patch = config.patch_size
        self.ratios = config.ratios
        self.cells = cells = config.out_channels * config.patch_size**2
        mode, eps = config.decoder_spatial_padding_mode, config.resnet_norm_eps
        blocks = config.up_blocks
        inner = blocks[0].width
        self.conv_in = CausalConv3d(config.latent_channels, inner, padding_mode=mode)
        self.mid_block = MidBlock(
            inner, layers=config.decoder_layers_per_block[-1], eps=eps, padding_mode=mode
        )
        self.up_blocks = nn.ModuleList(UpBlock(b, eps=eps, padding_mode=mode) for b in blocks)
        self.conv_out = CausalConv3d(blocks[-1].out, cells, padding_mode=mode)

    def forward(self, latents: Tensor, state: StreamState) -> Tensor:
        """Return the pixels `(B, 3, frames, height, width)` of raw latents `(B, C, T, H, W)`."""
        if not channels_last.needs_gradients(latents, self.conv_in.conv.weight):
            return self._in_pieces(latents, state)
        x = self.mid_block(self.conv_in(latents, state), state)
        for block in self.up_blocks:
            x = block(x, state)
        return unpatchify(self.conv_out(x, state, activate=True), self.patch)

    def _in_pieces(self, latents: Tensor, state: StreamState) -> Tensor:
        """Run the later levels piece by piece of time; the pixels lie as `(B, frames, h, w, 3)`."""
        B, _, T, H, W = latents.shape
        p, (time, space) = self.patch, self.ratios
        frames = T * time - (time - 1 if self.conv_in.is_first(state) else 0)
        x = self.mid_block(self.conv_in(latents, state), state)
        pixels = x.new_empty(B, frames, H * space // p, p, W * space // p, self.cells // p)
        # Channels of conv_out from `(c, column, row)` to `(row, column, c)`: the order of a frame.
        order = torch.arange(self.cells, device=x.device).view(-1, p, p).permute(2, 1, 0).flatten()
        done = 0
        blocks = cast(list[UpBlock], list(self.up_blocks))
        for piece in _pieces(x, blocks, state):
            rows = self.conv_out.convolve(
                self.conv_out.padded(piece, state, activate=True), order=order
            )
            rows = rows.movedim(1, -1).unflatten(-1, (p, -1))  # (B, T, H, W, row, column * c)
            pixels[:, done : done + rows.shape[1]] = rows.movedim(-2, 3)
            done += rows.shape[1]
        return pixels.view(B, frames, H * space, W * space, -1).movedim(-1, 1)


def _pieces(x: Tensor, blocks: Sequence[UpBlock], state: StreamState) -> Iterator[Tensor]:
    """Yield `x` after all blocks, in pieces of time of about `PIECE_VALUES` values a block.

    Each piece has gone through every block before the next is begun. The streams' tails make any
    cut exact.
    """
    if not blocks:
        yield x
        return
    block, *rest = blocks
    values = x[:, :, :1].numel() * block.plan.growth  # made of one frame
    budget = PIECE_VALUES if x.device.type == "cpu" else CARD_PIECE_VALUES
    for piece in x.split(max(1, int(budget // values)), dim=2):
        yield from _pieces(block(piece, state), rest, state)


class VAEDecoder(nn.Module):
    """The decoder with the statistics of its latents; `load_decoder` makes one from files."""

    latents_mean: Tensor  # (C,), float32
    latents_std: Tensor  # (C,), float32

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = DecoderNetwork(config)
        self.register_buffer("latents_mean", torch.zeros(config.latent_channels))
        self.register_buffer("latents_std", torch.ones(config.latent_channels))
        self.conv_channels = name_convs(self)

    def decode(self, latents: Tensor, state: DecoderState) -> Tensor:
        """Decode the next latents of a stream.

        `latents` `(B, C, T, H, W)`, normalised, any float dtype, T of 1 or more. Returns pixels
        `(B, 3, frames, height, width)` in the module's dtype, about [-1, 1] but not clamped:
        `r*(T-1) + 1` frames from the first chunk of a stream, `r*T` from every later one.

        Raises `UsageError` for latents of a wrong shape or dtype and `BlockOrderError` when they
        do not continue the stream of `state`, which is then unchanged.
        """
        self._check(latents)
        B, _, T, H, W = latents.shape
        weight = self.decoder.conv_in.conv.weight
        key = StreamKey(
            B, H, W, dtype_name(latents.dtype), dtype_name(weight.dtype), str(weight.device)
        )
        with torch.no_grad(), state.chunk(key, steps=T, convs=self.conv_channels):
            return self.decoder(self.denormalise(latents).to(weight.dtype), state)

    def denormalise(self, latents: Tensor) -> Tensor:
        """Return latents `(B, C, T, H, W)` as the network takes them, in float32."""
        shift = self.latents_mean.view(1, -1, 1, 1, 1)
        scale = self.latents_std.view(1, -1, 1, 1, 1)
        return latents.float() * scale / self.config.scaling_factor + shift

    def _check(self, latents: Tensor) -> None:
        channels, space = self.config.latent_channels, self.config.ratios.space
        if latents.ndim != 5 or latents.shape[1] != channels or 0 in latents.shape:
            raise UsageError(
                f"latents to decode are {tuple(latents.shape)}, expected (B, {channels}, T, H, W), "
                "none of them 0"
            )
        if not latents.is_floating_point():
            raise UsageError(f"latents are {dtype_name(latents.dtype)}, expected floats")
        if latents.device != self.latents_mean.device:
            raise UsageError(
                f"latents are on {latents.device}, the VAE is on {self.latents_mean.device}",
                fix="move the latents to the VAE's device",
            )
        height, width = latents.shape[-2:]
        if self.config.decoder_spatial_padding_mode == "reflect" and min(height, width) < 2:
            raise UsageError(
                f"latents are {height}x{width} (HxW), expected at least 2x2, "
                f"{2 * space}x{2 * space} pixels: this decoder pads by reflection",
                fix="use a larger picture",
            )
