"""The encoder: frames to normalised latents, in chunks of any size.

| step | dtype |
|---|---|
| frames, network, raw mean and log-variance | the module's dtype |
| normalisation `(mean - latents_mean) * scaling_factor / latents_std` | float32, kept so |

Source: the public LTX-2 VAE; streaming as in the NVlabs/Sana causal VAE. Always causal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sanawm.errors import NumericsError, UsageError

from . import channels_last
from .blocks import (
    CausalConv3d,
    MidBlock,
    name_convs,
    patchify,
    resnets,
    space_to_depth,
)
from .config import DownBlockPlan, PaddingMode, Stride, VAEConfig
from .state import EncoderState, StreamKey, StreamState, dtype_name


class Moments(NamedTuple):
    """The posterior: raw latents `mean` (B, C, T, H, W), one shared `logvar` (B, 1, T, H, W)."""

    mean: Tensor
    logvar: Tensor


class Downsampler(nn.Module):
    """Fold cells of `stride` into channels, beside a skip that averages groups of channels."""

    def __init__(
        self, channels: int, out: int, *, stride: Stride, padding_mode: PaddingMode
    ) -> None:
        super().__init__()
        self.stride = stride
        self.out = out
        self.conv = CausalConv3d(channels, out // stride.cells, padding_mode=padding_mode)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return `(B, out, frames/st, H/sh, W/sw)`, with no frames while one is pending."""
        x = self._whole_cells(x, state)
        if x.shape[2] == 0:
            B, _, _, H, W = x.shape
            return x.new_empty(B, self.out, 0, H // self.stride.height, W // self.stride.width)
        if not channels_last.needs_gradients(x, self.conv.conv.weight):
            skip = channels_last.group_means(channels_last.space_to_depth(x, self.stride), self.out)
            return channels_last.space_to_depth(self.conv(x, state), self.stride).add_(skip)
        skip = space_to_depth(x, self.stride).unflatten(1, (self.out, -1)).mean(2)
        return space_to_depth(self.conv(x, state), self.stride) + skip

    def _whole_cells(self, x: Tensor, state: StreamState) -> Tensor:
        """Return the frames that fill whole cells in time; one left over waits in `state`.

        The stream's first frame counts `st` times, so that it is a cell of its own.
        """
        st, key = self.stride.time, self.conv.key
        waiting = state.pending.pop(key, None)
        if self.conv.is_first(state):
            waiting = x[:, :, : st - 1]
        if waiting is not None:
            x = torch.cat((waiting, x), dim=2)
        use = x.shape[2] // st * st
        if use < x.shape[2]:
            state.pending[key] = x[:, :, use:].clone()
        return x[:, :, :use]


class DownBlock(nn.Module):
    """Resnets of one width, then a downsampler if the block has one."""

    def __init__(self, block: DownBlockPlan, *, eps: float, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.resnets = resnets(block.width, layers=block.layers, eps=eps, padding_mode=padding_mode)
        self.downsamplers = nn.ModuleList()
        if block.stride is not None:
            self.downsamplers.append(
                Downsampler(block.width, block.out, stride=block.stride, padding_mode=padding_mode)
            )

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return `(B, out, frames, H, W)` of the next level; the frames may be none."""
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(x, state)
        return x


class EncoderNetwork(nn.Module):
    """The tensors under `encoder.` in a checkpoint."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.patch = config.patch_size
        self.latent_channels = config.latent_channels
        self.space = config.ratios.space
        mode, eps = config.encoder_spatial_padding_mode, config.resnet_norm_eps
        cells = config.in_channels * config.patch_size**2
        blocks = config.down_blocks
        inner = blocks[-1].out
        self.conv_in = CausalConv3d(cells, config.latent_channels, padding_mode=mode)
        self.down_blocks = nn.ModuleList(DownBlock(b, eps=eps, padding_mode=mode) for b in blocks)
        self.mid_block = MidBlock(
            inner, layers=config.layers_per_block[-1], eps=eps, padding_mode=mode
        )
        self.conv_out = CausalConv3d(inner, config.latent_channels + 1, padding_mode=mode)

    def forward(self, frames: Tensor, state: StreamState) -> Tensor:
        """Return the moments `(B, C + 1, T, H, W)` of the frames that are complete by now."""
        B, _, _, height, width = frames.shape
        x = self.conv_in(patchify(frames, self.patch), state)
        for block in self.down_blocks:
            x = block(x, state)
            if x.shape[2] == 0:
                H, W = height // self.space, width // self.space
                return x.new_empty(B, self.latent_channels + 1, 0, H, W)
        x = self.mid_block(x, state)
        return self.conv_out(x, state, activate=True)


def check_latents(latents: Tensor, *, taken: int) -> Tensor:
    """Return new latents; raise `NumericsError` when one is not finite, after `taken` frames."""
    if not torch.isfinite(latents).all():
        raise NumericsError(
            f"VAE encoder: the latents made before frame {taken} hold NaN or infinity",
            fix="encode in float32 or bfloat16, or check the weights",
        )
    return latents


class VAEEncoder(nn.Module):
    """The encoder with the statistics of its latents; `load_encoder` makes one from files."""

    latents_mean: Tensor  # (C,), float32
    latents_std: Tensor  # (C,), float32

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = EncoderNetwork(config)
        self.register_buffer("latents_mean", torch.zeros(config.latent_channels))
        self.register_buffer("latents_std", torch.ones(config.latent_channels))
        self.conv_channels = name_convs(self)

    def encode(self, frames: Tensor, state: EncoderState) -> Tensor:
        """Encode the next frames of a stream to normalised latents (the mean, no sampling).

        `frames` `(B, 3, frames, height, width)` in [-1, 1], any float dtype, any number of frames.
        Returns `(B, C, T, H, W)` in float32; T is 0 while frames are pending. A stream of
        `r*k + 1` frames gives `k + 1` latent frames however it is cut.

        Raises `UsageError` for frames of a wrong shape or dtype and `BlockOrderError` when they do
        not continue the stream of `state`, which is then unchanged.
        """
        return self.normalise(self.moments(frames, state).mean)

    def moments(self, frames: Tensor, state: EncoderState) -> Moments:
        """Encode like `encode`, but return the raw posterior in the module's dtype."""
        self._check(frames)
        B, _, count, height, width = frames.shape
        weight = self.encoder.conv_in.conv.weight
        key = StreamKey(
            B,
            height,
            width,
            dtype_name(frames.dtype),
            dtype_name(weight.dtype),
            str(weight.device),
        )
        with torch.no_grad(), state.chunk(key, steps=count, convs=self.conv_channels):
            raw = self.encoder(frames.to(weight.dtype), state)  # (B, C + 1, T, H, W)
        return Moments(*raw.split((self.config.latent_channels, 1), dim=1))

    def normalise(self, mean: Tensor) -> Tensor:
        """Return raw latents `(B, C, T, H, W)` as the models see them, in float32."""
        shift = self.latents_mean.view(1, -1, 1, 1, 1)
        scale = self.latents_std.view(1, -1, 1, 1, 1)
        return (mean.float() - shift) * self.config.scaling_factor / scale

    def finish(self, state: EncoderState) -> None:
        """Check that the stream ended on a whole latent frame.

        Raises `UsageError` naming the lengths that fit when it was not `r*k + 1` frames long.
        """
        state.check_usable()
        self.config.ratios.latent_frames_of(state.taken)

    def _check(self, frames: Tensor) -> None:
        channels, space = self.config.in_channels, self.config.ratios.space
        if frames.ndim != 5 or frames.shape[1] != channels or 0 in frames.shape:
            raise UsageError(
                f"frames to encode are {tuple(frames.shape)}, expected (B, {channels}, frames, "
                "height, width), none of them 0"
            )
        if not frames.is_floating_point():
            raise UsageError(
                f"frames to encode are {dtype_name(frames.dtype)}, expected floats in [-1, 1]",
                fix="convert them with sanawm.vae.uint8_to_pixels",
            )
        if frames.device != self.latents_mean.device:
            raise UsageError(
                f"frames are on {frames.device}, the VAE is on {self.latents_mean.device}",
                fix="move the frames to the VAE's device",
            )
        height, width = frames.shape[-2:]
        least = space * (2 if self.config.encoder_spatial_padding_mode == "reflect" else 1)
        if height % space or width % space or min(height, width) < least:
            raise UsageError(
                f"frames are {height}x{width} pixels, expected multiples of {space}, "
                f"at least {least}x{least}",
                fix="resize or crop the frames",
            )
