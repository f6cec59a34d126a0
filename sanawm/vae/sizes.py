"""How much a stream carries from chunk to chunk, counted without running the VAE.

Running it on torch's meta device would tell the same, but the first arithmetic there imports the
compiler: a second of every start.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from .blocks import TAIL_FRAMES, CausalConv3d
from .config import Stride
from .decoder import UpBlock, VAEDecoder
from .encoder import DownBlock, VAEEncoder


def decoder_state_values(decoder: VAEDecoder, *, height: int, width: int) -> int:
    """Return the values in the state of a stream of latents `(1, C, T, height, width)`."""
    network, area = decoder.decoder, height * width
    values = area * (_channels(network.conv_in) + _channels(network.mid_block))
    for block in cast(list[UpBlock], list(network.up_blocks)):
        values += area * (_channels(block.conv_in) + _channels(block.upsamplers))
        area *= _cells(block.plan.stride)
        values += area * _channels(block.resnets)
    return TAIL_FRAMES * (values + area * _channels(network.conv_out))


def encoder_state_values(encoder: VAEEncoder, *, height: int, width: int) -> int:
    """Return the values in the state of a stream of pixels `(1, 3, F, height, width)`.

    It holds whole latents; frames that wait for the rest of theirs come on top.
    """
    network = encoder.encoder
    area = (height // network.patch) * (width // network.patch)
    values = area * _channels(network.conv_in)
    for block in cast(list[DownBlock], list(network.down_blocks)):
        values += area * _channels(block)
        for sampler in block.downsamplers:
            area //= _cells(cast(Stride, sampler.stride))
    values += area * (_channels(network.mid_block) + _channels(network.conv_out))
    return TAIL_FRAMES * values


def _channels(part: nn.Module | None) -> int:
    """Return the channels that go into all causal convolutions of a part of the network."""
    if part is None:
        return 0
    return sum(m.conv.in_channels for m in part.modules() if isinstance(m, CausalConv3d))


def _cells(stride: Stride | None) -> int:
    return 1 if stride is None else stride.height * stride.width
