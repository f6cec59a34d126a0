"""The refiner against tensors of the reference implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sanawm.ops.rope import RopeTable, apply_rope
from sanawm.refiner.config import RefinerConfig
from sanawm.refiner.model import RefinerModel, timestep_sinusoid
from sanawm.refiner.noise import GivenNoise, SeededNoise
from sanawm.refiner.positions import RopeBuilder
from sanawm.refiner.sampler import to_tokens
from sanawm.refiner.single_shot import refine_single_shot
from sanawm.shapes import BlockSpan

from .golden_cases import (
    CASES,
    CHUNK_CASES,
    FOLDER,
    golden_model,
    make_stream,
    run_case,
    tensors,
    token_major,
)

FLOAT_CASES = [n for n in CHUNK_CASES if CASES["chunk_cases"][n].get("dtype") != "bfloat16"]
LATENTS = 2e-5
ROPE = 1e-6


def close(found: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=atol)


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_chunk_case_matches_the_reference(name: str) -> None:
    case = CASES["chunk_cases"][name]
    run, data = run_case(name)
    close(run.latents, data["latents_out"], LATENTS)
    assert torch.equal(run.latents[:, :, : case["sink"]], data["latents_in"][:, :, : case["sink"]])
    for b in range(case["n_blocks"]):
        assert run.blocks[b].sink_position == case["sink_rope_offset"][b]
        for s in range(3):
            close(run.x0[b, s], data[f"x0.b{b}.s{s}"], LATENTS)
            close(run.x_next[b, s], data[f"x_next.b{b}.s{s}"], LATENTS)
    compared = 0
    for key, expected in data.items():
        kind, *rest = key.split(".")
        if kind not in ("post_k", "post_v", "hist_k", "hist_v"):
            continue
        b, layer = int(rest[0][1:]), int(rest[1][1:])
        table = run.post if kind.startswith("post") else run.history
        found = table[b, layer][kind.endswith("v")]
        # A block longer than the history keeps only its last frames.
        close(found, expected[:, expected.shape[1] - found.shape[1] :], LATENTS)
        compared += 1
    assert compared >= 2 * 2 * case["n_blocks"]


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_history_lengths_and_sink_capture(name: str) -> None:
    case = CASES["chunk_cases"][name]
    data = tensors(name)
    stream = make_stream(name, data)
    sink, clean = case["sink"], data["latents_in"]
    if sink:
        stream.start(clean[:, :, :sink])
        for layer in range(stream.cache.layers):
            close(token_major(stream.cache._sink_keys[layer]), data[f"sink_k_pre.l{layer}"], 2e-5)
            tokens = sink * stream.cache.tokens_per_frame
            values = stream.cache._values[layer][:, :, :tokens]
            close(token_major(values), data[f"sink_v.l{layer}"], LATENTS)
    frames = []
    for span in stream.window.blocks(clean.shape[2]):
        stream.refine(clean[:, :, span.start : span.stop])
        frames.append(stream.cache.history_frames)
    # The last block is not captured, because nothing reads its history.
    assert frames[:-1] == case["history_frames_after_block"][:-1]
    assert frames[-1] == frames[-2]


def test_bfloat16_case() -> None:
    run, data = run_case("bf16_canonical")
    found, expected = run.latents.float(), data["latents_out"].float()
    assert run.latents.dtype == torch.bfloat16
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error <= 1e-2


@pytest.mark.parametrize("name", list(CASES["single_shot_cases"]))
def test_single_shot_case(name: str) -> None:
    case = CASES["single_shot_cases"][name]
    data = tensors(name)
    model = golden_model(case["model"])
    steps: dict[int, tuple[Tensor, Tensor]] = {}
    found = refine_single_shot(
        model,
        model.prepare_text(data["prompt_embeds"], data["prompt_mask"]),
        data["latents_in"],
        sink=case["sink"],
        fps=case["fps"],
        sigmas=case["sigmas"],
        noise=GivenNoise.of(data["noise"], sink=case["sink"]),
        observe=lambda step, x0, x: steps.update({step: (x0, x)}),
    )
    close(found, data["latents_out"], LATENTS)
    for s in range(3):
        close(steps[s][0], data[f"x0.s{s}"], LATENTS)
        close(steps[s][1], to_tokens(data[f"x_next.s{s}"]), LATENTS)


@pytest.mark.parametrize("name", list(CASES["models"]))
def test_plain_forward_stage_by_stage(name: str) -> None:
    data = load_file(FOLDER / f"forward_{name}.safetensors")
    model = golden_model(name)
    config = model.config
    timestep = data["timestep"]
    # The machine's exp kernel decides the last bit of a frequency, which at t near 900 is 3e-5.
    close(timestep_sinusoid(timestep).flatten(0, -2), data["sinusoid"].reshape(-1, 256), 5e-5)
    modulation = model.modulation(timestep)
    close(modulation.embedded, data["embedded_timestep"].reshape(modulation.embedded.shape), 2e-5)
    close(
        modulation.rows.flatten(-2), data["temb"].reshape(modulation.rows.flatten(-2).shape), 2e-5
    )
    projected = model.caption_projection(data["prompt_embeds"])
    close(projected, data["caption_projected"].reshape(projected.shape), LATENTS)
    rope = RopeBuilder(config, height=2, width=2, fps=16.0).build([3, 4])
    close_table(rope, data["rope_cos"], data["rope_sin"], config)
    text = model.prepare_text(data["prompt_embeds"], data["prompt_mask"])
    x = model.proj_in(data["tokens"])
    close(x, data["proj_in_out"], LATENTS)
    for i, block in enumerate(model.transformer_blocks):
        x = block(x, text, modulation, rope)
        close(x, data[f"hidden_after_block{i}"], LATENTS)
    close(model(data["tokens"], text, modulation, rope), data["velocity"], LATENTS)


def close_table(table: RopeTable, cos: Tensor, sin: Tensor, config: RefinerConfig) -> None:
    """Compare with a golden table: (1, N, S, K/2) for split, (1, S, D) with pairs repeated."""
    for found, expected in ((table.cos, cos), (table.sin, sin)):
        if config.rope_type == "interleaved":
            paired = expected[..., ::2]
            assert torch.equal(paired, expected[..., 1::2])
            expected = paired.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2)
        close(found, expected[0], ROPE)


@pytest.mark.parametrize("entry", [k for k in CASES["rope"] if k != "release"])
def test_rope_tables(entry: str) -> None:
    spec = CASES["rope"][entry]
    data = load_file(FOLDER / "rope_tables.safetensors")
    config = golden_model(entry.split(".")[0]).config
    builder = RopeBuilder(config, height=spec["height"], width=spec["width"], fps=spec["fps"])
    table = builder.build(spec["frame_positions"])
    close_table(table, data[f"{entry}.cos"], data[f"{entry}.sin"], config)


def test_rope_table_of_the_release() -> None:
    spec = CASES["rope"]["release"]
    data = load_file(FOLDER / "rope_tables.safetensors")
    builder = RopeBuilder(
        RefinerConfig.released(), height=spec["height"], width=spec["width"], fps=spec["fps"]
    )
    table = builder.build(spec["frame_positions"])
    kept = spec["token_indices"]
    for found, expected in ((table.cos, data["release.cos"]), (table.sin, data["release.sin"])):
        close(found[:, kept], expected.reshape(found[:, kept].shape), ROPE)


def test_token_order() -> None:
    data = load_file(FOLDER / "text_packing.safetensors")
    assert torch.equal(to_tokens(data["latent_5d"]), data["latent_tokens"])


def test_seeded_noise_is_one_generator_drawn_block_by_block() -> None:
    data = load_file(FOLDER / "text_packing.safetensors")
    noise = SeededNoise(42)
    for number, name in enumerate(("randn_seed42_a", "randn_seed42_b")):
        expected = data[name]
        span = BlockSpan(number, 1 + 3 * number, 1 + 3 * number + expected.shape[2])
        assert torch.equal(noise.draw(span, tuple(expected.shape)), expected)


def test_interleaved_and_split_are_not_the_same_rotation() -> None:
    model: RefinerModel = golden_model("inter_gated")
    rope = RopeBuilder(model.config, height=2, width=2, fps=16.0).build([3, 4])
    x = torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    kinds: tuple[Any, Any] = ("split", "interleaved")
    assert (apply_rope(x, rope, kinds[0]) - apply_rope(x, rope, kinds[1])).abs().max() > 0.1
