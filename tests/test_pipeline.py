"""The library surface: stages as iterators, in a few lines, without the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import sanawm
from sanawm.errors import InputError, NumericsError, UsageError
from sanawm.notes import Notes
from sanawm.pipeline import FrameChunk, Pipeline, RefinedChunk
from sanawm.shapes import LatentShape
from sanawm.text.embeddings import PromptEmbeds
from sanawm.vae.state import DecoderState

from .io.clips import decode, moving_clip

CONFIG = json.loads(
    (
        Path(__file__).parents[1] / "configs/tiny/refiner_diffusers/transformer/config.json"
    ).read_text()
)
CHANNELS = CONFIG["in_channels"]
TIME, SPACE = CONFIG["vae_scale_factors"][:2]


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    """The tiny model set."""
    return Pipeline.from_config("tiny")


@pytest.fixture(scope="module")
def prompt(pipe: Pipeline) -> PromptEmbeds:
    """Embeddings of a prompt."""
    return pipe.encode_prompt("a red tower on green ground")


def clip(frames: int = 7, *, batch: int = 1, seed: int = 0) -> Tensor:
    """Return random latents `(B, C, frames, 6, 8)`."""
    generator = torch.Generator().manual_seed(seed)
    frames_ = [torch.randn(batch, CHANNELS, 6, 8, generator=generator) for _ in range(frames)]
    return torch.stack(frames_, dim=2)


def joined(chunks: Iterator[RefinedChunk]) -> Tensor:
    """Return the whole refined clip."""
    return torch.cat([c.latents for c in chunks], dim=2)


def test_ten_lines_make_a_video(tmp_path: Path) -> None:
    from sanawm import Pipeline, write_video

    pipe = Pipeline.from_config("tiny")
    prompt = pipe.encode_prompt("a red tower on green ground")
    chunks = pipe.decode(pipe.refine(clip(), prompt))
    made = write_video(chunks, tmp_path / "out.mp4", fps=16)
    assert made.frames == len(decode(tmp_path / "out.mp4")) == TIME * 6


def test_the_public_names_are_there() -> None:
    for name in sanawm.__all__:
        assert getattr(sanawm, name) is not None


def test_chunks_come_one_block_at_a_time(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    z, taken = clip(10), 0

    def source() -> Iterator[Tensor]:
        nonlocal taken
        for start, stop in ((0, 1), (1, 4), (4, 7), (7, 10)):
            taken += 1
            yield z[:, :, start:stop]

    chunks = pipe.refine(source(), prompt, shape=LatentShape(*z.shape))
    first = next(chunks)
    assert taken == 2, "the sink and the first block, nothing read ahead"
    assert first.latents.shape[2] == 4
    assert torch.equal(first.latents[:, :, :1], z[:, :, :1])
    rest = list(chunks)
    assert [c.span.number for c in rest] == [1, 2]
    assert [c.history_frames for c in (first, *rest)] == [0, 3, 6]
    whole = torch.cat([first.latents, *(c.latents for c in rest)], dim=2)
    assert torch.equal(whole, joined(pipe.refine(z, prompt)))


def test_frames_come_one_block_at_a_time(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    chunks = list(pipe.decode(pipe.refine(clip(), prompt)))
    assert [(c.first, len(c.frames)) for c in chunks] == [(1, 3 * TIME), (1 + 3 * TIME, 3 * TIME)]
    for chunk in chunks:
        assert chunk.frames.shape[1:] == (6 * SPACE, 8 * SPACE, 3)
        assert chunk.frames.dtype == np.uint8
    kept = list(pipe.decode(pipe.refine(clip(), prompt), drop_first=False))
    assert [(c.first, len(c.frames)) for c in kept] == [(0, 3 * TIME + 1), (1 + 3 * TIME, 3 * TIME)]
    np.testing.assert_array_equal(kept[0].frames[1:], chunks[0].frames)


def test_two_clips_in_turn_do_not_touch_each_other(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    a, b = clip(7, seed=1), clip(7, seed=2)
    alone = joined(pipe.refine(a, prompt)), joined(pipe.refine(b, prompt))
    first, second = pipe.refine(a, prompt), pipe.refine(b, prompt)
    turns = [(next(first).latents, next(second).latents) for _ in range(2)]
    for k in range(2):
        assert torch.equal(torch.cat([t[k] for t in turns], dim=2), alone[k])


def test_a_batch_equals_its_clips(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    from sanawm.refiner.noise import GivenNoise

    z = clip(4, batch=2)
    eps = torch.randn(2, CHANNELS, 3, 6, 8, generator=torch.Generator().manual_seed(3))
    both = joined(pipe.refine(z, prompt, noise=GivenNoise.of(eps, sink=1)))
    for k in range(2):
        noise = GivenNoise.of(eps[k : k + 1], sink=1)
        one = joined(pipe.refine(z[k : k + 1], prompt, noise=noise))
        torch.testing.assert_close(both[k : k + 1], one, atol=2e-5, rtol=1e-5)


def test_models_keep_no_state(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    """A run adds nothing to a module, takes nothing away and leaves the weights as they are."""

    def attributes() -> dict[str, frozenset[str]]:
        models = {"refiner": pipe.refiner, "decoder": pipe.decoder, "encoder": pipe.encoder}
        return {
            f"{model}.{name}": frozenset(
                [*vars(m), *m._parameters, *m._buffers, *m._modules, *m._forward_hooks]
            )
            for model, module in models.items()
            for name, m in module.named_modules()
        }

    list(pipe.decode(pipe.refine(clip(4), prompt)))
    before, weights = attributes(), [p.clone() for p in pipe.refiner.parameters()]
    list(pipe.decode(pipe.refine(clip(10), prompt)))
    list(pipe.encode_frames([moving_clip(1, width=64, height=48)]))
    assert attributes() == before
    assert all(torch.equal(a, b) for a, b in zip(weights, pipe.refiner.parameters(), strict=True))


def test_an_error_in_the_source_comes_through(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    z = clip()

    def source() -> Iterator[Tensor]:
        yield z[:, :, :1]
        yield z[:, :, 1:4]
        raise InputError("the source broke")

    chunks = pipe.decode(pipe.refine(source(), prompt, shape=LatentShape(*z.shape)))
    assert len(next(chunks).frames) == 3 * TIME
    with pytest.raises(InputError, match="the source broke"):
        next(chunks)


def test_inputs_of_a_wrong_shape_are_refused(pipe: Pipeline, prompt: PromptEmbeds) -> None:
    with pytest.raises(UsageError, match=r"expected \(B, C, T, H, W\)"):
        pipe.refine(clip()[0], prompt)
    with pytest.raises(UsageError, match="total shape"):
        pipe.refine(iter([clip()]), prompt)
    with pytest.raises(UsageError, match="sink"):
        list(pipe.refine(clip(1), prompt))


def test_frames_of_nan_are_refused_with_the_block(pipe: Pipeline) -> None:
    z = clip(4)
    z[0, 0, 2] = float("nan")
    with pytest.raises(NumericsError, match="block 5"):
        pipe.decode_chunk(z, DecoderState(), number=5)


def test_a_flat_chunk_from_lively_latents_is_a_warning(
    prompt: PromptEmbeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that lost its state gives grey: it must not pass in silence."""
    notes = Notes()
    pipe = Pipeline.from_config("tiny", notes=notes)
    whole = pipe.decoder.decode
    z = clip()
    state = DecoderState()
    pipe.decode_chunk(z[:, :, :4], state, number=0)
    assert notes.warnings == []

    def grey(latents: Tensor, state: DecoderState) -> Tensor:
        return torch.zeros_like(whole(latents, state))

    monkeypatch.setattr(pipe.decoder, "decode", grey)
    pipe.decode_chunk(z[:, :, 4:], state, number=1)
    (line,) = notes.warnings
    assert "block 1" in line
    assert "flat" in line
    notes.warnings.clear()
    pipe.decode_chunk(torch.zeros_like(z[:, :, 4:]), state, number=2)
    assert notes.warnings == []  # flat latents may give flat frames


def test_encoding_in_batches_equals_encoding_at_once(pipe: Pipeline) -> None:
    frames = moving_clip(2 * TIME + 1, width=64, height=48)
    whole = torch.cat(list(pipe.encode_frames([frames])), dim=2)
    cuts = [frames[:1], frames[1 : TIME + 1], frames[TIME + 1 :]]
    parts = torch.cat(list(pipe.encode_frames(cuts)), dim=2)
    assert whole.shape == (1, CHANNELS, 3, 6, 8)
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


def test_write_video_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no frames to write"):
        sanawm.write_video([], tmp_path / "o.mp4", fps=16)
    assert list(tmp_path.iterdir()) == []

    def broken() -> Iterator[FrameChunk]:
        from sanawm.shapes import BlockSpan

        yield FrameChunk(BlockSpan(0, 0, 3), 0, moving_clip(8))
        raise InputError("the source broke")

    with pytest.raises(InputError, match="the source broke"):
        sanawm.write_video(broken(), tmp_path / "o.mp4", fps=16)
    assert len(decode(tmp_path / "o.part.mp4")) == 8
