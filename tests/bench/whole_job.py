"""Clean latents to MP4, ours against a user's diffusers script: `python -m tests.bench.whole_job`.

Theirs is `SanaWMLTX2Refiner` with its VAE (`AutoencoderKLLTX2Video`) and `encode_video`; ours the
library's `Pipeline` and `VideoWriter`. Refiner of `refiner.py` with 32 latent channels, VAE of
`vae.py`, bf16, the same weights, latents, text embeddings and seed. Each run is a process of its
own that loads, runs one warm-up chunk, and then measures itself: total time (file closed), time
until the first frame is on disk (theirs: until the encoder's first bytes are), and, in a run with
freed memory given back at once, the peak above the level after the warm-up. A short clip is
compared first, frame by frame.

`--growth` measures ours alone: memory at 121 latent frames against 31, and how even the blocks are
(of every block the least of the repeated runs: a slow moment of the machine is no slow block).
On a busy machine use `--busy` (waiting threads sleep, for both) and smaller sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .memory import HELD
from .tables import ROOT, report, table

#: Most that may be kept of diffusers' time, time to first frame and peak, at JUDGED latent frames.
LIMITS = {"time": 0.75, "first": 0.10, "peak": 0.50}
JUDGED = 61
#: Most that ours alone may need for a long clip over a short one, and for a block over the median.
MEMORY_LIMIT, BLOCK_LIMIT = 1.03, 1.15
#: Largest mean difference, levels of 255, of two bf16 runs that count as equal.
EQUAL = 3.0
CHECKED = 7
HEADER = (
    "latent frames", "diffusers s", "sanawm s", "ratio", "ratio of CPU s",
    "first frame: diffusers s", "sanawm s", "ratio", "peak: diffusers MiB", "sanawm MiB", "ratio",
)  # fmt: skip
GROWTH = (31, 121)


class Result(NamedTuple):
    """What a run measured: seconds, CPU seconds, seconds to the first frame, bytes, blocks."""

    seconds: float
    cpu: float
    first: float
    peak: int
    blocks: list[float]


class Bench:
    """The runs of one invocation: a folder with the models, and what all processes are told."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder = folder
        self.environment = {"OMP_NUM_THREADS": str(args.threads), "TQDM_DISABLE": "1"}
        if args.busy:
            self.environment["OMP_WAIT_POLICY"] = "passive"
        self.shape = [f"--height={args.height}", f"--width={args.width}"]
        self.shape += [f"--layers={args.layers}", f"--threads={args.threads}"]
        self.compiled = ["--compile"] if args.compile else []

    def child(self, side: str, *options: str, held: bool = False) -> dict[str, Any]:
        """Run one side in a process of its own; return what it found."""
        extra = self.compiled if side == "ours" else []
        command = ["-m", "tests.bench.whole_job_side", side, f"--folder={self.folder}"]
        done = subprocess.run(
            [sys.executable, *command, *self.shape, *extra, *options],
            cwd=ROOT,
            env=os.environ | self.environment | (HELD if held else {}),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{side} {' '.join(options)}: exit code {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}

    def run(self, side: str, frames: int, *, held: bool = False) -> Result:
        """Measure one run of `frames` latent frames."""
        return Result(**self.child(side, f"--frames={frames}", held=held))

    def check(self) -> float:
        """Return the mean difference of the two sides' frames of a short clip, levels."""
        both = []
        for side in ("ours", "theirs"):
            path = self.folder / f"{side}.npy"
            self.child(side, f"--frames={CHECKED}", f"--dump={path}")
            both.append(np.load(path).astype(np.int16))
        ours, theirs = both
        if ours.shape != theirs.shape:
            raise SystemExit(f"ours makes frames {ours.shape}, theirs {theirs.shape}")
        return float(np.abs(ours - theirs).mean())


def least(results: Sequence[Result]) -> Result:
    """Return the least of every measurement."""
    return Result(*(min(column) for column in zip(*(r[:4] for r in results), strict=True)), [])


def compare(bench: Bench, frames: int, *, repeats: int) -> tuple[list[str], dict[str, float]]:
    """Return the row of one length and its ratios; the two sides alternate."""
    runs: dict[str, list[Result]] = {"ours": [], "theirs": []}
    for _ in range(repeats):
        for side, results in runs.items():
            results.append(bench.run(side, frames))
    ours, theirs = least(runs["ours"]), least(runs["theirs"])
    peaks = [bench.run(side, frames, held=True).peak for side in ("ours", "theirs")]
    ratios = {
        "time": ours.seconds / theirs.seconds,
        "first": ours.first / theirs.first,
        "peak": peaks[0] / peaks[1],
    }
    row = [
        str(frames),
        *(f"{s:.1f}" for s in (theirs.seconds, ours.seconds)),
        f"{ratios['time']:.3f}",
        f"{ours.cpu / theirs.cpu:.3f}",
        *(f"{s:.2f}" for s in (theirs.first, ours.first)),
        f"{ratios['first']:.3f}",
        *(f"{b / 2**20:.0f}" for b in reversed(peaks)),
        f"{ratios['peak']:.3f}",
    ]
    return row, ratios


def growth(bench: Bench, *, repeats: int) -> tuple[str, list[str]]:
    """Return a table of ours alone, memory and evenness of long clips, and the limits it breaks."""
    short, long = (bench.run("ours", frames, held=True) for frames in GROWTH)
    # The window is full from the fifth block on.
    runs = [bench.run("ours", GROWTH[1]).blocks[5:31] for _ in range(repeats)]
    blocks = [min(times) for times in zip(*runs, strict=True)]
    memory, even = long.peak / short.peak, unevenness(blocks)
    rows = [
        (
            f"peak at {GROWTH[1]} / at {GROWTH[0]} latent frames",
            f"{long.peak / 2**20:.1f} / {short.peak / 2**20:.1f} MiB",
            f"{memory:.3f}",
        ),
        (
            f"CPU time a block, blocks 5 ... 30, least of {repeats} runs: slowest / median",
            f"{max(blocks):.3f} / {statistics.median(blocks):.3f} s",
            f"{even:.3f}",
        ),
        ("the same in each run alone", "", ", ".join(f"{unevenness(run):.3f}" for run in runs)),
    ]
    limits = (("memory", memory, MEMORY_LIMIT), ("blocks", even, BLOCK_LIMIT))
    broken = [name for name, found, most in limits if found > most]
    return table(("sanawm alone", "", "ratio"), rows), broken


def unevenness(blocks: Sequence[float]) -> float:
    """Return the time of the slowest block over the median."""
    return max(blocks) / statistics.median(blocks)


def parser() -> argparse.ArgumentParser:
    """Return the options of the bench."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--frames", default="19,31,61", help="latent frames; empty: none")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--height", type=int, default=11, help="latent height")
    options.add_argument("--width", type=int, default=20, help="latent width")
    options.add_argument("--layers", type=int, default=8, help="layers of the refiner")
    options.add_argument("--compile", action="store_true", help="ours with compiled functions")
    options.add_argument("--busy", action="store_true", help="waiting threads sleep")
    options.add_argument("--growth", action="store_true", help="ours alone: memory, block times")
    options.add_argument("--write", action="store_true", help="write to BENCHMARKS.md")
    return options


def main() -> int:
    """Print the tables; return 1 when a limit is missed."""
    args = parser().parse_args()
    warnings.filterwarnings("ignore")
    lengths = [int(n) for n in args.frames.split(",") if n]
    texts, broken = [], []
    with tempfile.TemporaryDirectory(prefix="sanawm-bench-") as name:
        bench = Bench(Path(name), args)
        bench.child("make")
        if lengths:
            error = bench.check()
            if error > EQUAL:
                raise SystemExit(f"frames differ by {error:.2f} levels; nothing was timed")
            rows = []
            for frames in lengths:
                row, ratios = compare(bench, frames, repeats=args.repeats)
                rows.append(row)
                print(f"| {' | '.join(row)} |", file=sys.stderr, flush=True)
                broken += [k for k in LIMITS if frames == JUDGED and ratios[k] > LIMITS[k]]
            note = (
                f"{args.layers} layers, {args.height}x{args.width} latents, {args.threads} threads"
            )
            note += f"{', compiled' if args.compile else ''}{', passive waiting' * args.busy}; "
            note += f"minimum of {args.repeats} alternating runs. Frames of a short clip differ by "
            texts.append(f"{table(HEADER, rows)}\n\n{note}{error:.2f} levels on average.")
        if args.growth or not lengths:
            text, missed = growth(bench, repeats=args.repeats)
            texts.append(text)
            broken += missed
    report("whole_job", "\n\n".join(texts), write=args.write)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
