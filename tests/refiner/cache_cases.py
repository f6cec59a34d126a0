"""A small cache, random keys and values, and passes that write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sanawm.ops.rope import RopeTable
from sanawm.refiner.cache import CachePass, RefinerCache
from sanawm.shapes import BlockSpan, Window

B, N, K, TOKENS, M = 2, 2, 8, 3, 3
SINK = BlockSpan(-1, 0, 1)
CANONICAL = Window(sink=1, block=3, kv_max=11)


def make_cache(window: Window = CANONICAL, *, layers: int = M, **changes: Any) -> RefinerCache:
    sizes: dict[str, Any] = {
        "batch": B, "heads": N, "head_dim": K, "tokens_per_frame": TOKENS,
        "rope_kind": "split", "device": "cpu", "dtype": torch.float32,
    }  # fmt: skip
    return RefinerCache(layers=layers, window=window, **(sizes | changes))


def table(frames: list[int]) -> RopeTable:
    """Return a table in which every frame, token and head has other angles."""
    positions = torch.tensor(frames, dtype=torch.float32).repeat_interleave(TOKENS)
    tokens = torch.arange(TOKENS).repeat(len(frames)) * 0.1
    scales = torch.linspace(0.3, 1.7, N * K // 2).reshape(N, 1, K // 2)
    angles = (positions + tokens).unsqueeze(-1) * scales  # (N, S, K/2)
    return RopeTable(angles.cos(), angles.sin())


def random_kv(frames: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, B, N, frames * TOKENS, K, generator=generator)
    return k, v


def run_pass(
    cache: RefinerCache,
    span: BlockSpan,
    capture: str | None,
    *,
    skip: tuple[int, ...] = (),
    seed: int = 0,
) -> CachePass:
    """Write random K/V into every layer but those in `skip`."""
    running = cache.begin(span, capture=capture)
    rope = table(list(range(span.start, span.stop)))
    for layer in range(cache.layers):
        if layer not in skip:
            running.write(layer, *random_kv(span.frames, seed + layer), rope, "split")
    return running


def started(window: Window = CANONICAL, *, blocks: int = 0, layers: int = M) -> RefinerCache:
    """Return a cache with its sink and `blocks` blocks of history."""
    cache = make_cache(window, layers=layers)
    if window.sink:
        run_pass(cache, BlockSpan(-1, 0, window.sink), "pre_rope", seed=1)
        cache.commit("pre_rope")
    stop = window.sink + window.block * blocks
    for span in window.blocks(stop):
        place(cache, span)
        run_pass(cache, span, "post_rope", seed=100 * (span.number + 1))
        cache.commit("post_rope")
    return cache


def place(cache: RefinerCache, span: BlockSpan) -> None:
    first = span.start - cache.history_frames - cache.window.sink
    cache.place_sink(table(list(range(first, first + cache.window.sink))))


def snapshot(cache: RefinerCache) -> tuple[Any, ...]:
    """Copy everything that later blocks depend on."""
    state = cache.state_dict()
    return (
        state["history_frames"],
        state["sink_ready"],
        *(state[k].clone() for k in ("keys", "values", "sink_keys")),
    )


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert found[:2] == expected[:2]
    assert all(torch.equal(a, b) for a, b in zip(found[2:], expected[2:], strict=True))


def rotate(x: Tensor, rope: RopeTable) -> Tensor:
    """Rotate halves of each head: the definition, written out."""
    u, v = x[..., : K // 2], x[..., K // 2 :]
    return torch.cat((u * rope.cos - v * rope.sin, v * rope.cos + u * rope.sin), dim=-1)
