"""The bidirectional model: one chunk, no past, guidance; against upstream and diffusers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sanawm.errors import InputError
from sanawm.notes import Notes
from sanawm.stage1.bidirectional import denoise_clip, flow_timesteps
from sanawm.stage1.branches import ChunkContext
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.positions import TokenGrid
from sanawm.stage1.weights import load_stage1

from . import cases
from .cases import STREAM_ATOL, worst

#: Diffusers runs softmax attention in bf16 whatever the weights; its fixtures carry that noise.
BF16_ATOL = 3e-3
SAMPLER_ATOL = 2e-2


def context_of(model: Stage1Model, data: dict[str, Tensor]) -> ChunkContext:
    grid = TokenGrid(*data["noise"].shape[2:])
    return model.chunk_context(
        grid, start=0, raymap=data["camera_conditions"], plucker=data["chunk_plucker"]
    )


@torch.no_grad()
def velocity(model: Stage1Model) -> Tensor:
    data = cases.bidirectional()
    x = torch.cat([data["image_latent"], data["noise"][:, :, 1:]], dim=2)
    text = model.embed_text(data["caption"], data["caption_mask"])
    return model(x, data["forward.timestep"][:, 0], text, context_of(model, data)).velocity


def clamped_model() -> Stage1Model:
    return cases.tiny_model(config=replace(cases.tiny_config(), camera_clamp=True))


def test_forward_is_the_streaming_forward_with_one_chunk() -> None:
    data = cases.bidirectional()
    found = velocity(cases.tiny_model())
    assert worst(found, data["forward.velocity.noclamp_fp32"]) < STREAM_ATOL
    assert worst(found, data["forward.velocity.noclamp_sdpa_bf16"]) < BF16_ATOL


def test_forward_with_the_clamp_is_diffusers() -> None:
    data = cases.bidirectional()
    assert worst(velocity(clamped_model()), data["forward.velocity.clamped_sdpa_bf16"]) < BF16_ATOL


def test_the_clamp_matters() -> None:
    data = cases.bidirectional()
    assert worst(velocity(cases.tiny_model()), data["forward.velocity.clamped_sdpa_bf16"]) > 0.1


@torch.no_grad()
def run_four_steps(model: Stage1Model, *, steps: int = 4) -> Tensor:
    data = cases.bidirectional()
    return denoise_clip(
        model,
        data["noise"],
        first_latent=data["image_latent"],
        text=model.embed_text(data["caption"], data["caption_mask"]),
        negative=model.embed_text(data["negative"], data["negative_mask"]),
        context=context_of(model, data),
        timesteps=flow_timesteps(4, shift=9.8)[: steps + 1],
    )


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_guided_sampler(step: int) -> None:
    data = cases.bidirectional()
    found = run_four_steps(cases.tiny_model(), steps=step + 1)
    assert worst(found, data[f"sampler4.noclamp.step{step}"]) < SAMPLER_ATOL
    assert torch.equal(found[:, :, :1], data["image_latent"])


def test_guided_sampler_with_the_clamp() -> None:
    found = run_four_steps(clamped_model())
    assert worst(found, cases.bidirectional()["sampler4.clamped.final"]) < SAMPLER_ATOL


def test_timestep_tables() -> None:
    data = cases.bidirectional()
    table = flow_timesteps(60, shift=9.8)
    assert worst(table[:60], data["sampler60.timesteps"]) < 1e-3
    assert table[59].item() == pytest.approx(87.70, abs=5e-3)
    assert table[60] == 0
    assert worst(flow_timesteps(4, shift=9.8)[:4], data["sampler4.timesteps"]) < 1e-3
    assert worst(flow_timesteps(4, shift=9.8) / 1000, data["sampler4.sigmas"]) < 1e-6


def test_an_image_latent_of_another_size_is_refused() -> None:
    data = cases.bidirectional()
    model = cases.tiny_model()
    with pytest.raises(InputError, match=r"image latent is \(1, 8, 1, 3, 3\)"):
        denoise_clip(
            model,
            data["noise"],
            first_latent=data["image_latent"][..., :3],
            text=model.embed_text(data["caption"], data["caption_mask"]),
            negative=None,
            context=context_of(model, data),
            timesteps=flow_timesteps(4, shift=9.8),
        )


@pytest.mark.oracle
def test_diffusers_with_other_sizes(tmp_path: Path) -> None:
    """Random weights of another shape: names, loading and forward agree with diffusers 0.42.1."""
    from diffusers.models.transformers.transformer_sana_wm import (
        SanaWMTransformer3DModel,
    )

    torch.manual_seed(7)
    theirs = SanaWMTransformer3DModel(
        in_channels=6, num_layers=3, hidden_size=96, num_attention_heads=6, linear_head_dim=32,
        softmax_every_n=3, caption_channels=20, chunk_plucker_channels=24,
    ).eval()  # fmt: skip
    for name, tensor in theirs.state_dict().items():
        if name.endswith("norm.weight") or "norm_cam" in name:
            tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
        else:
            tensor.copy_(torch.randn_like(tensor) / max(tensor[0].numel(), 8) ** 0.5)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    config = Stage1Config(
        latent_channels=6, width=96, depth=3, head_size=32, cross_heads=6, text_width=20,
        text_length=9, softmax_every=3, plucker_channels=24, chunk_size=None, time_ratio=4,
        camera_clamp=True,
    )  # fmt: skip
    ours = load_stage1(tmp_path, config=config, device="cpu", dtype=torch.float32, notes=Notes())
    grid = TokenGrid(5, 2, 5)
    x, plucker = torch.randn(1, 6, *grid), torch.randn(1, 24, *grid)
    caption, mask = torch.randn(1, 1, 9, 20), torch.tensor([[1.0] * 6 + [0.0] * 3])
    times = torch.tensor([[0.0, 640.0, 640.0, 640.0, 640.0]])
    raymap = cases.bidirectional()["camera_conditions"][:, :5]
    with torch.no_grad():
        want = theirs(
            x, times[:, None], caption, mask=mask, camera_conditions=raymap, chunk_plucker=plucker
        ).sample
        text = ours.embed_text(caption, mask)
        context = ours.chunk_context(grid, start=0, raymap=raymap, plucker=plucker)
        found = ours(x, times, text, context).velocity
    assert want.std() > 0.1
    assert worst(found, want) < BF16_ATOL
