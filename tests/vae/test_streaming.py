"""Streams: any cutting, saving and resuming, bounded memory, and refusals that lose nothing."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sanawm.errors import BlockOrderError, InputError, UsageError
from sanawm.vae import DecoderState, EncoderState

from . import cases
from .cases import DECODE_ATOL, ENCODE_ATOL, worst

C = "c_ltx20_p1"  # 9 latent frames, 65 frames
DECODER = cases.decoder(C)
ENCODER = cases.encoder(C)


def cuttings(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Every way of writing `total` as a sum, by the set of places where it is cut."""

    def sizes(cuts: set[int]) -> tuple[int, ...]:
        ends = [0, *sorted(cuts), total]
        return tuple(b - a for a, b in pairwise(ends))

    return st.sets(st.integers(1, total - 1)).map(sizes)


@settings(max_examples=15, deadline=None)
@given(cuttings(9))
def test_decode_however_it_is_cut(sizes: tuple[int, ...]) -> None:
    latents, pixels = cases.decode_case(C)
    assert worst(torch.cat(cases.decode_chunks(DECODER, latents, sizes), 2), pixels) < DECODE_ATOL


@settings(max_examples=25, deadline=None)
@given(cuttings(17))
def test_encode_however_it_is_cut(sizes: tuple[int, ...]) -> None:
    case = cases.clip_case(C, "video17")
    assert worst(cases.encode_chunks(ENCODER, case.frames, sizes), case.latent) < ENCODE_ATOL


def test_frames_wait_until_a_latent_is_complete() -> None:
    case = cases.clip_case(C, "video17")
    state = EncoderState()
    counts = [ENCODER.encode(f, state).shape[2] for f in case.frames.split(1, dim=2)]
    assert counts == [1, *[0] * 7, 1, *[0] * 7, 1]
    assert state.taken == 17
    assert not state.pending


def test_encoder_returns_empty_latents_of_the_right_shape() -> None:
    case = cases.clip_case(C, "video17")
    state = EncoderState()
    ENCODER.encode(case.frames[:, :, :1], state)
    empty = ENCODER.encode(case.frames[:, :, 1:3], state)
    assert empty.shape == (1, 6, 0, *case.latent.shape[-2:])
    assert empty.dtype == torch.float32


@pytest.mark.parametrize(("frames", "fix"), [(2, "use 1 or 9"), (8, "use 1 or 9"), (16, "9 or 17")])
def test_finish_refuses_other_lengths(frames: int, fix: str) -> None:
    case = cases.clip_case(C, "video17")
    state = EncoderState()
    ENCODER.encode(case.frames[:, :, :frames], state)
    assert state.pending
    with pytest.raises(UsageError, match=f"{frames} frames cannot be encoded") as error:
        ENCODER.finish(state)
    assert fix in str(error.value)


def test_two_streams_do_not_mix() -> None:
    latents, pixels = cases.decode_case(C)
    one, two = DecoderState(), DecoderState()
    mirrored = []
    straight = []
    for chunk in latents.split(3, dim=2):
        straight.append(DECODER.decode(chunk, one))
        mirrored.append(DECODER.decode(-chunk, two))
    assert worst(torch.cat(straight, 2), pixels) < DECODE_ATOL
    assert torch.equal(
        torch.cat(mirrored, 2), torch.cat(cases.decode_chunks(DECODER, -latents, (3, 3, 3)), 2)
    )


def test_batch_entries_are_streams_of_their_own() -> None:
    latents, pixels = cases.decode_case(C)
    both = torch.cat(cases.decode_chunks(DECODER, torch.cat((latents, -latents)), (1, 4, 4)), 2)
    assert worst(both[:1], pixels) < DECODE_ATOL
    assert not torch.allclose(both[1:], pixels, atol=0.1)


# --- saving and loading -------------------------------------------------------------------------


