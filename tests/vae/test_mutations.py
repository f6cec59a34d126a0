"""Make one known mistake at a time and see that the golden comparison would notice.

Lower bounds follow the list "what mistakes cost" of tests/golden/vae/README.md. Mistakes in
functions that only the plain form uses are made in that form (`plain`); `test_channels_last`
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sanawm.vae import DecoderState, EncoderState, VAEDecoder, VAEEncoder, blocks, channels_last
from sanawm.vae import decoder as decoder_module
from sanawm.vae import encoder as encoder_module

from . import cases
from .cases import DECODE_ATOL, worst


def decode_error(vae: VAEDecoder, name: str) -> float:
    latents, pixels = cases.decode_case(name)
    return worst(vae.decode(latents, DecoderState()), pixels)


def encode_error(
    vae: VAEEncoder, name: str, change: Callable[[Tensor], Tensor] = lambda x: x
) -> float:
    case = cases.clip_case(name, "video9")
    return worst(vae.encode(change(case.frames), EncoderState()), case.latent)


def pad_otherwise(module: nn.Module) -> None:
    """Swap zero padding and reflection in every convolution."""
    for conv in module.modules():
        if isinstance(conv, nn.Conv3d) and conv.kernel_size == (3, 3, 3):
            conv.padding_mode = "reflect" if conv.padding_mode == "zeros" else "zeros"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the form that training runs."""
    monkeypatch.setattr(channels_last, "needs_gradients", lambda x, weight: True)


def zeros_in_front(x: Tensor) -> Tensor:
    return x.new_zeros(*x.shape[:2], 2, *x.shape[3:])


@pytest.mark.parametrize("name", cases.NAMES)
def test_decode_with_the_wrong_padding(name: str) -> None:
    vae = cases.decoder(name)
    pad_otherwise(vae)
    assert decode_error(vae, name) > 3


@pytest.mark.parametrize("name", cases.NAMES)
def test_decode_with_zeros_before_the_first_frame(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "before_first", zeros_in_front)
    assert decode_error(cases.decoder(name), name) > 3


@pytest.mark.parametrize("name", cases.NAMES)
def test_decode_dropping_the_last_frame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_last(x: Tensor, frames: int) -> Tensor:
        return x[:, :, : x.shape[2] - frames]

    monkeypatch.setattr(decoder_module, "drop_first", drop_last)
    assert decode_error(cases.decoder(name), name) > 3


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", ["a_ltx20_p4", "c_ltx20_p1", "d_convin_p1"])
def test_decode_repeating_single_channels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """b has no residual upsampler and cannot show it."""

    def repeat_each(x: Tensor, times: int) -> Tensor:
        return x.repeat_interleave(times, dim=1)

    monkeypatch.setattr(decoder_module, "tile_channels", repeat_each)
    assert decode_error(cases.decoder(name), name) > 2


@pytest.mark.usefixtures("plain")
def test_decode_swapping_row_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a has patches larger than one pixel."""

    def rows_first(x: Tensor, patch: int) -> Tensor:
        return nn.functional.pixel_shuffle(x.transpose(1, 2), patch).transpose(1, 2)

    monkeypatch.setattr(decoder_module, "unpatchify", rows_first)
    assert decode_error(cases.decoder("a_ltx20_p4"), "a_ltx20_p4") > 3


@pytest.mark.usefixtures("plain")
def test_encode_swapping_row_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_first(x: Tensor, patch: int) -> Tensor:
        return nn.functional.pixel_unshuffle(x.transpose(1, 2), patch).transpose(1, 2)

    monkeypatch.setattr(encoder_module, "patchify", rows_first)
    assert encode_error(cases.encoder("a_ltx20_p4"), "a_ltx20_p4") > 0.1


@pytest.mark.parametrize("name", cases.NAMES)
def test_decode_without_denormalisation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vae = cases.decoder(name)
    monkeypatch.setattr(vae, "denormalise", lambda latents: latents)
    assert decode_error(vae, name) > 1.5


def test_decode_without_the_scaling_factor() -> None:
    vae = cases.decoder("b_ltx23_p1")
    vae.latents_std /= vae.config.scaling_factor  # 0.75 in b: applied twice
    assert decode_error(vae, "b_ltx23_p1") > 0.1


def test_decode_with_the_config_eps_in_the_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "RMS_EPS", 1e-6)
    assert decode_error(cases.decoder("b_ltx23_p1"), "b_ltx23_p1") > 3 * DECODE_ATOL


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", cases.NAMES)
def test_decode_seeing_the_next_frame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def non_causal(
        self: blocks.CausalConv3d, x: Tensor, state: DecoderState, *, activate: bool = False
    ) -> Tensor:
        if activate:
            x = nn.functional.silu(blocks.channel_rms_norm(x))
        padded = torch.cat((x[:, :, :1], x, x[:, :, -1:]), dim=2)
        state.tails.setdefault(self.key, x)
        return self.conv(padded)

    monkeypatch.setattr(blocks.CausalConv3d, "forward", non_causal)
    assert decode_error(cases.decoder(name), name) > 3


@pytest.mark.parametrize("name", cases.NAMES)
def test_decode_each_chunk_without_its_past(name: str) -> None:
    latents, pixels = cases.decode_case(name)
    vae = cases.decoder(name)
    frames = sum(vae.decode(c, DecoderState()).shape[2] for c in latents.split(1, dim=2))
    assert frames == latents.shape[2] < pixels.shape[2]


@pytest.mark.parametrize("name", cases.NAMES)
def test_encode_pixels_between_zero_and_one(name: str) -> None:
    assert encode_error(cases.encoder(name), name, lambda x: (x + 1) / 2) > 0.5


@pytest.mark.parametrize("name", cases.NAMES)
def test_encode_with_the_wrong_padding(name: str) -> None:
    vae = cases.encoder(name)
    pad_otherwise(vae)
    assert encode_error(vae, name) > 1


@pytest.mark.parametrize("name", cases.NAMES)
def test_encode_with_zeros_before_the_first_frame(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "before_first", zeros_in_front)
    assert encode_error(cases.encoder(name), name) > 0.5
