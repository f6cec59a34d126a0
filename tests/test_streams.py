"""Streams and copies do nothing on a CPU; with a card, overlapping stages change no bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sanawm.chunks import RefinedChunk
from sanawm.notes import Notes
from sanawm.pipeline import Pipeline
from sanawm.schedule import StageThread
from sanawm.shapes import BlockSpan, LatentShape
from sanawm.streams import StageStream, adopt, to_host
from sanawm.tuning import pass_graphs


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_without_a_card_nothing_happens(device: torch.device | None) -> None:
    stream = StageStream(device)
    with stream.current():
        stream.finish()
    tensor = torch.ones(2)
    assert to_host(tensor) is tensor
    adopt(RefinedChunk(BlockSpan(0, 1, 4), tensor, 0, 0))


def test_cuda_graphs_on_a_cpu_are_refused_in_a_line() -> None:
    pipe = Pipeline.from_config("tiny", sets=["runtime.cuda_graph=true"], notes=Notes())
    assert pass_graphs(pipe) is None
    assert pipe.notes.changes == [
        "--cuda-graph: not used, the refiner's weights do not stay on a card"
    ]
    assert pass_graphs(Pipeline.from_config("tiny")) is None


@pytest.mark.gpu
def test_a_copy_through_pinned_memory_is_equal() -> None:
    tensor = torch.randn(3, 64, 64, device="cuda")
    host = to_host(tensor)
    assert host.is_pinned()
    assert torch.equal(host, tensor.cpu())


@pytest.mark.gpu
def test_stages_on_streams_hand_finished_chunks_on() -> None:
    """Each item is the end of a long chain of kernels; its consumer works on another stream."""
    device = torch.device("cuda")

    def made() -> Iterator[Tensor]:
        for number in range(20):
            x = torch.full((1024, 1024), float(number), device=device)
            for _ in range(20):
                x = x @ torch.eye(1024, device=device)
            yield x

    items = StageThread(made(), name="make", device=device)
    sums = StageThread((x.sum() for x in items), name="sum", device=device)
    found = [float(s) for s in sums]
    assert found == [number * 1024.0 * 1024.0 for number in range(20)]


@pytest.mark.gpu
@pytest.mark.parametrize("sets", [[], ["runtime.cuda_graph=true"], ["runtime.compile=true"]])
def test_a_run_on_a_card_equals_a_run_on_the_cpu(sets: list[str]) -> None:
    clips = []
    for device in ("cpu", "cuda"):
        pipe = Pipeline.from_config(
            "tiny", sets=[f"runtime.device={device}", "runtime.precision=fp32", *sets]
        )
        prompt = pipe.encode_prompt("a red tower on green ground")
        shape = LatentShape(1, pipe.refiner.config.in_channels, 19, 6, 8)
        latents = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        clips.append(torch.cat([c.latents.cpu() for c in pipe.refine(latents, prompt)], dim=2))
    torch.testing.assert_close(clips[1], clips[0], atol=1e-3, rtol=1e-3)
