"""Each layer against the reference implementation, chunk by chunk, with its carried state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from sanawm.stage1.branches import QKV, ChunkContext, TwoBranchAttention
from sanawm.stage1.embed import MASKED, CrossAttention, FinalLayer, TimeEmbedder, timestep_sinusoid
from sanawm.stage1.ffn import ConvFeedForward
from sanawm.stage1.gdn import GDNAttention, GDNState, key_growth
from sanawm.stage1.positions import TokenGrid, rope_tables
from sanawm.stage1.rays import RayFrames, ray_frames
from sanawm.stage1.softmax import ChunkKV, SoftmaxAttention

from . import cases
from .cases import LAYER_ATOL, LAYER_CHUNKS, LAYER_HEIGHT, LAYER_WIDTH, worst

UNUSED_BY_SOFTMAX = {
    "A_log", "dt_bias", "beta_proj.weight", "beta_proj.bias", "gate_proj.weight", "gate_proj.bias",
}  # fmt: skip


def grid_of(frames: int) -> TokenGrid:
    return TokenGrid(frames, LAYER_HEIGHT, LAYER_WIDTH)


def layer_chunks() -> Iterator[tuple[int, int, TokenGrid, slice]]:
    """Yield number, first frame, grid and token slice of each chunk of the layer fixtures."""
    start = 0
    for number, frames in enumerate(LAYER_CHUNKS):
        grid = grid_of(frames)
        first = start * grid.per_frame
        yield number, start, grid, slice(first, first + grid.tokens)
        start += frames


def fill(module: nn.Module, data: dict[str, Tensor], *, prefix: str, unused: set[str]) -> None:
    """Load the tensors below `prefix`; exactly `unused` may be left over."""
    weights = {k[len(prefix) :]: v for k, v in data.items() if k.startswith(prefix)}
    result = module.load_state_dict(weights, strict=False)
    assert result.missing_keys == []
    assert set(result.unexpected_keys) == unused
    module.requires_grad_(False)


def context_of(data: dict[str, Tensor], start: int, grid: TokenGrid) -> ChunkContext:
    tables = rope_tables(grid, start=start, head_size=16, device="cpu")
    raymap = data["camera_conditions"][:, start : start + grid.frames]
    return ChunkContext(grid, tables.main, ray_frames(raymap, grid, rope=tables.camera), None)


class Spy:
    """Record what the two branches hand to `combine`, and what the ray transform returns."""

    def __init__(self, attention: TwoBranchAttention, monkeypatch: pytest.MonkeyPatch) -> None:
        combine, turn = attention.combine, attention.turn

        def spy_combine(gate: Tensor, main: Tensor, camera: Tensor | None) -> Tensor:
            self.main, self.camera = main, camera
            return combine(gate, main, camera)

        def spy_turn(qkv: QKV, rays: RayFrames) -> QKV:
            self.plain, self.turned = qkv, turn(qkv, rays)
            return self.turned

        monkeypatch.setattr(attention, "combine", spy_combine)
        monkeypatch.setattr(attention, "turn", spy_turn)


def test_ray_frames() -> None:
    data = cases.layer("ucpe")
    grid = grid_of(10)
    tables = rope_tables(grid, start=0, head_size=16, device="cpu")
    frames = ray_frames(data["camera_conditions"], grid, rope=tables.camera)
    assert worst(frames.ray_from_world, data["ray_from_world"].flatten(1, 3)) < LAYER_ATOL
    assert worst(frames.world_from_ray, data["world_from_ray"]) < LAYER_ATOL


@pytest.mark.parametrize(
    ("name", "head", "frames"), [("rope{}_4_7", 16, 3), ("rope112{}_4_6", 112, 2)]
)
def test_rotary_tables(name: str, head: int, frames: int) -> None:
    data = cases.layer("ucpe")
    tables = rope_tables(grid_of(frames), start=4, head_size=head, device="cpu")
    for part, table in (("", tables.main), ("_cam", tables.camera)):
        stem = name.format(part)
        assert worst(table.real[None, :, 0], data[f"{stem}.real"][0]) < 1e-6
        assert worst(table.imag[None, :, 0], data[f"{stem}.imag"][0]) < 1e-6


@pytest.mark.parametrize("use", ["q", "kv", "o"])
def test_ray_transform(use: str) -> None:
    data = cases.layer("ucpe")
    rays = context_of(
        {k: v[:, :7] for k, v in data.items() if k == "camera_conditions"}, 4, grid_of(3)
    ).rays
    assert rays is not None
    turn = {"q": rays.turn_query, "kv": rays.turn_key, "o": rays.turn_output}[use]
    found = turn(data["feat"].transpose(1, 2)).transpose(1, 2)
    assert worst(found, data[f"feat.apply_{use}"]) < LAYER_ATOL


def test_gdn_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cases.layer("attn_gdn")
    attention = GDNAttention(cases.layer_config())
    fill(attention, data, prefix="w.", unused={"recall_gate"})
    spy = Spy(attention, monkeypatch)
    past = GDNState()
    for number, start, grid, tokens in layer_chunks():
        u = data["x"][:, tokens]
        out, past = attention(u, context_of(data, start, grid), past=past)
        want = {k.removeprefix(f"chunk{number}."): v for k, v in data.items()}
        beta, decay = attention.gates(attention.beta_proj(u), attention.gate_proj(u), grid)
        beta, decay = beta.permute(0, 3, 1, 2), decay.T[None]  # (B, N, T, HW), (B, N, T)
        growth = key_growth(spy.turned.k, spy.plain.k).transpose(1, 2)[:, :, None]
        assert spy.camera is not None
        assert past.memory is not None
        assert past.norm is not None
        assert past.key_tail is not None
        assert past.camera_memory is not None
        assert past.camera_key_tail is not None
        pairs = {
            "out": out, "main_raw": spy.main, "cam_raw": spy.camera, "beta": beta, "decay": decay,
            "cam_q": spy.turned.q.permute(0, 2, 3, 1), "cam_k": spy.turned.k.permute(0, 2, 3, 1),
            "cam_v": spy.turned.v.permute(0, 2, 3, 1), "inflation_sq": growth,
            "cache.S_kv": past.memory, "cache.cam_S_kv": past.camera_memory,
            "cache.S_z": past.norm.mT, "cache.conv_tail": past.key_tail[0].transpose(0, 1),
            "cache.cam_conv_tail": past.camera_key_tail[0].transpose(0, 1),
        }  # fmt: skip
        for name, found in pairs.items():
            assert worst(found, want[name]) < LAYER_ATOL, (number, name)


def test_softmax_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cases.layer("attn_softmax")
    attention = SoftmaxAttention(cases.layer_config())
    fill(attention, data, prefix="w.", unused={"recall_gate", *UNUSED_BY_SOFTMAX})
    spy = Spy(attention, monkeypatch)
    past: list[ChunkKV] = []
    for number, start, grid, tokens in layer_chunks():
        u = data["x"][:, tokens]
        out, written = attention(u, context_of(data, start, grid), past=past)
        past.append(written)
        assert spy.camera is not None
        assert written.camera_k is not None
        assert written.camera_v is not None
        pairs = {
            "out": out, "main_raw": spy.main, "cam_raw": spy.camera, "cache.k": written.k,
            "cache.v": written.v, "cache.cam_k": written.camera_k, "cache.cam_v": written.camera_v,
        }  # fmt: skip
        for name, found in pairs.items():
            assert worst(found, data[f"chunk{number}.{name}"]) < LAYER_ATOL, (number, name)


def feed_forward() -> tuple[ConvFeedForward, dict[str, Tensor]]:
    """Return the fixture's layer: 24 channels, hidden 36 (a ratio of one and a half)."""
    data = cases.layer("ffn")
    config = cases.layer_config()
    layer = ConvFeedForward(config)
    layer.inverted_conv.conv = nn.Conv2d(24, 72, 1)
    layer.depth_conv.conv = nn.Conv2d(72, 72, 3, padding=1, groups=72)
    layer.point_conv.conv = nn.Conv2d(36, 24, 1, bias=False)
    layer.t_conv = nn.Conv2d(24, 24, (3, 1), bias=False)
    fill(layer, data, prefix="w.", unused=set())
    return layer, data


