"""Refiner speed against diffusers' chunk runner: `python -m tests.bench.refiner [--dtype ...]`.

One process, one thread, the same weights, latents, text and noise; runs alternate, the minimum of
each is compared. CPU seconds of the process are used: wall time is not stable on a shared
machine. Results are checked equal before anything is timed. The limit is the time of the necessary
matrix products and attention calls alone, on the same shapes, in the same process.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.checkpoint import load_weights
from sanawm.refiner.config import RefinerConfig
from sanawm.refiner.model import RefinerModel
from sanawm.refiner.noise import SeededNoise
from sanawm.refiner.stream import RefinerStream
from sanawm.refiner.weights import IGNORED
from sanawm.shapes import LatentShape, Window

LAYERS, HEADS, HEAD, TEXT, CHANNELS = 8, 16, 64, 256, 128
HEIGHT, WIDTH, BLOCKS = 11, 20, 6
WINDOW = Window(1, 3, 11)
SIGMAS = (0.909375, 0.725, 0.421875, 0.0)
DIM = HEADS * HEAD
#: Largest difference for which two runs count as equal: float32 absolute, bfloat16 relative RMS.
EQUAL = {torch.float32: 1e-4, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Contest:
    """Two runs of one clip on the same weights and inputs."""

    dtype: torch.dtype
    theirs: Callable[[], Tensor]
    ours: Callable[[], Tensor]


def contest(dtype: torch.dtype, *, compiled: bool) -> Contest:
    """Build diffusers' runner and ours from one random transformer."""
    from diffusers import FlowMatchEulerDiscreteScheduler, SanaWMLTX2RefinerTransformer3DModel
    from diffusers.pipelines.sana_wm.refiner import SanaWMLTX2Refiner

    torch.manual_seed(0)
    made = SanaWMLTX2RefinerTransformer3DModel(
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD,
        cross_attention_dim=DIM,
        caption_channels=DIM,
        rope_type="split",
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
    )
    theirs: Any = made.eval().to(dtype)
    pipe = SanaWMLTX2Refiner(
        transformer=theirs,
        connectors=None,
        tokenizer=None,
        text_encoder=None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
    )
    embeds = torch.randn(1, TEXT, DIM).to(dtype)
    mask = torch.ones(1, TEXT, dtype=torch.int64)
    pipe._encode_prompt = lambda prompt, device, dtype: (embeds, mask)
    pipe.set_progress_bar_config(disable=True)
    frames = WINDOW.sink + WINDOW.block * BLOCKS
    latents = torch.randn(1, CHANNELS, frames, HEIGHT, WIDTH).to(dtype)
    model = our_model(theirs, dtype, compiled=compiled)
    text = model.prepare_text(embeds, mask)

    def run_theirs() -> Tensor:
        generator = torch.Generator().manual_seed(42)
        out = pipe(latents, "x", fps=16.0, output_type="latent", generator=generator)
        return out[0] if isinstance(out, tuple) else getattr(out, "frames", out)

    def run_ours() -> Tensor:
        stream = RefinerStream(
            model,
            text,
            shape=LatentShape(*latents.shape),
            fps=16.0,
            window=WINDOW,
            sigmas=SIGMAS,
            noise=SeededNoise(42),
        )
        stream.start(latents[:, :, : WINDOW.sink])
        blocks = [
            stream.refine(latents[:, :, s.start : s.stop]).latents for s in WINDOW.blocks(frames)
        ]
        return torch.cat([latents[:, :, : WINDOW.sink], *blocks], dim=2)

    return Contest(dtype, run_theirs, run_ours)


def our_model(theirs: torch.nn.Module, dtype: torch.dtype, *, compiled: bool) -> RefinerModel:
    """Return our model with the weights of a diffusers transformer."""
    config = RefinerConfig.from_dict(dict(theirs.config), where="bench")  # type: ignore[arg-type]
    with torch.device("meta"):
        model = RefinerModel(config)
    load_weights(model, theirs.state_dict(), device="cpu", dtype=dtype, ignore=IGNORED)
    if hasattr(model, "prepare"):
        model.prepare(rows=WINDOW.block * HEIGHT * WIDTH, compiled=compiled)
    return model


