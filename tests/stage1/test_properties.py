"""Properties that hold without any reference output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sanawm.camera.framing import ImageSize
from sanawm.camera.rays import camera_rays
from sanawm.shapes import BlockSpan, LatentShape
from sanawm.stage1.camera import CameraChunk, PathCamera, ReadyCamera
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.noise import ChunkNoise
from sanawm.stage1.plan import ChunkWindow, plan_chunks
from sanawm.stage1.positions import TokenGrid
from sanawm.stage1.sampler import Stage1Stream
from sanawm.stage1.state import Stage1State

from . import cases
from .cases import worst
from .dense import block_causal

SIZES = (4, 3, 3)


def spans_of(sizes: tuple[int, ...]) -> list[BlockSpan]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [BlockSpan(i, e - n, e) for i, (n, e) in enumerate(zip(sizes, ends, strict=True))]


@torch.no_grad()
def run_chunks(
    model: Stage1Model, x: Tensor, times: Tensor, *, window: ChunkWindow, sizes: tuple[int, ...]
) -> list[Tensor]:
    """One call with write a chunk; return the velocities."""
    t = cases.case("case_a").tensors
    text = model.embed_text(t["caption"], t["caption_mask"])
    camera = ReadyCamera(t["camera_conditions"], t["chunk_plucker"])
    state = Stage1State(model.config, window=window)
    found = []
    for span in spans_of(sizes):
        frames = slice(span.start, span.stop)
        raymap, plucker = camera(span)
        grid = TokenGrid(span.frames, *x.shape[3:])
        context = model.chunk_context(grid, start=span.start, raymap=raymap, plucker=plucker)
        out = model(x[:, :, frames], times[:, frames], text, context, state=state, write=True)
        assert out.writes is not None
        state.commit(out.writes, frames=span.frames, camera=True)
        found.append(out.velocity)
    return found


def clip_inputs(frames: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 8, frames, 3, 4, generator=generator)
    return x, torch.rand(1, frames, generator=generator) * 1000


@pytest.mark.parametrize("sizes", [SIZES, (3, 3, 3, 3), (5, 3), (10,), (2, 1, 4)])
def test_chunks_equal_one_call_with_block_causal_masks(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cases.tiny_model()
    x, times = clip_inputs(sum(sizes))
    window = ChunkWindow(-1, sink=True)
    streamed = torch.cat(run_chunks(model, x, times, window=window, sizes=sizes), dim=2)
    chunk_of = [number for number, size in enumerate(sizes) for _ in range(size)]
    block_causal(monkeypatch, chunk_of=chunk_of, per_frame=12)
    (dense,) = run_chunks(model, x, times, window=window, sizes=(sum(sizes),))
    assert worst(streamed, dense) < 5e-5


def test_a_chunk_does_not_see_later_ones() -> None:
    model = cases.tiny_model()
    x, times = clip_inputs(10)
    window = ChunkWindow(2, sink=True)
    before = run_chunks(model, x, times, window=window, sizes=SIZES)
    x[:, :, 7:] += 1
    after = run_chunks(model, x, times, window=window, sizes=SIZES)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[2], after[2])


def saved(state: Stage1State) -> dict[str, object]:
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.state_dict().items()}


def assert_same(a: dict[str, object], b: dict[str, object]) -> None:
    assert a.keys() == b.keys()
    for key, value in a.items():
        other = b[key]
        if isinstance(value, Tensor) and isinstance(other, Tensor):
            assert torch.equal(value, other), key
        else:
            assert value == other, key


@torch.no_grad()
def test_passes_do_not_change_the_state_and_the_context_pass_can_be_repeated() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    stream = cases.stream(model, run)
    next(stream)
    before = saved(stream.state)
    text = model.embed_text(run.tensors["caption"], run.tensors["caption_mask"])
    frames = slice(4, 7)
    context = model.chunk_context(
        TokenGrid(3, 3, 4),
        start=4,
        raymap=run.tensors["camera_conditions"][:, frames],
        plucker=run.tensors["chunk_plucker"][:, :, frames],
    )
    x = run.tensors["noise"][:, :, frames]
    model(x, torch.full((1, 3), 889.0), text, context, state=stream.state)
    assert_same(before, saved(stream.state))
    results = []
    for _ in range(2):
        out = model(x, torch.zeros(1, 3), text, context, state=stream.state, write=True)
        assert out.writes is not None
        state = Stage1State(model.config, window=stream.state.window)
        state.load_state_dict(stream.state.state_dict(), device="cpu")
        state.commit(out.writes, frames=3, camera=True)
        results.append(saved(state))
    assert_same(before, saved(stream.state))
    assert_same(results[0], results[1])


def path_camera(move: np.ndarray, *, mirror: bool = False) -> PathCamera:
    """A curved path in a world moved by the rigid transform `move`, or the mirrored path."""
    poses = np.tile(np.eye(4), (121, 1, 1))
    angle = np.linspace(0.2, 0.9, 121)
    poses[:, 0, 0] = poses[:, 2, 2] = np.cos(angle)
    poses[:, 0, 2], poses[:, 2, 0] = np.sin(angle), -np.sin(angle)
    poses[:, :3, 3] = np.stack([np.sin(angle), 0.1 * angle, 2 * angle], axis=1)
    flip = np.diag([-1.0, 1, 1, 1]) if mirror else np.eye(4)
    poses = (move @ flip @ poses @ flip).astype(np.float32)
    intrinsics = np.tile(np.array([100, 110, 64, 48], np.float32), (121, 1))
    ratios = cases.tiny_config().vae
    return PathCamera(camera_rays(poses, intrinsics, size=ImageSize(128, 96), ratios=ratios))


def final_of(model: Stage1Model, camera: PathCamera | ReadyCamera) -> Tensor:
    run = cases.case("case_a")
    stream = cases.stream(model, run)
    stream.camera = camera
    return torch.cat(list(stream), dim=2)


def test_moving_the_world_changes_nothing() -> None:
    model = cases.tiny_model()
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    move = np.eye(4)
    move[:3, :3] = turn * np.sign(np.linalg.det(turn))
    move[:3, 3] = (3, -2, 7)
    here = final_of(model, path_camera(np.eye(4)))
    assert worst(final_of(model, path_camera(move)), here) < 1e-3
    assert worst(final_of(model, path_camera(np.eye(4), mirror=True)), here) > 0.05


def test_without_camera_weights_the_camera_does_not_matter() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    ready = ReadyCamera(run.tensors["camera_conditions"], run.tensors["chunk_plucker"])
    assert worst(final_of(model, ready), final_of(model, path_camera(np.eye(4)))) > 0.01
    for name, parameter in model.named_parameters():
        if "out_proj_cam" in name or "plucker_proj" in name:
            parameter.zero_()
    assert torch.equal(final_of(model, ready), final_of(model, path_camera(np.eye(4))))
    assert torch.equal(final_of(model, ready), final_of(model, ReadyCamera(None, None)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frame_zero_is_the_image_latent(dtype: torch.dtype) -> None:
    run = cases.case("case_b_nosink")
    first = next(cases.stream(cases.tiny_model(dtype=dtype), run))
    assert torch.equal(first[:, :, :1], run.tensors["image_latent"].to(dtype))


class StillCamera:
    """A camera that does not move, for clips of any length."""

    def __init__(self) -> None:
        t = cases.case("case_a").tensors
        self.ready = ReadyCamera(t["camera_conditions"], t["chunk_plucker"])

    def __call__(self, span: BlockSpan) -> CameraChunk:
        return self.ready(BlockSpan(0, 0, span.frames))


def test_memory_is_flat() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    shape = LatentShape(1, 8, 3 * 50 + 1, 3, 4)
    stream = Stage1Stream(
        model,
        caption=run.tensors["caption"],
        mask=run.tensors["caption_mask"],
        camera=StillCamera(),
        shape=shape,
        noise=ChunkNoise(1, shape=shape, spans=plan_chunks(shape.frames, 3)),
        steps=(1000, 0),
    )
    stream.start(run.tensors["image_latent"])
    sizes = []
    for chunk in stream:
        assert chunk.isfinite().all()
        sizes.append(stream.state.nbytes)
    assert len(sizes) == 50
    assert sizes[1] == sizes[4] == sizes[49]
    storages = sum(
        t.untyped_storage().nbytes()
        for t in stream.state.state_dict().values()
        if isinstance(t, Tensor)
    )
    assert storages == sizes[49]  # nothing hides behind a view


def test_a_run_leaves_no_attribute_on_the_modules() -> None:
    model = cases.tiny_model()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    next(cases.stream(model, cases.case("case_b_nosink")))
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}


def test_two_runs_are_bit_equal() -> None:
    model, run = cases.tiny_model(), cases.case("case_b_nosink")
    for a, b in zip(cases.stream(model, run), cases.stream(model, run), strict=True):
        assert torch.equal(a, b)


def test_gradients_reach_every_weight() -> None:
    t = cases.case("case_a").tensors
    model = cases.tiny_model().requires_grad_(True)
    text = model.embed_text(t["caption"], t["caption_mask"])
    context = model.chunk_context(
        TokenGrid(4, 3, 4),
        start=0,
        raymap=t["camera_conditions"][:, :4],
        plucker=t["chunk_plucker"][:, :, :4],
    )
    out = model(t["noise"][:, :, :4], torch.full((1, 4), 800.0), text, context)
    out.velocity.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_the_released_size_runs_without_storage() -> None:
    """Shapes, dtypes and state size at 704 x 1280 on the meta device, in bf16."""
    config = Stage1Config.released()
    with torch.device("meta"):
        model = Stage1Model(config).to(torch.bfloat16)
    text = model.embed_text(torch.empty(1, 1, 300, 2304), torch.empty(1, 300))
    state = Stage1State(config, window=ChunkWindow())
    for span in plan_chunks(31, 3)[:2]:
        grid = TokenGrid(span.frames, 22, 40)
        context = model.chunk_context(
            grid,
            start=span.start,
            raymap=torch.empty(1, span.frames, 20),
            plucker=torch.empty(1, 48, *grid),
        )
        x = torch.empty(1, 128, *grid, dtype=torch.bfloat16, device="meta")
        times = torch.empty(1, span.frames, device="meta")
        out = model(x, times, text, context, state=state, write=True)
        assert out.writes is not None
        assert (out.velocity.shape, out.velocity.dtype) == (x.shape, x.dtype)
        state.commit(out.writes, frames=span.frames, camera=True)
    assert 1.0e9 < state.nbytes < 1.03e9
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(2.66e9, rel=1e-3)
