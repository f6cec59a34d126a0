"""Every quicker form of stage 1 against the plain formula that it stands for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.ops.norm import rms_norm
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.embed import MASKED
from sanawm.stage1.ffn import ConvFeedForward
from sanawm.stage1.gdn import Frames, ShortConv, by_frame, by_token, run_memory
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.norm import RMSNorm
from sanawm.stage1.positions import TokenGrid, inverse, rope_tables, rotate

from . import cases
from .cases import worst

ATOL = 1e-5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unprepared_model() -> Stage1Model:
    """The tiny model with its weights as a checkpoint holds them, every layer for itself."""
    model = Stage1Model(cases.tiny_config())
    model.load_state_dict(cases.tiny_model().state_dict())
    return model.requires_grad_(False)


def test_a_prepared_model_runs_as_one_that_is_not() -> None:
    run = cases.case("case_a")
    plain, quick = unprepared_model(), cases.tiny_model()
    assert [b.attn.joined is None for b in plain._blocks()] == [True] * plain.config.depth
    assert [b.attn.joined is None for b in quick._blocks()] == [False] * plain.config.depth
    for a, b in zip(cases.stream(plain, run), cases.stream(quick, run), strict=True):
        assert worst(a, b) < 5e-5


def test_preparing_changes_no_weight_and_stores_nothing_twice() -> None:
    plain, quick = unprepared_model(), cases.tiny_model()
    for (name, a), (other, b) in zip(
        plain.state_dict().items(), quick.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(a, b), name
    for block in quick._blocks():
        joined = block.attn.joined
        assert joined is not None
        for layer in block.attn.readers:
            assert layer.weight.untyped_storage().data_ptr() == joined.weight.data_ptr()


def test_moved_weights_leave_the_joined_product() -> None:
    model = cases.tiny_model().to(torch.float64)
    assert all(block.attn.joined is None for block in model._blocks())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_bit_equal(dtype: torch.dtype) -> None:
    norm = RMSNorm(48, eps=1e-5).to(dtype).requires_grad_(False)
    norm.weight.copy_(drawn(48))
    x = drawn(2, 9, 48, seed=1).to(dtype)
    assert torch.equal(norm(x), rms_norm(x, eps=1e-5, weight=norm.weight))


def test_rotation_of_pairs() -> None:
    grid = TokenGrid(3, 2, 5)
    table = rope_tables(grid, start=7, head_size=16, device="cpu").main
    x = drawn(2, grid.tokens, 3, 16)
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = table.real, table.imag
    want = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    assert worst(rotate(x, table), want) < 1e-6
    assert worst(rotate(rotate(x, table), inverse(table)), x) < ATOL


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("tailed", [False, True])
def test_short_convolution_is_a_convolution(frames: int, *, tailed: bool) -> None:
    conv = ShortConv(6, taps=4).requires_grad_(False)
    conv.weight.copy_(drawn(6, 1, 4))
    x = drawn(2, frames, 5, 6, seed=1)
    tail = drawn(2, 3, 5, 6, seed=2) if tailed else None
    before = torch.zeros(2, 3, 5, 6) if tail is None else tail
    known = torch.cat([before, x, torch.zeros(2, 3, 5, 6)], dim=1)
    kernel = torch.cat([conv.weight, conv.weight[..., :-1].flip(-1)], dim=-1)
    rows = F.conv1d(known.permute(0, 2, 3, 1).flatten(0, 1), kernel, groups=6)
    want = rows.unflatten(0, (2, 5)).permute(0, 3, 1, 2)
    found, left = conv(x, tail=tail)
    assert worst(found, want) < ATOL
    assert torch.equal(left, known[:, frames : frames + 3])
    conv.prepare()
    assert torch.equal(conv(x, tail=tail)[0], found)


@pytest.mark.parametrize("frames", [1, 2, 3, 5])
@pytest.mark.parametrize("seeded", [False, True])
def test_memory_step_by_step(frames: int, *, seeded: bool) -> None:
    updates = Frames(0.1 * drawn(frames, 6, 8, 8), drawn(frames, 6, 8, 8, seed=1))
    decay = torch.rand(frames, 6, generator=torch.Generator().manual_seed(2))
    past = drawn(6, 8, 8, seed=3) if seeded else None

    def step(memory: Tensor, t: int) -> Tensor:
        kept = memory - memory @ updates.overlap[t].double()
        return decay[t, :, None, None] * kept + updates.added[t]

    memory = torch.zeros(6, 8, 8, dtype=torch.float64) if past is None else past.double()
    want = []
    for t in range(frames):
        memory = step(memory, t)
        want.append(memory)
    read, carried = run_memory(updates, decay, past=past)
    assert worst(carried, memory.float()) < ATOL
    memory = torch.zeros_like(memory)
    for t in range(frames - 1, 0, -1):
        memory = step(memory, t)
        want[t - 1] = want[t - 1] + memory
    assert worst(read, torch.stack(want).float()) < ATOL


@pytest.mark.parametrize("grid", [TokenGrid(3, 2, 4), TokenGrid(3, 1, 1), TokenGrid(1, 2, 2)])
def test_frames_first_and_back(grid: TokenGrid) -> None:
    x, y = drawn(2, grid.tokens, 3, 8), drawn(2, grid.tokens, 3, 8, seed=1)
    found = by_frame([x, y], grid, heads=3)
    assert found.shape == (grid.frames, 2 * 2 * 3, grid.per_frame, 8)
    parts = found.view(grid.frames, 2, 2, 3, grid.per_frame, 8)
    for part, want in zip(parts.unbind(1), (x, y), strict=True):
        assert torch.equal(by_token(part, want.flatten(2)), want.flatten(2))
        assert torch.equal(part[0, 1, 2, 0], want[1, 0, 2])
    beta = drawn(2, grid.frames, grid.per_frame, 3)
    rows = by_frame([beta], grid, heads=3).view(grid.frames, 2, 3, grid.per_frame)
    assert torch.equal(rows, beta.permute(1, 0, 3, 2))


def test_temporal_product_is_a_convolution() -> None:
    layer = ConvFeedForward(cases.layer_config()).requires_grad_(False)
    y, tail = drawn(2, 3, 6, 48), drawn(2, 1, 6, 48, seed=1)
    known = torch.cat([tail, y, torch.zeros_like(tail)], dim=1)
    want = y + layer.t_conv(known.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert worst(layer._temporal(y, tail), want) < ATOL
    layer.prepare()
    assert worst(layer._temporal(y, tail), want) < ATOL
    rows = layer.t_conv.weight.permute(0, 2, 3, 1)
    assert rows.is_contiguous()  # so that `flatten` is a view


def test_feed_forward_with_and_without_gradients() -> None:
    """In place without gradients; the input stays as it is."""
    layer, grid = ConvFeedForward(cases.layer_config()), TokenGrid(3, 2, 3)
    x = drawn(1, grid.tokens, 48)
    kept = x.clone()
    want = layer(x, grid, tail=None)[0].detach()
    layer.requires_grad_(False)
    assert torch.equal(layer(x, grid, tail=None)[0], want)
    assert torch.equal(x, kept)


@torch.no_grad()
def test_padding_left_out_counts_as_padding_hidden() -> None:
    t = cases.case("case_a").tensors
    model = cases.tiny_model()
    mask = t["caption_mask"].clone()
    mask[:, -2:] = 0
    text = model.embed_text(t["caption"], mask)
    hidden = model.embed_text(t["caption"].repeat(2, 1, 1, 1), mask.repeat(2, 1))
    assert text.bias is None
    assert hidden.bias is not None
    assert hidden.bias.min() == MASKED
    assert text.blocks[0].k.shape[2] == int(mask.sum()) < hidden.blocks[0].k.shape[2]
    x = drawn(1, 5, model.config.width)
    for block, a, b in zip(model._blocks(), text.blocks, hidden.blocks, strict=True):
        found = block.cross_attn(x, a, bias=None)
        want = block.cross_attn(x.repeat(2, 1, 1), b, bias=hidden.bias)
        assert worst(found, want[:1]) < ATOL


@torch.no_grad()
def test_an_empty_mask_keeps_its_bias() -> None:
    t = cases.case("case_a").tensors
    text = cases.tiny_model().embed_text(t["caption"], torch.zeros_like(t["caption_mask"]))
    assert text.bias is not None


@torch.no_grad()
def test_residuals_made_in_advance_are_bit_equal() -> None:
    t = cases.case("case_a").tensors
    model, grid = cases.tiny_model(), TokenGrid(4, 3, 4)
    context = model.chunk_context(
        grid,
        start=0,
        raymap=t["camera_conditions"][:, :4],
        plucker=t["chunk_plucker"][:, :, :4],
    )
    assert len(context.residuals) == model.config.depth
    text = model.embed_text(t["caption"], t["caption_mask"])
    x, times = t["noise"][:, :, :4], torch.full((1, 4), 500.0)
    want = model(x, times, text, context._replace(residuals=())).velocity
    assert torch.equal(model(x, times, text, context).velocity, want)


def test_a_bidirectional_model_makes_no_residuals_in_advance() -> None:
    config = Stage1Config(
        latent_channels=4, width=16, depth=1, head_size=8, cross_heads=2, text_width=8,
        plucker_channels=6, chunk_size=None,
    )  # fmt: skip
    model = Stage1Model(config).requires_grad_(False)
    context = model.chunk_context(TokenGrid(2, 1, 1), start=0, plucker=drawn(1, 6, 2, 1, 1))
    assert context.plucker is not None
    assert context.residuals == ()


@torch.no_grad()
def test_kept_vectors_are_bit_equal() -> None:
    run, model = cases.case("case_a"), cases.tiny_model()
    kept = cases.stream(model, run)
    anew = cases.stream(model, run)
    for a in kept:
        anew._vectors.clear()
        assert torch.equal(a, next(anew))
    # One entry a pass of the first chunk, which holds the image and is longer; one of the others.
    assert len(kept._vectors) == 2 * len(run.steps)