def through_files(saved: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write a state the way a run state does: tensors to safetensors, the rest to JSON."""
    tensors = {n: v for n, v in saved.items() if isinstance(v, Tensor)}
    save_file(tensors, folder / "state.safetensors")
    values = json.dumps({n: v for n, v in saved.items() if n not in tensors})
    return json.loads(values) | load_file(folder / "state.safetensors")


def test_decoding_resumes_bit_for_bit(tmp_path: Path) -> None:
    latents, _ = cases.decode_case(C)
    chunks = latents.split(2, dim=2)
    state = DecoderState()
    for chunk in chunks[:2]:
        DECODER.decode(chunk, state)
    saved = through_files(state.state_dict(), tmp_path)
    rest = [DECODER.decode(c, state) for c in chunks[2:]]
    resumed = DecoderState()
    resumed.load_state_dict(saved, device="cpu")
    assert resumed.taken == 4
    assert resumed.nbytes == state.nbytes
    again = [cases.decoder(C).decode(c, resumed) for c in chunks[2:]]
    assert all(torch.equal(a, b) for a, b in zip(rest, again, strict=True))


@pytest.mark.parametrize("at", [1, 3, 8, 9])  # 3 and 8: with frames pending at several levels
def test_encoding_resumes_bit_for_bit(tmp_path: Path, at: int) -> None:
    frames = cases.clip_case(C, "video17").frames
    state = EncoderState()
    ENCODER.encode(frames[:, :, :at], state)
    saved = through_files(state.state_dict(), tmp_path)
    rest = ENCODER.encode(frames[:, :, at:], state)
    resumed = EncoderState()
    resumed.load_state_dict(saved, device="cpu")
    assert torch.equal(cases.encoder(C).encode(frames[:, :, at:], resumed), rest)
    ENCODER.finish(resumed)


def test_a_saved_state_does_not_follow_the_stream() -> None:
    latents, _ = cases.decode_case(C)
    state = DecoderState()
    DECODER.decode(latents[:, :, :1], state)
    saved = state.state_dict()
    before = {n: v.clone() for n, v in saved.items() if isinstance(v, Tensor)}
    DECODER.decode(latents[:, :, 1:], state)
    assert all(torch.equal(saved[n], t) for n, t in before.items())


def test_a_fresh_state_can_be_saved() -> None:
    state = DecoderState()
    assert state.state_dict() == {"kind": "decoder", "taken": 0}
    state.load_state_dict({"kind": "decoder", "taken": 0}, device="cpu")
    assert state.nbytes == state.taken == 0


def _saved() -> dict[str, Any]:
    state = DecoderState()
    DECODER.decode(cases.decode_case(C)[0][:, :, :1], state)
    return state.state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "encoder"}, "kind is 'encoder', expected 'decoder'"),
        ({"kind": None}, "kind is None"),
        ({"taken": -1}, "taken is -1"),
        ({"taken": "1"}, "taken is '1'"),
        ({"taken": 0}, "damaged: 13 tensors after 0 time steps"),
        ({"batch": None}, "batch is None"),
        ({"dtype": 32}, "dtype is 32"),
        ({"other": torch.zeros(1)}, "unknown: other"),
    ],
)
def test_damaged_saves_are_refused(change: dict[str, Any], message: str) -> None:
    state = DecoderState()
    with pytest.raises(InputError, match=message):
        state.load_state_dict(_saved() | change, device="cpu")
    assert state.taken == 0
    assert state.usable


def test_a_save_that_lost_a_tensor_is_refused_by_the_model() -> None:
    saved = _saved()
    del saved["tail.decoder.conv_in"]
    state = DecoderState()
    state.load_state_dict(saved, device="cpu")
    with pytest.raises(
        BlockOrderError, match=r"decoder\.conv_in has no channels in the state, expected 6"
    ):
        DECODER.decode(cases.decode_case(C)[0][:, :, 1:], state)


# --- memory -------------------------------------------------------------------------------------


def test_decoder_state_does_not_grow() -> None:
    """Also shows that tails are copies: `nbytes` counts the storage that they keep alive."""
    latents, _ = cases.decode_case(C)
    state = DecoderState()
    sizes = []
    for chunk in (latents, latents, latents[:, :, :1], latents):
        DECODER.decode(chunk, state)
        sizes.append(state.nbytes)
    assert len(set(sizes)) == 1
    two_frames = sum(
        t.shape[0] * t.shape[1] * 2 * t[0, 0, 0].numel() * 4 for t in state.tails.values()
    )
    assert sizes[0] == two_frames


def test_encoder_state_does_not_grow() -> None:
    frames = cases.clip_case(C, "video17").frames
    state = EncoderState()
    sizes = []
    for _ in range(3):
        ENCODER.encode(frames, state)
        ENCODER.encode(frames[:, :, :15], state)  # 32 in all: the same pending frames each time
        sizes.append(state.nbytes)
    assert len(set(sizes)) == 1


def test_reset_frees_everything() -> None:
    latents, pixels = cases.decode_case(C)
    state = DecoderState()
    DECODER.decode(latents[:, :, :, :, :2].repeat(2, 1, 1, 2, 1), state)
    assert state.nbytes > 0
    state.reset()
    assert state.nbytes == state.taken == 0
    assert worst(DECODER.decode(latents, state), pixels) < DECODE_ATOL


def test_models_carry_nothing() -> None:
    def attributes(module: nn.Module) -> dict[str, set[str]]:
        return {n: set(vars(m)) for n, m in module.named_modules()}

    before = attributes(DECODER), attributes(ENCODER)
    weights = {n: t.clone() for n, t in DECODER.state_dict().items()}
    DECODER.decode(cases.decode_case(C)[0], DecoderState())
    ENCODER.encode(cases.clip_case(C, "video9").frames, EncoderState())
    assert (attributes(DECODER), attributes(ENCODER)) == before
    assert all(torch.equal(t, weights[n]) for n, t in DECODER.state_dict().items())


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 6, 0, 2, 2), "expected \\(B, 6, T, H, W\\)"),
        ((0, 6, 1, 2, 2), "none of them 0"),
        ((1, 5, 1, 2, 2), "\\(1, 5, 1, 2, 2\\), expected \\(B, 6"),
        ((6, 1, 2, 2), "expected \\(B, 6"),
        ((1, 6, 1, 1, 4), "1x4 \\(HxW\\), expected at least 2x2, 16x16 pixels"),
        ((1, 6, 1, 4, 1), "4x1"),
    ],
)
def test_latents_of_a_wrong_shape(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DECODER.decode(torch.zeros(shape), DecoderState())


def test_one_row_is_fine_without_reflection() -> None:
    pixels = cases.decoder("b_ltx23_p1").decode(torch.zeros(1, 8, 1, 1, 1), DecoderState())
    assert pixels.shape == (1, 3, 1, 8, 8)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 0, 16, 16), "none of them 0"),
        ((1, 4, 1, 16, 16), "expected \\(B, 3, frames"),
        ((1, 3, 16, 16), "expected \\(B, 3, frames"),
        ((1, 3, 1, 16, 20), "16x20 pixels, expected multiples of 8"),
        ((1, 3, 1, 4, 16), "4x16 pixels"),
    ],
)
def test_frames_of_a_wrong_shape(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ENCODER.encode(torch.zeros(shape), EncoderState())


def test_integers_are_refused() -> None:
    with pytest.raises(UsageError, match="uint8, expected floats"):
        ENCODER.encode(torch.zeros(1, 3, 1, 16, 16, dtype=torch.uint8), EncoderState())
    with pytest.raises(UsageError, match="int64, expected floats"):
        DECODER.decode(torch.zeros(1, 6, 1, 2, 2, dtype=torch.int64), DecoderState())


def test_another_device_is_refused() -> None:
    with pytest.raises(UsageError, match="on meta, the VAE is on cpu"):
        DECODER.decode(torch.zeros(1, 6, 1, 2, 2, device="meta"), DecoderState())
    with pytest.raises(UsageError, match="on meta, the VAE is on cpu"):
        ENCODER.encode(torch.zeros(1, 3, 1, 16, 16, device="meta"), EncoderState())


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (torch.zeros(2, 6, 1, 2, 2), "batch 2, expected 1"),
        (torch.zeros(1, 6, 1, 3, 2), "height 3, expected 2"),
        (torch.zeros(1, 6, 1, 2, 3), "width 3, expected 2"),
        (torch.zeros(1, 6, 1, 2, 2, dtype=torch.bfloat16), "dtype bfloat16, expected float32"),
        (torch.zeros(1, 6, 0, 2, 2), "none of them 0"),
    ],
)
def test_a_refused_chunk_leaves_the_stream_intact(chunk: Tensor, message: str) -> None:
    latents, pixels = cases.decode_case(C)
    state = DecoderState()
    DECODER.decode(latents[:, :, :4], state)
    with pytest.raises(UsageError, match=message):
        DECODER.decode(chunk, state)
    rest = DECODER.decode(latents[:, :, 4:], state)
    assert worst(rest, pixels[:, :, 25:]) < DECODE_ATOL


def test_encoder_refuses_a_change_of_size() -> None:
    state = EncoderState()
    ENCODER.encode(torch.zeros(1, 3, 1, 16, 16), state)
    with pytest.raises(BlockOrderError, match="encoder stream: height 24, expected 16"):
        ENCODER.encode(torch.zeros(1, 3, 1, 24, 16), state)


def test_change_of_the_models_dtype_is_refused() -> None:
    latents, _ = cases.decode_case(C)
    state = DecoderState()
    DECODER.decode(latents[:, :, :1], state)
    with pytest.raises(BlockOrderError, match="compute_dtype bfloat16, expected float32"):
        cases.decoder(C, torch.bfloat16).decode(latents[:, :, 1:], state)


def test_a_state_of_another_vae_is_refused() -> None:
    state = DecoderState()
    DECODER.decode(torch.zeros(1, 6, 1, 2, 2), state)
    other = cases.decoder("d_convin_p1")
    with pytest.raises(
        BlockOrderError, match=r"does not fit this VAE: decoder\.conv_in has 6 .* expected 4"
    ):
        other.decode(torch.zeros(1, 4, 1, 2, 2), state)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_half_way_makes_the_state_unusable(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    latents, pixels = cases.decode_case(C)
    vae = cases.decoder(C)
    state = DecoderState()
    vae.decode(latents[:, :, :1], state)
    good = state.state_dict()

    def fail(*_: object, **__: object) -> Tensor:
        raise error("no more")

    with monkeypatch.context() as patch:
        patch.setattr(vae.decoder.conv_out, "convolve", fail)
        with pytest.raises(error):
            vae.decode(latents[:, :, 1:], state)
    for use in (lambda: vae.decode(latents[:, :, 1:], state), state.state_dict):
        with pytest.raises(BlockOrderError, match="unusable") as refusal:
            use()
        assert "reset()" in str(refusal.value)
    state.reset()
    assert worst(vae.decode(latents, state), pixels) < DECODE_ATOL
    state.load_state_dict(good, device="cpu")
    assert worst(vae.decode(latents[:, :, 1:], state), pixels[:, :, 1:]) < DECODE_ATOL


def test_finish_refuses_a_failed_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = cases.encoder(C)
    state = EncoderState()
    monkeypatch.setattr(vae.encoder, "conv_out", None)
    with pytest.raises(TypeError):
        vae.encode(torch.zeros(1, 3, 1, 16, 16), state)
    with pytest.raises(BlockOrderError, match="encoder state is unusable"):
        vae.finish(state)
