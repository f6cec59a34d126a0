"""The stream's contract: saved state, noise, order, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.errors import BlockOrderError, InputError, NumericsError, UsageError
from sanawm.notes import Notes
from sanawm.shapes import BlockSpan, LatentShape
from sanawm.stage1.camera import CameraChunk, ReadyCamera
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.noise import ChunkNoise, ClipNoise
from sanawm.stage1.plan import ChunkWindow, plan_chunks
from sanawm.stage1.positions import TokenGrid
from sanawm.stage1.sampler import Stage1Stream
from sanawm.stage1.state import Stage1State

from . import cases

SHAPE = LatentShape(1, 8, 10, 3, 4)


@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_saved_state_continues_bit_for_bit(name: str, after: int, tmp_path: Path) -> None:
    run = cases.case(name)
    whole = list(cases.stream(cases.tiny_model(), run))
    first = cases.stream(cases.tiny_model(), run)
    for _ in range(after):
        next(first)
    values = first.state.state_dict()
    tensors = {k: v for k, v in values.items() if isinstance(v, Tensor)}
    save_file(tensors, tmp_path / "state.safetensors")
    text = json.dumps({k: v for k, v in values.items() if not isinstance(v, Tensor)})
    second = cases.stream(cases.tiny_model(), run, start=False)
    restored = load_file(tmp_path / "state.safetensors") | json.loads(text)
    second.state.load_state_dict(restored, device="cpu")
    assert second.state.nbytes == first.state.nbytes
    rest = list(second)
    assert len(rest) == len(whole) - after
    for a, b in zip(rest, whole[after:], strict=True):
        assert torch.equal(a, b)


def test_an_empty_state_can_be_saved_and_loaded() -> None:
    model = cases.tiny_model()
    state = Stage1State(model.config, window=ChunkWindow())
    state.load_state_dict(state.state_dict(), device="cpu")
    assert (state.chunks, state.frames, state.kept, state.nbytes) == (0, 0, [], 0)


def test_starting_again_gives_the_same_clip() -> None:
    run = cases.case("case_b_nosink")
    stream = cases.stream(cases.tiny_model(), run)
    first = next(stream)
    next(stream)
    stream.start(run.tensors["image_latent"])
    assert torch.equal(next(stream), first)


def test_saved_states_of_other_runs_are_refused() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    stream = cases.stream(model, run)
    for _ in range(3):
        next(stream)
    values = stream.state.state_dict()
    assert values["kept"] == [0, 2]
    other = Stage1State(model.config, window=ChunkWindow(2, sink=False))
    with pytest.raises(InputError, match=r"holds chunks \[0, 2\].*sink off"):
        other.load_state_dict(values, device="cpu")
    same = Stage1State(model.config, window=ChunkWindow())
    with pytest.raises(InputError, match=r"blocks\.0\.memory is missing"):
        same.load_state_dict(
            {k: v for k, v in values.items() if k != "blocks.0.memory"}, device="cpu"
        )
    with pytest.raises(InputError, match="belongs to no block"):
        same.load_state_dict({**values, "blocks.9.memory": torch.zeros(1)}, device="cpu")
    with pytest.raises(InputError, match=r"blocks\.0\.key_tail is \(1, 3, 12, 9\), not of this"):
        same.load_state_dict(
            {**values, "blocks.0.key_tail": torch.zeros(1, 3, 12, 9)}, device="cpu"
        )
    with pytest.raises(InputError, match="chunks, frames or kept is missing"):
        same.load_state_dict({}, device="cpu")
    assert same.chunks == 0


def test_a_state_of_another_clip_length_is_refused() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    stream = cases.stream(model, run)
    next(stream)
    shorter = cases.stream(model, run, frames=15, start=False)
    shorter.state.load_state_dict(stream.state.state_dict(), device="cpu")
    with pytest.raises(BlockOrderError, match=r"chunk 1 starts at latent frame 3, .* ends at 4"):
        next(shorter)


def test_chunk_noise_depends_on_seed_and_plan_only() -> None:
    spans = plan_chunks(SHAPE.frames, 3)
    noise = ChunkNoise(42, shape=SHAPE, spans=spans)
    drawn = [noise(span) for span in spans]
    assert [tuple(n.shape) for n in drawn] == [(1, 8, 4, 3, 4), (1, 8, 3, 3, 4), (1, 8, 3, 3, 4)]
    late = ChunkNoise(42, shape=SHAPE, spans=spans)
    assert torch.equal(late(spans[2]), drawn[2])
    assert torch.equal(late(spans[0]), drawn[0])
    assert torch.equal(late(spans[1]), drawn[1])
    other = ChunkNoise(43, shape=SHAPE, spans=spans)
    assert not torch.equal(other(spans[0]), drawn[0])
    first = torch.randn(1, 8, 4, 3, 4, generator=torch.Generator().manual_seed(42))
    assert torch.equal(drawn[0], first)
    with pytest.raises(UsageError, match="is no chunk of this clip"):
        noise(BlockSpan(1, 3, 6))


def test_reference_noise_is_drawn_at_once() -> None:
    noise = ClipNoise.reference(42, shape=SHAPE, device="cpu", dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(42)
    whole = torch.randn(1, 8, 10, 3, 4, generator=generator, dtype=torch.bfloat16)
    assert torch.equal(noise(BlockSpan(1, 4, 7)), whole[:, :, 4:7])


def test_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"noise is \(1, 8, 9, 3, 4\), the clip needs"):
        ClipNoise(torch.zeros(1, 8, 9, 3, 4), shape=SHAPE)
    stream = cases.stream(cases.tiny_model(), cases.case("case_a"))
    stream.noise = lambda span: torch.zeros(1, 8, 2, 3, 4)
    with pytest.raises(InputError, match=r"noise is \(1, 8, 2, 3, 4\), the chunk needs"):
        next(stream)


def make(model: Stage1Model, **settings: object) -> Stage1Stream:
    t = cases.case("case_a").tensors
    base: dict[str, object] = {
        "caption": t["caption"], "mask": t["caption_mask"], "shape": SHAPE,
        "camera": ReadyCamera(t["camera_conditions"], t["chunk_plucker"]),
        "noise": ClipNoise(torch.zeros(tuple(SHAPE)), shape=SHAPE),
    }  # fmt: skip
    return Stage1Stream(model, **(base | settings))  # type: ignore[arg-type]


def test_settings_that_cannot_work() -> None:
    model = cases.tiny_model()
    for settings, message in (
        ({"num_frame_per_block": 4}, "num_frame_per_block 4 differs from .* chunk size 3"),
        ({"num_cached_blocks": 1}, "num_cached_blocks 1 with a sink"),
        ({"steps": (1000, 500)}, "the last one 0"),
        ({"shape": SHAPE._replace(frames=3)}, "a clip of 3 latent frames"),
        ({"shape": SHAPE._replace(channels=7)}, "expected batch 1 and 8 channels"),
        ({"shape": SHAPE._replace(batch=2)}, "expected batch 1 and 8 channels"),
        ({"caption": torch.zeros(1, 1, 12, 31)}, r"caption \(1, 1, 12, 31\)"),
        ({"mask": torch.ones(1, 11)}, r"mask \(1, 11\)"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            make(model, **settings)
        assert caught.value.exit_code == 2


def test_bidirectional_weights_cannot_stream() -> None:
    model = cases.tiny_model(config=replace(cases.tiny_config(), chunk_size=None))
    with pytest.raises(UsageError, match=r"bidirectional.*cannot stream"):
        make(model)


def test_a_window_without_bound_is_said() -> None:
    notes = Notes()
    make(cases.tiny_model(), num_cached_blocks=-1, notes=notes)
    assert len(notes.warnings) == 1
    assert "memory grows with the clip" in notes.warnings[0]


def test_the_image_latent_must_fit_and_come_first() -> None:
    stream = make(cases.tiny_model())
    with pytest.raises(UsageError, match=r"call start\(first_latent\) before iterating"):
        next(stream)
    with pytest.raises(InputError, match=r"image latent is \(1, 8, 2, 3, 4\)"):
        stream.start(torch.zeros(1, 8, 2, 3, 4))


def test_nan_is_caught_in_its_chunk() -> None:
    run = cases.case("case_a")
    stream = cases.stream(cases.tiny_model(), run)
    next(stream)
    plain = stream.noise
    stream.noise = lambda span: plain(span) * float("nan")
    with pytest.raises(NumericsError, match="chunk 1 holds NaN") as caught:
        next(stream)
    assert caught.value.exit_code == 1
    assert stream.state.chunks == 1


def test_a_camera_that_stops_midway_is_refused() -> None:
    run = cases.case("case_a")
    stream = cases.stream(cases.tiny_model(), run)
    next(stream)
    stream.camera = lambda span: CameraChunk(None, None)
    with pytest.raises(BlockOrderError, match="chunk 1: this stream began with a raymap"):
        next(stream)


def test_streaming_without_a_camera_can_be_saved_too() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    stream = cases.stream(model, run)
    stream.camera = lambda span: CameraChunk(None, None)
    whole = list(stream)
    stream.start(run.tensors["image_latent"])
    next(stream)
    state = Stage1State(model.config, window=stream.state.window)
    state.load_state_dict(stream.state.state_dict(), device="cpu")
    stream.state = state
    assert torch.equal(next(stream), whole[1])


def test_plucker_rays_without_an_embedder() -> None:
    with torch.device("meta"):
        bare = replace(cases.tiny_config(), plucker_channels=0, plucker_blocks=0)
        model = Stage1Model(bare)
    model.to_empty(device="cpu")
    with pytest.raises(UsageError, match="plucker_embedder is not initialized") as caught:
        model.chunk_context(TokenGrid(3, 3, 4), start=0, plucker=torch.zeros(1, 48, 3, 3, 4))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("plucker", "message"),
    [
        ((1, 48, 4, 3, 4), "plucker_emb token count 48 != latent token count 36"),
        ((1, 48, 3, 4, 3), r"expected \(B, 48, 3, 3, 4\)"),
        ((1, 24, 3, 3, 4), r"\(1, 24, 3, 3, 4\); expected \(B, 48, T, H, W\)"),
        ((48, 3, 3, 4), r"expected \(B, 48, T, H, W\)"),
    ],
)
def test_plucker_rays_of_another_shape(plucker: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cases.tiny_model().chunk_context(TokenGrid(3, 3, 4), start=0, plucker=torch.zeros(plucker))


@pytest.mark.parametrize(
    ("raymap", "message"),
    [
        ((1, 4, 20), "raymap has 4 frames, the latents have 3"),
        ((1, 3, 16), r"raymap is \(1, 3, 16\), expected \(B, T, 20\)"),
    ],
)
def test_raymaps_of_another_shape(raymap: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cases.tiny_model().chunk_context(TokenGrid(3, 3, 4), start=0, raymap=torch.zeros(raymap))


def test_latents_of_another_shape() -> None:
    model, t = cases.tiny_model(), cases.case("case_a").tensors
    context = model.chunk_context(TokenGrid(3, 3, 4), start=0)
    text = model.embed_text(t["caption"], t["caption_mask"])
    with pytest.raises(
        InputError, match=r"latents are \(1, 8, 3, 3, 5\), expected \(B, 8, 3, 3, 4"
    ):
        model(torch.zeros(1, 8, 3, 3, 5), torch.zeros(1, 3), text, context)


def test_a_commit_that_skipped_blocks_is_refused() -> None:
    model = cases.tiny_model()
    state = Stage1State(model.config, window=ChunkWindow())
    with pytest.raises(BlockOrderError, match="0 blocks were written, expected 5"):
        state.commit((), frames=3, camera=True)
