"""Streaming decode against diffusers' whole-clip decode: `python -m tests.bench.vae`.

One process, the same random weights (depth 5,5,5,5, widths 32,64,128, 32 latent channels) and
latents (11x20): ours in chunks of 4, 3, 3, ... latent frames with carried state, theirs
(`AutoencoderKLLTX2Video`, causal) at once. Results are checked equal first; then the two alternate
and the minimum of each counts, wall time and CPU seconds of the process. Both make float pixels;
nothing is written. The limit is the time of our convolutions alone, each shape at its best, in the
same process. Exits with 1 when bf16 takes more than LIMIT of diffusers' time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sanawm.limit import RecordCalls, limit_seconds
from sanawm.vae import DecoderState, VAEDecoder, load_decoder

from .tables import report, table

CONFIG: dict[str, Any] = {
    "latent_channels": 32,
    "block_out_channels": (32, 64, 128, 256),
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_block_out_channels": (32, 64, 128),
    "decoder_layers_per_block": (5, 5, 5, 5),
    "encoder_causal": True,
    "decoder_causal": True,
}
HEIGHT, WIDTH, BLOCK = 11, 20, 3
#: Share of diffusers' time in bf16 that must be kept.
LIMIT = 0.90
#: Largest difference for which two runs count as equal: float32 absolute, bfloat16 relative RMS.
EQUAL = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


class Times(NamedTuple):
    """Least wall and CPU seconds of some runs."""

    wall: float
    cpu: float


def models(dtype: torch.dtype) -> tuple[Any, VAEDecoder]:
    """Return diffusers' VAE and our decoder with the same weights."""
    from diffusers import AutoencoderKLLTX2Video
    from diffusers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    theirs = AutoencoderKLLTX2Video(**CONFIG).eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as name:
        theirs.save_pretrained(name)
        ours = load_decoder(Path(name), device="cpu", dtype=dtype)
    return theirs.to(dtype), ours


def decode_stream(decoder: VAEDecoder, latents: Tensor) -> list[Tensor]:
    """Return the pixels of every chunk: the first is one latent frame longer, as after a sink."""
    state = DecoderState()
    sizes = [min(BLOCK + 1, latents.shape[2])]
    while sum(sizes) < latents.shape[2]:
        sizes.append(min(BLOCK, latents.shape[2] - sum(sizes)))
    return [decoder.decode(chunk, state) for chunk in latents.split(sizes, dim=2)]


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the error measure of EQUAL."""
    if expected.dtype == torch.float32:
        return float((found - expected).abs().max())
    found, expected = found.float(), expected.float()
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def alternate(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Run everything in turn `repeats` times; return the least times of each."""
    least = {name: Times(float("inf"), float("inf")) for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            least[name] = Times(min(wall, least[name].wall), min(cpu, least[name].cpu))
    return least


def measure(dtype: torch.dtype, frames: int, *, repeats: int) -> tuple[list[str], float]:
    """Return the row of one dtype and length, and the ratio of wall times."""
    theirs, ours = models(dtype)
    latents = torch.randn(1, CONFIG["latent_channels"], frames, HEIGHT, WIDTH).to(dtype)
    # Statistics are 0 and 1 here: normalised and raw latents are the same.
    error = difference(
        torch.cat(decode_stream(ours, latents), 2), theirs.decode(latents, causal=True).sample
    )
    if error > EQUAL[dtype]:
        raise SystemExit(f"{dtype}: results differ by {error:g}; nothing was timed")
    runs: dict[str, Callable[[], object]] = {
        "theirs": partial(theirs.decode, latents, causal=True),
        "ours": partial(decode_stream, ours, latents),
        "first": partial(decode_stream, ours, latents[:, :, : BLOCK + 1]),
    }
    least = alternate(runs, repeats)
    with RecordCalls() as record:
        decode_stream(ours, latents)
    limit = limit_seconds(record.calls, latents.device, clock=time.process_time)
    t, o = least["theirs"], least["ours"]
    row = [
        str(dtype).removeprefix("torch."),
        str(frames),
        f"{t.wall:.2f}",
        f"{o.wall:.2f}",
        f"{o.wall / t.wall:.3f}",
        f"{o.cpu / t.cpu:.3f}",
        f"{least['first'].wall:.2f}",
        f"{record.flops / o.cpu / 1e9:.0f}",
        f"{o.cpu / limit:.2f}",
        f"{error:.0e}",
    ]
    return row, o.wall / t.wall


def main() -> int:
    """Print one row a dtype and length; return 1 when bf16 misses its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16,float32")
    parser.add_argument("--frames", default="19", help="latent frames, as in 7,19")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the table to BENCHMARKS.md")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    rows, broken = [], False
    for name in args.dtype.split(","):
        for frames in map(int, args.frames.split(",")):
            row, ratio = measure(getattr(torch, name), frames, repeats=args.repeats)
            rows.append(row)
            broken |= name == "bfloat16" and ratio > LIMIT
    header = ("dtype", "latent frames", "diffusers s", "sanawm s", "ratio", "ratio of CPU s",
              "first chunk s", "GFLOP/s (CPU s)", "over own limit", "error")  # fmt: skip
    note = f"{args.threads} threads; minimum of {args.repeats} alternating runs."
    report("vae", f"{table(header, rows)}\n\n{note}", write=args.write)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
