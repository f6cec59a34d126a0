"""The refiner against diffusers 0.42.1, on weights that diffusers wrote.

Both draw their noise from one CPU generator seeded alike; the clips slide the window several times
and end in a shorter block. diffusers is imported inside the tests, because it takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sanawm.notes import Notes
from sanawm.refiner.noise import SeededNoise
from sanawm.refiner.stream import RefinerStream
from sanawm.refiner.weights import load_refiner
from sanawm.schedules import RELEASED_SIGMAS
from sanawm.shapes import LatentShape, Window
from sanawm.text.encode import encode_prompt
from tests.text.tiny_gemma import make_tiny_gemma

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-5
H, W = 3, 4


class Setup(NamedTuple):
    """One comparison: architecture, window, clip length, batch, frame rate, masked words."""

    model: str
    window: Window
    frames: int
    batch: int = 1
    fps: float = 16.0
    masked: int = 0
    sigmas: tuple[float, ...] = RELEASED_SIGMAS


SETUPS = {
    # The released settings: 8 blocks, the last of 2 frames; saturated from block 4 on.
    "release": Setup("release-like", Window(1, 3, 11), 24),
    "gated": Setup("gated", Window(1, 3, 11), 24, fps=24.0),
    "interleaved": Setup(
        "interleaved-gated-norms", Window(2, 2, 7), 19, batch=2, fps=24.0, masked=3
    ),
    "tight": Setup("release-like", Window(1, 3, 4), 24, masked=2),
    "one step": Setup("gated", Window(1, 1, 5), 9, sigmas=(0.7, 0.0)),
}


def clip(setup: Setup) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(setup.batch, 16, setup.frames, H, W, generator=generator)


def ours(
    root: Path,
    setup: Setup,
    clean: Tensor,
    embeds: Tensor,
    mask: Tensor | None,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Refine a clip through the stream, block by block."""
    model = load_refiner(root, device="cpu", dtype=dtype, notes=Notes())
    window = setup.window
    stream = RefinerStream(
        model,
        model.prepare_text(embeds, mask),
        shape=LatentShape(*clean.shape),
        fps=setup.fps,
        window=window,
        sigmas=setup.sigmas,
        noise=SeededNoise(seed),
    )
    clean = clean.to(dtype)
    stream.start(clean[:, :, : window.sink])
    blocks = [
        stream.refine(clean[:, :, s.start : s.stop], start=s.start).latents
        for s in window.blocks(setup.frames)
    ]
    assert len(blocks) >= 7
    assert stream.cache.history_frames == window.history_max  # the window is full
    return torch.cat((clean[:, :, : window.sink], *blocks), dim=2)


def theirs(
    pipeline: Any, setup: Setup, clean: Tensor, text: str = "", *, seed: int | None
) -> Tensor:
    """Refine a clip through the public pipeline; without a seed it takes its default, 42."""
    return pipeline(
        clean,
        text,
        fps=setup.fps,
        sink_size=setup.window.sink,
        block_size=setup.window.block,
        kv_max_frames=setup.window.kv_max,
        sigmas=setup.sigmas,
        generator=None if seed is None else torch.Generator().manual_seed(seed),
        output_type="latent",
    )


def prompt(setup: Setup) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(12)
    embeds = torch.randn(setup.batch, 8, 32, generator=generator)
    mask = torch.ones(setup.batch, 8, dtype=torch.int64)
    mask[0, 8 - setup.masked :] = 0
    return embeds, mask


def compare(
    root: Path, setup: Setup, *, seed: int | None = 3, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return our latents and the public pipeline's, for embeddings given to both."""
    from .oracle_cases import give_prompt, public_pipeline, write_transformer

    write_transformer(root, setup.model)
    clean, (embeds, mask) = clip(setup), prompt(setup)
    pipeline = public_pipeline(root, dtype=dtype)
    give_prompt(pipeline, embeds, mask)
    expected = theirs(pipeline, setup, clean, seed=seed)
    found = ours(root, setup, clean, embeds, mask, seed=42 if seed is None else seed, dtype=dtype)
    sink = setup.window.sink
    assert torch.equal(found[:, :, :sink], expected[:, :, :sink])
    assert (expected - clean)[:, :, sink:].abs().max() > 0.5  # something happened
    return found, expected


def largest(found: Tensor, expected: Tensor) -> float:
    error = float((found - expected).abs().max())
    print(f"error {error:.2e}, size {float(expected.std()):.2f}")
    return error


@pytest.mark.parametrize("name", list(SETUPS))
def test_latents_equal_the_public_pipeline(name: str, tmp_path: Path) -> None:
    assert largest(*compare(tmp_path, SETUPS[name])) <= TOLERANCE


def test_the_default_seed_is_the_public_one(tmp_path: Path) -> None:
    assert largest(*compare(tmp_path, SETUPS["release"], seed=None)) <= TOLERANCE


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    """Two correct bfloat16 implementations differ by 0.3 to 0.5 % (refiner.md, section 14)."""
    found, expected = compare(tmp_path, SETUPS["release"], dtype=torch.bfloat16)
    assert found.dtype == expected.dtype == torch.bfloat16
    wide = expected.float()
    error = (found.float() - wide).square().mean().sqrt() / wide.square().mean().sqrt()
    print(f"relative {float(error):.2e}")
    assert error <= 1e-2


def test_the_comparison_sees_a_sink_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Window, "sink_position_at", lambda self, start: 0)
    assert largest(*compare(tmp_path, SETUPS["release"])) >= 100 * TOLERANCE


def test_from_prompt_to_refined_latents(tmp_path: Path) -> None:
    """The whole path: the same text, tokenizer, Gemma, connectors and refiner on both sides."""
    from .oracle_cases import (
        TEXT_LENGTH,
        public_pipeline,
        public_text,
        write_connectors,
        write_transformer,
    )

    setup, text = SETUPS["release"], " a red tower on green ground under a blue sky\n"
    gemma = make_tiny_gemma(tmp_path / "gemma", seed=3, layers=3, dtype=torch.float32)
    write_transformer(tmp_path, setup.model)
    write_connectors(tmp_path, states=4)
    pipeline = public_pipeline(tmp_path, **public_text(tmp_path, gemma))
    clean = clip(setup)
    expected = theirs(pipeline, setup, clean, text, seed=3)
    prepared = encode_prompt(
        text,
        text_encoder=gemma,
        connectors=tmp_path / "connectors",
        max_length=TEXT_LENGTH,
        device="cpu",
        dtype=torch.float32,
        notes=Notes(),
    )
    found = ours(tmp_path, setup, clean, prepared.embeds, prepared.mask, seed=3)
    assert largest(found, expected) <= TOLERANCE
    other = theirs(pipeline, setup, clean, "a wooden fence in fog", seed=3)
    assert largest(found, other) >= 1000 * TOLERANCE  # the prompt counts
