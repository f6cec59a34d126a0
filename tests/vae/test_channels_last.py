"""The forms without gradients against the plain ones, trick by trick, and training left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.vae import DecoderState, EncoderState, VAEDecoder, blocks, channels_last
from sanawm.vae import decoder as decoder_module
from sanawm.vae.config import STRIDES

from . import cases
from .cases import worst

MODES = ("zeros", "reflect", "replicate", "circular")
#: Between two right ways to compute in float32 (kernels sum in another order), measured 1e-5.
SAME = 3e-5


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Tensor]], Tensor]:
    """Run something in the plain form, without gradients."""

    def run(work: Callable[[], Tensor]) -> Tensor:
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(channels_last, "needs_gradients", lambda x, weight: True)
            return work()

    return run


def activation(x: Tensor) -> Tensor:
    return F.silu(blocks.channel_rms_norm(x))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


# --- trick by trick -----------------------------------------------------------------------------


@pytest.mark.parametrize("values", [1, 60, 500, 1 << 19])
def test_norm_and_silu_in_slices(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "SLICE_VALUES", values)
    x = random(2, 5, 4, 6, 3)
    out = channels_last.new_tensor(x, *x.shape)
    channels_last.norm_silu_into(out, x, eps=blocks.RMS_EPS)
    assert worst(out, activation(x)) < 1e-6


def test_norm_and_silu_round_once_to_bfloat16() -> None:
    x = random(1, 16, 3, 8, 8, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    channels_last.norm_silu_into(out, x, eps=blocks.RMS_EPS)
    assert torch.equal(out, activation(x.float()).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activate", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_one_buffer_holds_tail_border_and_input(
    mode: str, activate: bool, dtype: torch.dtype
) -> None:
    """The same values as joining, activating and padding, in three chunks of a stream."""
    conv = blocks.CausalConv3d(6, 4, padding_mode=mode).to(dtype).requires_grad_(False)
    state = DecoderState()
    seen: list[Tensor] = []
    for chunk in random(2, 6, 6, 4, 5, dtype=dtype).split((1, 2, 3), dim=2):
        found = conv.padded(chunk, state, activate=activate)
        assert found.movedim(1, -1).is_contiguous()
        new = activation(chunk.float()).to(dtype) if activate else chunk
        seen.append(new if seen else torch.cat((blocks.before_first(new), new), 2))
        whole = torch.cat(seen, 2)[:, :, -chunk.shape[2] - 2 :]
        expected = whole if mode == "zeros" else F.pad(whole, (1, 1, 1, 1, 0, 0), mode)
        assert worst(found.float(), expected.float()) <= (1e-6 if activate else 0)
        assert torch.equal(state.tails[""], found[..., 1:-1, 1:-1][:, :, -2:]) or mode == "zeros"
        assert state.nbytes == 2 * 6 * 2 * 4 * 5 * dtype.itemsize  # a copy, not a view


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("enabled", [True, False])
def test_convolution_with_and_without_onednn(enabled: bool) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    x, weight, bias = random(1, 5, 4, 7, 6), random(3, 5, 3, 3, 3), random(3)
    with torch.backends.mkldnn.flags(enabled=enabled):
        assert channels_last._has_onednn() == enabled
        for padding in ((0, 1, 1), (0, 0, 0)):
            expected = F.conv3d(x.double(), weight.double(), bias.double(), padding=padding)
            laid = channels_last.new_tensor(x, *x.shape).copy_(x)
            for given in (x, laid):
                found = channels_last.convolve(given, weight, bias, padding)
                assert worst(found.double(), expected) < 1e-4


@pytest.mark.parametrize("stride", STRIDES.values(), ids=STRIDES)
def test_shuffles(stride: channels_last.Stride) -> None:
    x = random(2, 16, 4, 6, 8)
    laid = channels_last.new_tensor(x, *x.shape).copy_(x)
    for given in (x, laid):
        deep = channels_last.space_to_depth(given, stride)
        assert torch.equal(deep, blocks.space_to_depth(x, stride))
        wide = channels_last.depth_to_space(given, stride)
        assert torch.equal(wide, blocks.depth_to_space(x, stride))
        assert worst(channels_last.group_means(given, 4), x.unflatten(1, (4, 4)).mean(2)) < 1e-6
        for made in (deep, wide):
            assert made.movedim(1, -1).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["a_ltx20_p4", "c_ltx20_p1", "d_convin_p1"])
def test_skip_added_before_it_is_unfolded(
    name: str, dtype: torch.dtype, plainly: Callable[[Callable[[], Tensor]], Tensor]
) -> None:
    """Sums are the same sums; only the convolution behind them may differ by its rounding."""
    ups = [m for m in cases.decoder(name, dtype).modules() if type(m).__name__ == "Upsampler"]
    assert any(up.residual for up in ups)
    for up in ups:
        up.conv.conv.weight.zero_()
        x = random(1, up.conv.conv.in_channels, 2, 4, 4, dtype=dtype)
        for tails in ({}, {up.conv.key: random(1, x.shape[1], 2, 4, 4, dtype=dtype)}):
            states = DecoderState(), DecoderState()
            for state in states:
                state.tails.update(tails)
            expected = plainly(lambda up=up, x=x, state=states[0]: up(x, state))
            assert torch.equal(up(x, states[1]), expected)


@pytest.mark.parametrize("values", [1, 2000, 20000])
@pytest.mark.parametrize("name", cases.NAMES)
def test_levels_in_pieces(name: str, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    latents, _ = cases.decode_case(name)
    vae = cases.decoder(name)
    sizes = (2, latents.shape[2] - 2) if latents.shape[2] > 2 else (1, 1)
    whole = torch.cat(cases.decode_chunks(vae, latents, sizes), 2)
    monkeypatch.setattr(decoder_module, "PIECE_VALUES", values)
    assert worst(torch.cat(cases.decode_chunks(vae, latents, sizes), 2), whole) < SAME


# --- encoder and decoder --------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases.NAMES)
def test_decoder(name: str, plainly: Callable[[Callable[[], Tensor]], Tensor]) -> None:
    latents, _ = cases.decode_case(name)
    vae = cases.decoder(name)
    plain = plainly(
        lambda: torch.cat(cases.decode_chunks(vae, latents, (1, latents.shape[2] - 1)), 2)
    )
    found = torch.cat(cases.decode_chunks(vae, latents, (1, latents.shape[2] - 1)), 2)
    assert worst(found, plain) < SAME
    assert found.movedim(1, -1)[:, :1].is_contiguous()  # as they lie in a frame


@pytest.mark.parametrize(("name", "clip"), cases.CLIPS)
def test_encoder(name: str, clip: str, plainly: Callable[[Callable[[], Tensor]], Tensor]) -> None:
    frames = cases.clip_case(name, clip).frames
    vae = cases.encoder(name)
    sizes = tuple(f for f in (1, 3, frames.shape[2] - 4) if f > 0)[: frames.shape[2]]
    plain = plainly(lambda: cases.encode_chunks(vae, frames, sizes))
    assert worst(cases.encode_chunks(vae, frames, sizes), plain) < 1e-5


@pytest.mark.parametrize("name", cases.NAMES)
def test_bfloat16_is_no_further_from_float32(
    name: str, plainly: Callable[[Callable[[], Tensor]], Tensor]
) -> None:
    latents, pixels = cases.decode_case(name)
    vae = cases.decoder(name, torch.bfloat16)

    def error(found: Tensor) -> float:
        return float((found.float() - pixels).square().mean().sqrt())

    plain = error(plainly(lambda: vae.decode(latents, DecoderState())))
    assert error(vae.decode(latents, DecoderState())) < 1.02 * plain


def test_inputs_are_left_alone() -> None:
    latents, _ = cases.decode_case("c_ltx20_p1")
    frames = cases.clip_case("c_ltx20_p1", "video9").frames
    before = latents.clone(), frames.clone()
    cases.decoder("c_ltx20_p1").decode(latents, DecoderState())
    cases.encoder("c_ltx20_p1").encode(frames, EncoderState())
    assert torch.equal(latents, before[0])
    assert torch.equal(frames, before[1])


# --- gradients ------------------------------------------------------------------------------------


def test_when_gradients_are_needed() -> None:
    with_grad, without = nn.Parameter(torch.ones(1)), torch.ones(1)
    assert channels_last.needs_gradients(without, with_grad)
    assert channels_last.needs_gradients(with_grad, without)
    assert not channels_last.needs_gradients(without, without)
    with torch.no_grad():
        assert not channels_last.needs_gradients(with_grad, with_grad)


def decode_raw(vae: VAEDecoder, raw: Tensor) -> Tensor:
    return vae.decoder(raw, DecoderState())


@pytest.mark.parametrize("name", cases.NAMES)
def test_decoder_can_be_trained(name: str) -> None:
    """Gradients of every weight, right along their own direction."""
    vae = cases.decoder(name).double().requires_grad_(True)
    raw = vae.denormalise(cases.decode_case(name)[0]).double()
    pixels = decode_raw(vae, raw)
    assert pixels.requires_grad
    pull = random(*pixels.shape).double()
    (pixels * pull).sum().backward()
    parameters = list(vae.parameters())
    assert all(p.grad is not None for p in parameters)
    length = float(torch.cat([p.grad.flatten() for p in parameters]).norm())
    ways = [p.grad / length for p in parameters]
    step = 1e-4  # the norms are in float32
    sums = []
    with torch.no_grad():
        for sign in (1, -2):
            for p, way in zip(parameters, ways, strict=True):
                p.add_(way, alpha=sign * step)
            sums.append(float((decode_raw(vae, raw) * pull).sum()))
    assert (sums[0] - sums[1]) / (2 * step) == pytest.approx(length, rel=0.01)


def test_gradients_pass_through_a_frozen_decoder() -> None:
    vae = cases.decoder("d_convin_p1")
    raw = vae.denormalise(cases.decode_case("d_convin_p1")[0]).requires_grad_(True)
    decode_raw(vae, raw).sum().backward()
    assert raw.grad is not None
    assert bool(raw.grad.abs().sum() > 0)


def test_encoder_can_be_trained() -> None:
    vae = cases.encoder("c_ltx20_p1").requires_grad_(True)
    frames = cases.clip_case("c_ltx20_p1", "video9").frames
    raw = vae.encoder(frames, EncoderState())
    raw.sum().backward()
    assert all(p.grad is not None for p in vae.parameters())
    with torch.no_grad():
        assert worst(vae.encoder(frames, EncoderState()), raw.detach()) < 1e-5
