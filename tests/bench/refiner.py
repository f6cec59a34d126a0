"""Refiner speed against diffusers' chunk runner: `python -m tests.bench.refiner [ROW ...]`.

One process, one thread, the same weights, latents, text and noise; runs alternate, the minimum of
each is compared. CPU seconds of the process are used: wall time is not stable on a shared
machine. The results of the first runs are checked equal. The limit is the time of the necessary
matrix products and attention calls alone, on the same shapes, alternating with the runs. Compiling
happens in the run that is compared first; its cost is a column of its own. Exits with 1 when a row
breaks a limit.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.checkpoint import load_weights
from sanawm.ops.compiler import COMPILED
from sanawm.refiner.config import RefinerConfig
from sanawm.refiner.model import RefinerModel
from sanawm.refiner.noise import SeededNoise
from sanawm.refiner.stream import RefinerStream
from sanawm.refiner.weights import IGNORED
from sanawm.shapes import LatentShape, Window

from .tables import report, table
from .transformer import DIM, HEAD, HEADS, TEXT, random_transformer

LAYERS, CHANNELS = 8, 128
HEIGHT, WIDTH, BLOCKS = 11, 20, 6
WINDOW = Window(1, 3, 11)
SIGMAS = (0.909375, 0.725, 0.421875, 0.0)
#: Largest difference for which two runs count as equal: float32 absolute, bfloat16 relative RMS.
EQUAL = {torch.float32: 1e-4, torch.bfloat16: 1e-2}


class Row(NamedTuple):
    """A row of the table: its settings, and the most of diffusers' time and of the limit."""

    dtype: torch.dtype
    compiled: bool
    most: float
    over_limit: float | None


ROWS = {
    "bfloat16": Row(torch.bfloat16, False, 0.70, None),
    "bfloat16-compiled": Row(torch.bfloat16, True, 0.62, 1.40),
    "float32": Row(torch.float32, False, 0.74, 1.12),
}
HEADER = (
    "row", "diffusers s", "sanawm s", "ratio", "most", "limit s", "over limit", "most",
    "error", "compiling s",
)  # fmt: skip


@dataclass(frozen=True)
class Contest:
    """Two runs of one clip on the same weights and inputs."""

    dtype: torch.dtype
    theirs: Callable[[], Tensor]
    ours: Callable[[], Tensor]


def contest(dtype: torch.dtype, *, compiled: bool, blocks: int = BLOCKS) -> Contest:
    """Build diffusers' runner and ours from one random transformer."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.sana_wm.refiner import SanaWMLTX2Refiner

    torch.manual_seed(0)
    theirs = random_transformer(layers=LAYERS).eval().to(dtype)
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
    frames = WINDOW.sink + WINDOW.block * blocks
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


class Necessary:
    """The matrix products and attention calls that one clip needs, and nothing else.

    Weights and K/V differ from layer to layer, as in the model, so they come from memory.
    """

    def __init__(self, dtype: torch.dtype, *, blocks: int = BLOCKS) -> None:
        self._blocks = blocks

        def draw(*sizes: int) -> Tensor:
            return torch.randn(sizes).to(dtype)

        tokens = HEIGHT * WIDTH
        keys = (WINDOW.kv_max + WINDOW.block) * tokens
        sizes = [(DIM, 3 * DIM), (DIM, DIM), (DIM, 4 * DIM), (4 * DIM, DIM), (DIM, 2 * DIM)]
        sizes += [(CHANNELS, DIM), (DIM, CHANNELS)]
        self._weights = {(k, n): [(draw(n, k), draw(n)) for _ in range(LAYERS)] for k, n in sizes}
        self._seen = [
            (draw(1, HEADS, keys, HEAD), draw(1, HEADS, keys, HEAD)) for _ in range(LAYERS)
        ]
        self._text = [
            (draw(1, HEADS, TEXT, HEAD), draw(1, HEADS, TEXT, HEAD)) for _ in range(LAYERS)
        ]
        self._rows = {
            (s, k): draw(1, s, k)
            for s in (WINDOW.sink * tokens, WINDOW.block * tokens)
            for k in (DIM, 4 * DIM, CHANNELS)
        }

    def __call__(self) -> None:
        """Make the calls of a clip."""
        n = HEIGHT * WIDTH
        self._forward(WINDOW.sink * n, 0, capture=True)
        for block in range(self._blocks):
            history = min(block * WINDOW.block, WINDOW.history_max)
            prefix = (WINDOW.sink + history) * n
            for _ in range(len(SIGMAS) - 1):
                self._forward(WINDOW.block * n, prefix, capture=False)
            if block < self._blocks - 1:
                self._forward(WINDOW.block * n, prefix, capture=True)

    def _forward(self, s: int, prefix: int, *, capture: bool) -> None:
        attend = F.scaled_dot_product_attention
        self._product(s, CHANNELS, DIM, 0)
        for layer in range(LAYERS - int(capture)):
            q = self._product(s, DIM, 3 * DIM, layer)[..., :DIM]
            q = q.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
            k, v = self._seen[layer]
            attend(q, k[:, :, : prefix + s], v[:, :, : prefix + s])
            for _ in range(3):  # out, and query and out of the text's attention
                self._product(s, DIM, DIM, layer)
            attend(q, *self._text[layer])
            self._product(s, DIM, 4 * DIM, layer)
            self._product(s, 4 * DIM, DIM, layer)
        if capture:
            self._product(s, DIM, 2 * DIM, LAYERS - 1)
        else:
            self._product(s, DIM, CHANNELS, 0)

    def _product(self, m: int, k: int, n: int, layer: int) -> Tensor:
        return F.linear(self._rows[m, k], *self._weights[k, n][layer])


def measure(name: str, *, repeats: int, blocks: int) -> tuple[list[str], bool]:
    """Return the cells of one row, and whether it is within its limits."""
    row = ROWS[name]
    pair = contest(row.dtype, compiled=row.compiled, blocks=blocks)
    necessary = Necessary(row.dtype, blocks=blocks)
    clips: list[Tensor] = []
    theirs, ours, bounds = [], [], []
    for number in range(repeats):
        for run, seconds in ((pair.ours, ours), (pair.theirs, theirs)):
            before = time.process_time()
            clips.append(run())
            seconds.append(time.process_time() - before)
        bounds.append(cpu_seconds(necessary))
        if number == 0:
            error = difference(*clips)
            if error > EQUAL[row.dtype]:
                raise SystemExit(f"{name}: results differ by {error:g}; the times mean nothing")
        clips.clear()
    bound = min(bounds)
    ratio, over = min(ours) / min(theirs), min(ours) / bound
    cells = [
        name,
        f"{min(theirs):.2f}",
        f"{min(ours):.2f}",
        f"{ratio:.3f}",
        f"{row.most:.2f}",
        f"{bound:.2f}",
        f"{over:.2f}",
        f"{row.over_limit:.2f}" if row.over_limit else "-",
        f"{error:.1e}",
        f"{COMPILED.seconds:.1f}" if row.compiled else "-",
    ]
    return cells, ratio <= row.most and over <= (row.over_limit or over)


def main() -> int:
    """Print the table; return 1 when a row breaks a limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all without any")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="blocks of the clip")
    parser.add_argument("--write", action="store_true", help="write to BENCHMARKS.md")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    made, kept = [], True
    for name in args.rows or ROWS:
        cells, within = measure(name, repeats=args.repeats, blocks=args.blocks)
        made.append(cells)
        kept &= within
        print(f"| {' | '.join(cells)} |", file=sys.stderr, flush=True)
    report("refiner", table(HEADER, made), write=args.write)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
