"""Small refiners and connectors written by diffusers, and its pipeline around them.

Importing this module imports diffusers; only the oracle tests do.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SanaWMLTX2RefinerTransformer3DModel
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.sana_wm.refiner import SanaWMLTX2Refiner
from torch import Tensor, nn
from transformers import AutoTokenizer, Gemma3ForConditionalGeneration

CHANNELS = 16
TEXT_WIDTH = 32
TEXT_LENGTH = 64

#: Architectures by name: what differs from the released structure.
MODELS: dict[str, dict[str, Any]] = {
    "release-like": {},
    "gated": {"gated_attn": True},
    "interleaved-gated-norms": {
        "rope_type": "interleaved",
        "rope_double_precision": False,
        "gated_attn": True,
        "norm_elementwise_affine": True,
        "ff_bias": False,
    },
}


def randomise(module: nn.Module, *, seed: int) -> None:
    """Give every parameter seeded values of a size that makes its part count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            draw = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                draw = 1 + 0.2 * draw
            elif name.endswith("bias") or "scale_shift" in name:
                draw = 0.2 * draw
            elif not name.endswith("learnable_registers"):
                draw = draw / math.sqrt(parameter.shape[-1])
            parameter.copy_(draw)


def write_transformer(folder: Path, model: str, *, seed: int = 1) -> Path:
    """Write a refiner of 3 layers and 4 heads x 16: D mod 6 = 4, so RoPE padding counts."""
    settings: dict[str, Any] = {
        "in_channels": CHANNELS,
        "out_channels": CHANNELS,
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "cross_attention_dim": 64,
        "num_layers": 3,
        "caption_channels": TEXT_WIDTH,
        "rope_type": "split",
        "audio_in_channels": 4,
        "audio_out_channels": 4,
        "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 4,
        "audio_cross_attention_dim": 8,
    }
    transformer = SanaWMLTX2RefinerTransformer3DModel(**(settings | MODELS[model]))
    randomise(transformer, seed=seed)
    transformer.save_pretrained(folder / "transformer")
    return folder


def write_connectors(folder: Path, *, states: int, width: int = TEXT_WIDTH, seed: int = 2) -> Path:
    """Write connectors of 2 layers for a text encoder with `states` hidden states."""
    sizes = {
        "num_attention_heads": 2,
        "attention_head_dim": width // 2,
        "num_layers": 2,
        "num_learnable_registers": 8,
    }
    both = {f"{half}_connector_{k}": v for half in ("video", "audio") for k, v in sizes.items()}
    connectors = LTX2TextConnectors(
        caption_channels=width, text_proj_in_factor=states, rope_type="split", **both
    )
    randomise(connectors, seed=seed)
    connectors.save_pretrained(folder / "connectors")
    return folder


def public_pipeline(
    root: Path, *, dtype: torch.dtype = torch.float32, **text: Any
) -> SanaWMLTX2Refiner:
    """Return diffusers' refiner over what was written to `root`; `text` gives its text parts."""
    parts = {"connectors": None, "tokenizer": None, "text_encoder": None} | text
    transformer = SanaWMLTX2RefinerTransformer3DModel.from_pretrained(
        root / "transformer", torch_dtype=dtype, low_cpu_mem_usage=False
    )
    pipeline = SanaWMLTX2Refiner(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        text_max_sequence_length=TEXT_LENGTH,
        **parts,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def public_text(root: Path, gemma: Path) -> dict[str, Any]:
    """Return the pipeline's text parts: Gemma and tokenizer of `gemma`, connectors of `root`."""
    return {
        "tokenizer": AutoTokenizer.from_pretrained(gemma, local_files_only=True),
        "text_encoder": Gemma3ForConditionalGeneration.from_pretrained(gemma, dtype=torch.float32),
        "connectors": LTX2TextConnectors.from_pretrained(
            root / "connectors", low_cpu_mem_usage=False
        ),
    }


def give_prompt(pipeline: SanaWMLTX2Refiner, embeds: Tensor, mask: Tensor) -> None:
    """Let the pipeline use these embeddings instead of its text encoder."""

    def encode(prompt: str, *, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return embeds.to(device, dtype), mask

    pipeline._encode_prompt = encode