def test_feed_forward_in_chunks() -> None:
    layer, data = feed_forward()
    tail: Tensor | None = None
    for number, _, grid, tokens in layer_chunks():
        out, tail = layer(data["x"][:, tokens], grid, tail=tail)
        stored = data[f"chunk{number}.cache.tconv_tail"]  # (B, C, 1, HW)
        assert worst(out, data[f"chunk{number}.out"]) < LAYER_ATOL
        assert worst(tail.permute(0, 3, 1, 2), stored) < LAYER_ATOL


def test_feed_forward_in_one_call() -> None:
    layer, data = feed_forward()
    out, _ = layer(data["x"], grid_of(10), tail=None)
    assert worst(out, data["full_bidirectional_out"]) < LAYER_ATOL


def test_timestep_embedding() -> None:
    data = cases.layer("misc")
    # Angles reach 1000 rad, where float32 is spaced 6e-5 rad apart: `exp` differs by machine.
    assert worst(timestep_sinusoid(data["timesteps"]), data["sinusoid"]) < 1e-4
    embedder = TimeEmbedder(48)
    fill(embedder, data, prefix="t_embedder.", unused=set())
    assert worst(embedder(data["timesteps"]), data["t_emb"]) < LAYER_ATOL


def test_timesteps_lose_their_fraction() -> None:
    times = torch.tensor([87.7, 727.0, 999.99])
    assert torch.equal(timestep_sinusoid(times), timestep_sinusoid(times.floor()))


def test_cross_attention() -> None:
    data = cases.layer("misc")
    attention = CrossAttention(cases.layer_config())
    fill(attention, data, prefix="cross_attn.", unused=set())
    bias = ((1 - data["ca.mask"]) * MASKED)[:, None, None]
    out = attention(data["ca.x"], attention.text_kv(data["ca.y"][:, 0]), bias=bias)
    assert worst(out, data["ca.out"]) < LAYER_ATOL


def test_final_layer() -> None:
    data = cases.layer("misc")
    final = FinalLayer(cases.layer_config())
    fill(final, data, prefix="final_layer.", unused=set())
    out = final(data["fl.x"].unflatten(1, (3, 4)), data["fl.t"][:, 0])
    assert worst(out.flatten(1, 2), data["fl.out"]) < LAYER_ATOL


def test_a_token_without_a_direction_keeps_its_axes() -> None:
    data = cases.layer("ucpe")
    raymap = data["camera_conditions"][:, :3].clone()
    raymap[:, 1, 16] = float("nan")
    grid = grid_of(3)
    tables = rope_tables(grid, start=0, head_size=16, device="cpu")
    frames = ray_frames(raymap, grid, rope=tables.camera)
    broken = slice(grid.per_frame, 2 * grid.per_frame)
    identity = torch.eye(4).expand(1, grid.per_frame, 4, 4)
    assert torch.equal(frames.ray_from_world[:, broken], identity)
    assert torch.equal(frames.world_from_ray[:, broken], identity)
    assert frames.ray_from_world.isfinite().all()