def difference(a: Tensor, b: Tensor) -> float:
    """Return the error measure of EQUAL between two clips."""
    if a.dtype == torch.float32:
        return float((a - b).abs().max())
    a, b = a.float(), b.float()
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that one call takes."""
    before = time.process_time()
    run()
    return time.process_time() - before


def limit(dtype: torch.dtype) -> float:
    """Return the seconds of the necessary products and attention calls of one clip."""
    cache: dict[tuple[int, ...], float] = {}

    def gemm(m: int, k: int, n: int) -> float:
        if (m, k, n) not in cache:
            x, b = torch.randn(1, m, k).to(dtype), torch.randn(n).to(dtype)
            weights = [torch.randn(n, k).to(dtype) for _ in range(LAYERS)]
            cache[m, k, n] = best([lambda w=w: F.linear(x, w, b) for w in weights])
        return cache[m, k, n]

    def attend(q: int, p: int) -> float:
        if (q, p) not in cache:
            query = torch.randn(1, HEADS, q, HEAD).to(dtype)
            pairs = [
                [torch.randn(1, HEADS, p, HEAD).to(dtype) for _ in "kv"] for _ in range(LAYERS)
            ]
            cache[q, p] = best(
                [lambda t=t: F.scaled_dot_product_attention(query, *t) for t in pairs]
            )
        return cache[q, p]

    def forward(s: int, prefix: int, *, capture: bool) -> float:
        layer = gemm(s, DIM, 3 * DIM) + 3 * gemm(s, DIM, DIM) + attend(s, prefix + s)
        layer += attend(s, TEXT) + gemm(s, DIM, 4 * DIM) + gemm(s, 4 * DIM, DIM)
        ends = gemm(s, CHANNELS, DIM) + (0 if capture else gemm(s, DIM, CHANNELS))
        if not capture:
            return LAYERS * layer + ends
        return (LAYERS - 1) * layer + gemm(s, DIM, 2 * DIM) + ends

    n = HEIGHT * WIDTH
    total = forward(WINDOW.sink * n, 0, capture=True)
    for block in range(BLOCKS):
        history = min(block * WINDOW.block, WINDOW.history_max)
        prefix = (WINDOW.sink + history) * n
        total += 3 * forward(WINDOW.block * n, prefix, capture=False)
        if block < BLOCKS - 1:
            total += forward(WINDOW.block * n, prefix, capture=True)
    return total


def best(calls: list[Callable[[], object]], seconds: float = 0.4) -> float:
    """Return the least mean CPU time of one call while cycling through operand sets."""
    found, spent = float("inf"), 0.0
    while spent < seconds:
        taken = cpu_seconds(lambda: [call() for call in calls])
        found, spent = min(found, taken / len(calls)), spent + taken
    return found


def measure(dtype: torch.dtype, *, repeats: int, compiled: bool) -> dict[str, float]:
    """Return the measured row of one dtype."""
    pair = contest(dtype, compiled=compiled)
    error = difference(pair.ours(), pair.theirs())
    if error > EQUAL[dtype]:
        raise SystemExit(f"{dtype}: results differ by {error:g}; nothing was timed")
    theirs, ours = [], []
    for _ in range(repeats):
        ours.append(cpu_seconds(pair.ours))
        theirs.append(cpu_seconds(pair.theirs))
    bound = limit(dtype)
    return {
        "diffusers_s": min(theirs),
        "sanawm_s": min(ours),
        "ratio": min(ours) / min(theirs),
        "limit_s": bound,
        "over_limit": min(ours) / bound,
        "error": error,
    }


def main() -> None:
    """Print one row a dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16,float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("| dtype | diffusers s | sanawm s | ratio | limit s | over limit | error |")
    print("|---|---|---|---|---|---|---|")
    for name in args.dtype.split(","):
        row = measure(getattr(torch, name), repeats=args.repeats, compiled=args.compile)
        print(
            f"| {name} | {row['diffusers_s']:.2f} | {row['sanawm_s']:.2f} | {row['ratio']:.3f} | "
            f"{row['limit_s']:.2f} | {row['over_limit']:.2f} | {row['error']:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
