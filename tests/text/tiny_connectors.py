"""Write tiny text connectors in the released layout (config.json and one safetensors file).

Used by the tests and by the maker of the embedded preset; same arguments, same bytes.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from tests.text.tiny_gemma import write_json


def make_tiny_connectors(
    folder: Path,
    *,
    seed: int = 0,
    width: int = 32,
    states: int = 4,
    heads: int = 2,
    layers: int = 2,
    registers: int | None = 8,
    audio: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write connectors for a text encoder of hidden size `width` with `states` hidden states.

    audio: also the tensors of the audio connector, which the release has and nobody reads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {
        "_class_name": "LTX2TextConnectors",
        "_diffusers_version": "0.37.0.dev0",
        "caption_channels": width,
        "causal_temporal_positioning": False,
        "connector_rope_base_seq_len": 4096,
        "rope_double_precision": True,
        "rope_theta": 10000.0,
        "rope_type": "split",
        "text_proj_in_factor": states,
    }
    for half in ("audio", "video"):
        config |= {
            f"{half}_connector_attention_head_dim": width // heads,
            f"{half}_connector_num_attention_heads": heads,
            f"{half}_connector_num_layers": layers,
            f"{half}_connector_num_learnable_registers": registers,
        }
    write_json(folder / "config.json", dict(sorted(config.items())))
    halves = ("audio", "video") if audio else ("video",)
    shapes = {"text_proj_in.weight": (width, width * states)}
    for half in halves:
        shapes |= half_shapes(f"{half}_connector", width=width, layers=layers, registers=registers)
    write_weights(folder / "diffusion_pytorch_model.safetensors", shapes, seed=seed, dtype=dtype)
    return folder


def half_shapes(
    prefix: str, *, width: int, layers: int, registers: int | None
) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of one connector."""
    shapes: dict[str, tuple[int, ...]] = {}
    if registers is not None:
        shapes[f"{prefix}.learnable_registers"] = (registers, width)
    for layer in range(layers):
        block = f"{prefix}.transformer_blocks.{layer}"
        for linear, rows, columns in (
            ("attn1.to_q", width, width),
            ("attn1.to_k", width, width),
            ("attn1.to_v", width, width),
            ("attn1.to_out.0", width, width),
            ("ff.net.0.proj", 4 * width, width),
            ("ff.net.2", width, 4 * width),
        ):
            shapes[f"{block}.{linear}.weight"] = (rows, columns)
            shapes[f"{block}.{linear}.bias"] = (rows,)
        shapes[f"{block}.attn1.norm_q.weight"] = (width,)
        shapes[f"{block}.attn1.norm_k.weight"] = (width,)
    return shapes


def write_weights(
    path: Path, shapes: dict[str, tuple[int, ...]], *, seed: int, dtype: torch.dtype
) -> None:
    """Write seeded weights: norms near 1, biases and registers small, linears scaled by fan-in."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in sorted(shapes.items()):
        draw = torch.randn(shape, generator=generator)
        if ".norm_" in name:
            draw = 1 + 0.1 * draw
        elif name.endswith("bias"):
            draw = 0.1 * draw
        elif not name.endswith("learnable_registers"):
            draw = draw / math.sqrt(shape[-1])
        weights[name] = draw.to(dtype)
    save_file(weights, str(path), metadata={"format": "pt"})
