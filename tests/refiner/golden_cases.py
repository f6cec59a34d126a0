"""Run the golden refiner cases: inputs, models and a recorded run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from sanawm.refiner.model import RefinerModel
from sanawm.refiner.noise import GivenNoise
from sanawm.refiner.sampler import from_tokens
from sanawm.refiner.stream import RefinedBlock, RefinerStream
from sanawm.refiner.weights import load_refiner
from sanawm.shapes import LatentShape, Window

FOLDER = Path(__file__).parents[1] / "golden" / "refiner"
CASES: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text())
CHUNK_CASES = tuple(CASES["chunk_cases"])


@cache
def golden_model(name: str, dtype: torch.dtype = torch.float32) -> RefinerModel:
    """Return a golden model by its short name (`split`, `inter_gated`, ...)."""
    return load_refiner(FOLDER / CASES["models"][name], device="cpu", dtype=dtype)


@dataclass
class Run:
    """What a chunk run produced, in the layout of the golden tensors."""

    latents: Tensor
    blocks: list[RefinedBlock] = field(default_factory=list)
    x0: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    x_next: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    post: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    history: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)


def tensors(name: str) -> dict[str, Tensor]:
    """Return the tensors of a chunk or single-shot case."""
    table = CASES["chunk_cases"] | CASES["single_shot_cases"]
    return load_file(FOLDER / table[name]["file"])


def make_stream(name: str, data: dict[str, Tensor], *, open_ended: bool = False) -> RefinerStream:
    """Return the stream of a chunk case, with the golden noise."""
    case = CASES["chunk_cases"][name]
    dtype = torch.bfloat16 if case.get("dtype") == "bfloat16" else torch.float32
    model = golden_model(case["model"], dtype)
    eps = torch.cat([data[f"noise.b{b}"] for b in range(case["n_blocks"])], dim=2)
    return RefinerStream(
        model,
        model.prepare_text(data["prompt_embeds"], data["prompt_mask"]),
        shape=LatentShape(*data["latents_in"].shape),
        fps=case["fps"],
        window=Window(case["sink"], case["block"], case["kv_max"]),
        sigmas=case["sigmas"],
        noise=GivenNoise.of(eps, sink=case["sink"]),
        open_ended=open_ended,
    )


def token_major(heads: Tensor) -> Tensor:
    """Return `(B, N, S, K)` as `(B, S, N*K)`, the layout of the golden K/V."""
    return heads.transpose(1, 2).flatten(2)


def run_case(name: str) -> tuple[Run, dict[str, Tensor]]:
    """Run a chunk case, capturing every block so that all golden K/V can be compared."""
    data = tensors(name)
    case = CASES["chunk_cases"][name]
    stream = make_stream(name, data, open_ended=True)
    sink, clean = case["sink"], data["latents_in"]
    H, W = clean.shape[3:]
    if sink:
        stream.start(clean[:, :, :sink])
    run = Run(clean[:, :, :sink])
    out = [clean[:, :, :sink]]
    for span in stream.window.blocks(clean.shape[2]):

        def observe(step: int, x0: Tensor, x: Tensor, span: Any = span) -> None:
            size = {"frames": span.frames, "height": H, "width": W}
            run.x0[span.number, step] = from_tokens(x0, **size)
            run.x_next[span.number, step] = from_tokens(x, **size)

        block = stream.refine(
            clean[:, :, span.start : span.stop], start=span.start, observe=observe
        )
        run.blocks.append(block)
        out.append(block.latents)
        record_history(run, stream, span.number, span.frames)
    run.latents = torch.cat(out, dim=2)
    return run, data


def record_history(run: Run, stream: RefinerStream, number: int, frames: int) -> None:
    """Copy the history after a block, and the block's own part of it."""
    cache = stream.cache
    n = cache.tokens_per_frame
    first, last = cache.window.sink * n, cache.prefix_frames * n
    for layer in range(cache.layers):
        k, v = cache._keys[layer], cache._values[layer]
        run.history[number, layer] = (
            token_major(k[:, :, first:last]).clone(),
            token_major(v[:, :, first:last]).clone(),
        )
        own = slice(last - min(frames, cache.history_frames) * n, last)
        run.post[number, layer] = (
            token_major(k[:, :, own]).clone(),
            token_major(v[:, :, own]).clone(),
        )
