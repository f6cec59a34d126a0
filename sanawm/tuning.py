"""What settings do for the refiner's speed: weights laid out, compiled functions, CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ops.compiler import can_compile
from .refiner.graph import PassGraphs
from .shapes import LatentShape

if TYPE_CHECKING:
    from .pipeline import Pipeline


def prepare_refiner(pipe: Pipeline, shape: LatentShape) -> None:
    """Lay the refiner's weights out for the blocks of this clip, once."""
    runtime = pipe.settings.settings.runtime
    rows = shape.batch * pipe.window.block * shape.tokens_per_frame
    wanted = (rows, runtime.compile)
    device = pipe.places["refiner"]
    moves = runtime.offload == "all" and device.type != "cpu"
    if pipe.refiner_layout != wanted and not moves:
        compiled = runtime.compile and can_compile(device, pipe.notes)
        pipe.refiner.prepare(rows=rows, compiled=compiled)
        pipe.refiner_layout = wanted


def pass_graphs(pipe: Pipeline) -> PassGraphs | None:
    """Return what replays passes with `runtime.cuda_graph`, where it can work."""
    runtime = pipe.settings.settings.runtime
    if not runtime.cuda_graph:
        return None
    if pipe.places["refiner"].type != "cuda" or runtime.offload == "all":
        pipe.notes.change("--cuda-graph: not used, the refiner's weights do not stay on a card")
        return None
    return PassGraphs()
