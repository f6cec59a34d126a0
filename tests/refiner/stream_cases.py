"""Small streams with seeded noise: a clip, its stream, and whole runs to compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sanawm.refiner.noise import Noise, SeededNoise
from sanawm.refiner.stream import RefinerStream
from sanawm.schedules import RELEASED_SIGMAS
from sanawm.shapes import BlockSpan, LatentShape, Window

from .golden_cases import golden_model

CANONICAL = Window(sink=1, block=3, kv_max=11)
#: Saturated from block 2 on, so that short clips slide the window too.
SMALL = Window(sink=1, block=3, kv_max=6)
H, W = 2, 3


def clip(
    frames: int, *, batch: int = 1, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return random clean latents; a longer clip starts with the frames of a shorter one."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(batch, 8, 1, H, W, generator=generator) for _ in range(frames)]
    return torch.cat(parts, dim=2).to(dtype)


def make(
    frames: int,
    *,
    window: Window = SMALL,
    batch: int = 1,
    model: str = "split",
    dtype: torch.dtype = torch.float32,
    noise: Noise | None = None,
    **changes: Any,
) -> RefinerStream:
    """Return a stream over `frames` latent frames of a golden model."""
    refiner = golden_model(model, dtype)
    generator = torch.Generator().manual_seed(5)
    prompt = torch.randn(1, 5, refiner.config.caption_channels, generator=generator)
    settings: dict[str, Any] = {
        "shape": LatentShape(batch, 8, frames, H, W),
        "fps": 16.0,
        "window": window,
        "sigmas": RELEASED_SIGMAS,
        "noise": noise or SeededNoise(42),
    }
    return RefinerStream(refiner, refiner.prepare_text(prompt), **(settings | changes))


def spans(stream: RefinerStream, frames: int) -> Iterator[BlockSpan]:
    """Yield the blocks that are left of a clip."""
    for span in stream.window.blocks(frames):
        if span.start >= stream.next_frame:
            yield span


def run(stream: RefinerStream, clean: Tensor) -> list[Tensor]:
    """Start the stream if it has not run yet and return the refined blocks that are left."""
    if stream.window.sink and not stream.cache.sink_ready:
        stream.start(clean[:, :, : stream.window.sink])
    return [
        stream.refine(clean[:, :, s.start : s.stop], start=s.start).latents
        for s in spans(stream, clean.shape[2])
    ]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    """Compare two lists of blocks bit for bit."""
    assert [b.shape for b in found] == [b.shape for b in expected]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def flat(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a nested state with one level of names."""
    copied: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            copied |= {f"{key}.{k}": v for k, v in flat(value).items()}
        else:
            copied[key] = value.clone() if isinstance(value, Tensor) else value
    return copied


def assert_same_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare two flattened states bit for bit."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, Tensor):
            assert torch.equal(found[key], value), key
        else:
            assert found[key] == value, key
