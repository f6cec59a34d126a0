"""Every classic mistake of a streaming refiner, made on purpose: the golden case must notice.

Each test changes one thing and looks at the error of `case_canonical` block by block. `size` is the
largest error over the clip that the table of symptoms (refiner.md, section 17; section 16 for the
reused keys) states, `first` the block in which it must become visible: blocks before it must still
match the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import sanawm.refiner.model as model_module
import sanawm.refiner.parts as parts_module
import sanawm.refiner.positions as positions
from sanawm.ops.rope import RopeTable
from sanawm.refiner.cache import CachePass, RefinerCache
from sanawm.refiner.model import Modulation, RefinerModel, TextContext
from sanawm.refiner.positions import RopeBuilder
from sanawm.shapes import Window

from . import golden_cases
from .golden_cases import CASES, run_case

TOLERANCE = 2e-5
Patch = pytest.MonkeyPatch


def errors(name: str) -> list[float]:
    """Return the largest error of each block's latents in a golden case."""
    run, data = run_case(name)
    case = CASES["chunk_cases"][name]
    difference = (run.latents - data["latents_out"]).abs()
    spans = Window(case["sink"], case["block"], case["kv_max"]).blocks(case["T"])
    return [float(difference[:, :, s.start : s.stop].max()) for s in spans]


def no_clamp(self: RopeBuilder, frames: Tensor) -> Tensor:
    scale = self.config.vae_scale_factors[0]
    low = (frames * scale + self.config.causal_offset - scale) / self.fps
    return (low + low + scale / self.fps) / 2


def no_offset(self: RopeBuilder, frames: Tensor) -> Tensor:
    scale = self.config.vae_scale_factors[0]
    return (frames * scale + (frames + 1) * scale) / self.fps / 2


def start_seconds(self: RopeBuilder, frames: Tensor) -> Tensor:
    scale = self.config.vae_scale_factors[0]
    return (frames * scale + self.config.causal_offset - scale).clamp(min=0) / self.fps


def patch_starts(patch: Patch) -> None:
    patch.setattr(RopeBuilder, "_seconds", start_seconds)
    patch.setattr(positions, "_midpoints", lambda count, scale: torch.arange(count).float() * scale)


def rope_table(*, axis_fast: bool, pad_front: bool) -> Callable[..., RopeTable]:
    """Return a table builder with a chosen order of the angles and side of the padding."""

    def build(fractions: Tensor, freqs: Tensor, *, heads: int, width: int) -> RopeTable:
        angles = (fractions * 2 - 1).unsqueeze(1) * freqs.view(1, -1, 1)  # (S, n, A)
        angles = (angles if axis_fast else angles.transpose(1, 2)).flatten(1)
        still = width // 2 - angles.shape[1]
        pad = (still, 0) if pad_front else (0, still)
        cos = torch.nn.functional.pad(angles.cos(), pad, value=1.0)
        sin = torch.nn.functional.pad(angles.sin(), pad)
        return RopeTable(*(t.unflatten(1, (heads, -1)).transpose(0, 1) for t in (cos, sin)))

    return build


def sines_first(timestep: Tensor) -> Tensor:
    return original_sinusoid(timestep).roll(128, dims=-1)


original_sinusoid = parts_module.timestep_sinusoid
original_modulate = model_module.modulate
original_build = RopeBuilder.build
original_write = RefinerCache._write
original_capture = RefinerModel.capture


def swapped_modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return original_modulate(x, scale, shift)


def raw_sink(self: RefinerCache, rope: RopeTable) -> None:
    tokens = self.window.sink * self.tokens_per_frame
    self._keys[:, :, :, :tokens] = self._sink_keys
    self._sink_placed = True


def relative_frames(self: RopeBuilder, frames: Sequence[int]) -> RopeTable:
    return original_build(self, range(len(frames)) if len(frames) > 1 else frames)


