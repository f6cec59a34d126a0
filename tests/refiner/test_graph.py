"""`--cuda-graph`: which passes are recorded, and that replaying them changes no bit.

On a CPU a stand-in for the recorder repeats the Python work; on a card real graphs are used.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sanawm.refiner.cache import RefinerCache
from sanawm.refiner.graph import PassGraphs, Recorded
from sanawm.refiner.noise import SeededNoise
from sanawm.refiner.stream import RefinerStream
from sanawm.schedules import RELEASED_SIGMAS
from sanawm.shapes import LatentShape

from .golden_cases import golden_model
from .stream_cases import SMALL, H, W, assert_equal, clip, make, run

#: One sink frame, five whole blocks and a short one; the window is full from block 2 on.
FRAMES = 18


class StandIn:
    """Records work by running it once on memory that stays, as a card does with addresses.

    The work knows the pass of the cache in which it was recorded; a card would not ask.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.cache: RefinerCache | None = None

    def __call__(self, work: Callable[[], Tensor | None]) -> Recorded:
        self.recorded += 1
        cache = self.cache
        assert cache is not None
        then, first = cache._pass, work()
        output = None if first is None else torch.zeros_like(first)

        def replay() -> None:
            running, cache._pass = cache._pass, then
            made = work()
            cache._pass = running
            if output is not None and made is not None:
                output.copy_(made)

        return Recorded(replay, output)


def recording(recorder: StandIn, *, model: str = "split") -> RefinerStream:
    """Return a stream that replays its steady passes."""
    stream = make(FRAMES, model=model, graphs=PassGraphs(recorder))
    recorder.cache = stream.cache
    return stream


@pytest.mark.parametrize("model", ["split", "inter_gated"])
def test_replayed_passes_are_bit_equal(model: str) -> None:
    recorder = StandIn()
    found = run(recording(recorder, model=model), clip(FRAMES))
    assert_equal(found, run(make(FRAMES, model=model), clip(FRAMES)))
    assert recorder.recorded == len(RELEASED_SIGMAS)  # three steps and a clean pass


def test_nothing_is_recorded_before_the_window_is_full() -> None:
    recorder = StandIn()
    stream = recording(recorder)
    latents = clip(FRAMES)
    run(stream, latents[:, :, :10])  # block 2 is the first with a full window: it only warms up
    assert recorder.recorded == 0
    run(stream, latents[:, :, :13])
    assert recorder.recorded == len(RELEASED_SIGMAS)


def test_a_failed_block_can_be_tried_again() -> None:
    recorder = StandIn()
    stream = recording(recorder)
    latents = clip(FRAMES)
    blocks = run(stream, latents[:, :, :13])

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream.refine(latents[:, :, 13:16], observe=fail)
    blocks += run(stream, latents)
    assert_equal(blocks, run(make(FRAMES), latents))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_real_graphs_equal_the_same_kernels_run_eagerly(compiled: bool) -> None:
    device = torch.device("cuda")
    model = golden_model("split", torch.float32).to(device)
    model.prepare(rows=SMALL.block * H * W, compiled=compiled)
    prompt = torch.randn(1, 5, model.config.caption_channels, generator=torch.Generator())

    def blocks(graphs: PassGraphs | None) -> list[Tensor]:
        stream = RefinerStream(
            model,
            model.prepare_text(prompt),
            shape=LatentShape(1, 8, FRAMES, H, W),
            fps=16.0,
            window=SMALL,
            sigmas=RELEASED_SIGMAS,
            noise=SeededNoise(42),
            graphs=graphs,
        )
        return [block.cpu() for block in run(stream, clip(FRAMES).to(device))]

    graphs = PassGraphs()
    assert_equal(blocks(graphs), blocks(None))
    assert graphs.count == len(RELEASED_SIGMAS)
