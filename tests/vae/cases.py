"""The golden VAEs: tiny random weights and what the reference implementations made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from sanawm.vae import (
    DecoderState,
    EncoderState,
    VAEDecoder,
    VAEEncoder,
    load_decoder,
    load_encoder,
    uint8_to_pixels,
)

FOLDER = Path(__file__).parents[1] / "golden" / "vae"
NAMES = ("a_ltx20_p4", "b_ltx23_p1", "c_ltx20_p1", "d_convin_p1")
CLIPS = tuple(
    (name, clip)
    for name in NAMES
    for clip in ("image", "video9", "video17")
    if (FOLDER / name / f"encode_{clip}.safetensors").is_file()
)
DECODE_ATOL = 1e-4
ENCODE_ATOL = 1e-5


@dataclass(frozen=True)
class Clip:
    """Frames in [-1, 1] `(1, 3, frames, H, W)` and what they encode to."""

    frames_u8: Tensor
    frames: Tensor
    mode: Tensor
    logvar: Tensor
    latent: Tensor


def folder(name: str) -> Path:
    return FOLDER / name


def meta(name: str) -> dict[str, Any]:
    return json.loads((folder(name) / "meta.json").read_text())


def chunkings() -> list[tuple[str, tuple[int, ...], list[list[int]]]]:
    """Every way of cutting that the golden files list, with the pixel span of each chunk."""
    return [
        (name, tuple(c["latents_per_chunk"]), c["pixel_spans"])
        for name in NAMES
        for c in meta(name)["chunkings"]
    ]


def decoder(name: str, dtype: torch.dtype = torch.float32) -> VAEDecoder:
    """A fresh decoder, so that a test may damage it."""
    return load_decoder(folder(name), device="cpu", dtype=dtype)


def encoder(name: str, dtype: torch.dtype = torch.float32) -> VAEEncoder:
    return load_encoder(folder(name), device="cpu", dtype=dtype)


@cache
def decode_case(name: str) -> tuple[Tensor, Tensor]:
    """Normalised latents and the pixels they decode to."""
    tensors = load_file(folder(name) / "decode.safetensors")
    return tensors["latent"], tensors["pixels"]


@cache
def clip_case(name: str, clip: str) -> Clip:
    t = load_file(folder(name) / f"encode_{clip}.safetensors")
    frames = uint8_to_pixels(t["frames_u8"][None])
    return Clip(t["frames_u8"], frames, t["mode"], t["logvar"], t["latent"])


def decode_chunks(vae: VAEDecoder, latents: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    state = DecoderState()
    return [vae.decode(chunk, state) for chunk in latents.split(list(sizes), dim=2)]


def encode_chunks(vae: VAEEncoder, frames: Tensor, sizes: tuple[int, ...]) -> Tensor:
    state = EncoderState()
    parts = [vae.encode(chunk, state) for chunk in frames.split(list(sizes), dim=2)]
    vae.finish(state)
    return torch.cat(parts, dim=2)


def worst(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; the shapes must agree."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max())