def write_without_prefix(
    self: RefinerCache, current: CachePass, layer: int, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    keys, values = original_write(self, current, layer, k, v, *rest)
    if current.capture == "post_rope":
        return keys[:, :, -v.shape[2] :], values[:, :, -v.shape[2] :]
    return keys, values


def history_first(
    self: RefinerCache, current: CachePass, layer: int, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    keys, values = original_write(self, current, layer, k, v, *rest)
    if current.capture == "pre_rope":
        return keys, values
    sink = self.window.sink * self.tokens_per_frame
    return keys.roll(-sink, dims=2), values.roll(-sink, dims=2)


def noisy_capture(
    self: RefinerModel,
    tokens: Tensor,
    text: TextContext,
    modulation: Modulation,
    rope: RopeTable,
    cache: CachePass,
) -> None:
    """Capture a block at the last sigma (0.421875) instead of 0."""
    if cache.capture == "post_rope":
        modulation = self.modulation(torch.tensor(421.875))
    original_capture(self, tokens, text, modulation, rope, cache)


def reused_keys(
    self: RefinerModel,
    tokens: Tensor,
    text: TextContext,
    modulation: Modulation,
    rope: RopeTable,
    cache: CachePass,
) -> None:
    """Keep what the last denoising pass left in the active slot instead of a clean pass."""
    if cache.capture == "post_rope":
        cache.written = [True] * len(cache.written)
    else:
        original_capture(self, tokens, text, modulation, rope, cache)


def longer_history(patch: Patch) -> None:
    patch.setattr(golden_cases, "Window", lambda sink, block, kv: Window(sink, block, kv + sink))


MISTAKES: dict[str, tuple[Callable[[Patch], None], float, int]] = {
    "frame 0 not clamped": (lambda p: p.setattr(RopeBuilder, "_seconds", no_clamp), 0.29, 0),
    "causal offset missing": (lambda p: p.setattr(RopeBuilder, "_seconds", no_offset), 0.29, 0),
    "patch start, not midpoint": (patch_starts, 0.28, 0),
    "RoPE axis-major": (
        lambda p: p.setattr(
            positions, "table_from_fractions", rope_table(axis_fast=False, pad_front=True)
        ),
        0.71,
        0,
    ),
    "RoPE padding at the end": (
        lambda p: p.setattr(
            positions, "table_from_fractions", rope_table(axis_fast=True, pad_front=False)
        ),
        0.61,
        0,
    ),
    "sines before cosines": (
        lambda p: p.setattr(parts_module, "timestep_sinusoid", sines_first),
        1.3,
        0,
    ),
    "shift and scale swapped": (
        lambda p: p.setattr(model_module, "modulate", swapped_modulate),
        1.6,
        0,
    ),
    "sink always at frame 0": (
        lambda p: p.setattr(Window, "sink_position_at", lambda self, start: 0),
        0.08,
        4,
    ),
    "sink one frame late": (
        lambda p: p.setattr(
            Window,
            "sink_position_at",
            lambda self, start: start - self.history_at(start) - self.sink + 1,
        ),
        0.18,
        0,
    ),
    "sink keys not rotated": (lambda p: p.setattr(RefinerCache, "place_sink", raw_sink), 0.30, 0),
    "RoPE frames relative to the block": (
        lambda p: p.setattr(RopeBuilder, "build", relative_frames),
        0.33,
        0,
    ),
    "capture without prefix": (
        lambda p: p.setattr(RefinerCache, "_write", write_without_prefix),
        0.05,
        1,
    ),
    "capture at the last sigma": (
        lambda p: p.setattr(RefinerModel, "capture", noisy_capture),
        0.47,
        1,
    ),
    "keys of the last step reused": (
        lambda p: p.setattr(RefinerModel, "capture", reused_keys),
        0.5,
        1,
    ),
    "history of kv_max frames": (longer_history, 0.15, 4),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_mistake_is_seen(mistake: str, monkeypatch: Patch) -> None:
    make, size, first = MISTAKES[mistake]
    make(monkeypatch)
    found = errors("canonical")
    assert max(found[:first], default=0.0) <= TOLERANCE
    assert found[first] >= 100 * TOLERANCE
    assert 0.7 * size <= max(found) <= 1.4 * size


def test_padding_at_the_end_is_invisible_where_nothing_is_padded(monkeypatch: Patch) -> None:
    MISTAKES["RoPE padding at the end"][0](monkeypatch)
    assert max(errors("gated48_ragged")) <= TOLERANCE
    assert max(errors("gated48_nosink")) <= TOLERANCE


def test_the_order_of_sink_and_history_is_no_mistake(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RefinerCache, "_write", history_first)
    assert max(errors("canonical")) <= TOLERANCE
    # The patch is alive: an order that mixes keys with other values would be seen.
    monkeypatch.setattr(
        RefinerCache,
        "_write",
        lambda *args: (history_first(*args)[0], original_write(*args)[1]),
    )
    assert max(errors("canonical")) >= 100 * TOLERANCE
