"""How fast the stages are on this machine, and how close to its own limit.

A clip of random latents (and a random prompt: speed does not depend on the values) goes through
stage 1, refiner, decoder and the video writer, block by block, the stages in a row. Blocks count
once the refiner's window is full and everything that compiles has compiled. The limit of a stage is
the time of its matrix products, attention and convolutions alone, on the same shapes, in the same
process (`sanawm.limit`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .camera.geometry import Float32
from .chunks import RefinedChunk
from .errors import UsageError
from .frame_rates import rate_of
from .io.video import VideoSettings, VideoWriter
from .limit import RecordCalls, limit_seconds, now
from .measure import peak_device_bytes, peak_resident_bytes
from .ops.compiler import COMPILED
from .pipeline import Pipeline
from .shapes import MAX_FRAMES, LatentShape
from .sources import chunk_sizes, regroup
from .text.embeddings import PromptEmbeds, Stage1Caption

T = TypeVar("T")
SCHEMA = 1
SEED = 0


class BenchPlan(NamedTuple):
    """Sizes of a measurement: the clip, the blocks that only warm up, and those that count."""

    shape: LatentShape
    fps: Fraction
    block_frames: int
    warm: int
    blocks: int

    @property
    def block_seconds(self) -> float:
        """Length of a block's video."""
        return self.block_frames / float(self.fps)


@dataclass
class StageRow:
    """What one stage took: seconds of every block that counts, and its work."""

    name: str
    seconds: list[float] = field(default_factory=list)
    flops: float = 0.0
    limit_seconds: float = 0.0

    def as_dict(self, block_seconds: float) -> dict[str, Any]:
        """Return the figures of a block."""
        median = statistics.median(self.seconds)
        return {
            "stage": self.name,
            "seconds_per_block": median,
            "slowest_over_median": max(self.seconds) / median,
            "gflop_per_block": self.flops / 1e9,
            "gflops": self.flops / median / 1e9,
            "limit_seconds": self.limit_seconds,
            "share_of_limit": self.limit_seconds / median if self.limit_seconds else None,
            "realtime_factor": block_seconds / median,
        }


def plan_bench(pipe: Pipeline, *, blocks: int) -> BenchPlan:
    """Return the sizes of the settings' clip: size and rate, not its length.

    Raises `UsageError` for more blocks than a clip can have.
    """
    video, window = pipe.settings.settings.video, pipe.window
    ratios = pipe.decoder.config.ratios
    warm = -(-window.history_max // window.block) + 1  # blocks until the window is full
    # One more is recorded, and the clip's last, which needs no clean pass, is never reached.
    frames = window.sink + window.block * (warm + blocks + 2)
    if ratios.frames_of(frames) > MAX_FRAMES:
        raise UsageError(
            f"--blocks {blocks}: a clip of {ratios.frames_of(frames)} frames, expected at most "
            f"{MAX_FRAMES}",
            fix="measure fewer blocks, say 20",
        )
    channels = pipe.refiner.config.in_channels
    shape = LatentShape(
        1, channels, frames, video.height // ratios.space, video.width // ratios.space
    )
    return BenchPlan(shape, rate_of(pipe.settings), window.block * ratios.time, warm, blocks)


@torch.no_grad()
def run_bench(pipe: Pipeline, *, blocks: int, repeat: int) -> dict[str, Any]:
    """Measure all stages; return the report.

    blocks: blocks that count a clip; repeat: clips, of whose medians the least counts.
    """
    loaded = _load(pipe)
    plan = plan_bench(pipe, blocks=blocks)
    clips = [_run_clip(pipe, plan, record=number == 0) for number in range(repeat)]
    latency = [first for _, first in clips]
    stages = []
    for rows in zip(*(rows for rows, _ in clips), strict=True):
        best = min(rows, key=lambda r: statistics.median(r.seconds))
        best.flops, best.limit_seconds = rows[0].flops, rows[0].limit_seconds
        stages.append(best.as_dict(plan.block_seconds))
    total = sum(s["seconds_per_block"] for s in stages)
    runtime = pipe.settings.settings.runtime
    return {
        "schema": SCHEMA,
        "status": "done",
        "device": str(pipe.device),
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "latents": list(plan.shape),
        "warm_up_blocks": plan.warm,
        "blocks": blocks,
        "repeat": repeat,
        "block_video_seconds": plan.block_seconds,
        "load_seconds": loaded,
        "stages": stages,
        "seconds_per_block": total,
        "realtime_factor": plan.block_seconds / total,
        "first_chunk_seconds": min(latency),
        "first_chunk_cold_seconds": latency[0],
        "peak_memory_bytes": peak_device_bytes(pipe.device),
        "peak_resident_bytes": peak_resident_bytes(),
        "compile": COMPILED.report(enabled=runtime.compile),
        "changes": list(pipe.notes.changes),
    }


def _load(pipe: Pipeline) -> dict[str, float]:
    """Load the models; return the seconds of each."""
    names = ["refiner", "decoder", *(["stage1"] if _has_stage1(pipe) else [])]
    seconds = {}
    for name in names:
        start = time.perf_counter()
        getattr(pipe, name)
        seconds[name] = time.perf_counter() - start
    return seconds


def _has_stage1(pipe: Pipeline) -> bool:
    return bool(pipe.settings.settings.model.stage1)


class _Clip:
    """One clip of random latents on its way through the stages, one block at a time."""

    def __init__(self, pipe: Pipeline, plan: BenchPlan, path: Path) -> None:
        self._pipe, self._plan = pipe, plan
        generator = torch.Generator().manual_seed(SEED)
        self._draw = partial(torch.randn, generator=generator)
        self._clean: list[Tensor] = []
        self._refined: list[RefinedChunk] = []
        self._frames = np.empty(0)
        self._source = self._stage1() if _has_stage1(pipe) else None
        tokens = pipe.settings.settings.text.max_length
        embeds = self._draw(1, tokens, pipe.refiner.config.caption_channels)
        self._refine = pipe.refine(
            _taken(self._clean), PromptEmbeds(embeds, None), shape=plan.shape
        )
        self._decode = pipe.decode(_taken(self._refined))
        self._written = Event()
        self._writer = self._open(path)
        self.stages: dict[str, Callable[[], None]] = {
            "stage1" if self._source else "draw": self._make,
            "refine": self._refine_block,
            "decode": self._decode_block,
            "encode video": self._write_block,
        }
        if pipe.window.sink:
            self._make(pipe.window.sink)

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()

    def _make(self, frames: int | None = None) -> None:
        """Make the clean latents of a block: by stage 1, or drawn where there is none."""
        if self._source is not None:
            self._clean.append(next(self._source))
            return
        B, C, _, H, W = self._plan.shape
        self._clean.append(self._draw(B, C, frames or self._pipe.window.block, H, W))

    def _refine_block(self) -> None:
        self._refined.append(next(self._refine))

    def _decode_block(self) -> None:
        self._frames = next(self._decode).frames

    def _write_block(self) -> None:
        self._written.clear()
        self._writer.write(self._frames)
        self._written.wait()

    def _open(self, path: Path) -> VideoWriter:
        video, ratios = self._pipe.settings.settings.video, self._pipe.decoder.config.ratios
        settings = VideoSettings(
            width=self._plan.shape.width * ratios.space,
            height=self._plan.shape.height * ratios.space,
            fps=self._plan.fps,
            crf=video.crf,
            encoder=video.encoder,
            encoder_preset=video.encoder_preset,
            frames_per_chunk=self._plan.block_frames,
        )
        return VideoWriter(path, settings, on_chunk=lambda *_: self._written.set())

    def _stage1(self) -> Iterator[Tensor]:
        """Return stage 1's chunks of the clip: frame 0 first, as a run has it."""
        config, shape = self._pipe.stage1.config, self._plan.shape
        L = config.text_length
        caption = Stage1Caption(
            self._draw(1, 1, L, config.text_width), torch.ones(1, L, dtype=torch.int64)
        )
        first = self._draw(1, shape.channels, 1, shape.height, shape.width)
        rays = _StillCamera(config.plucker_channels, shape.height, shape.width)
        made = self._pipe.generate(first, caption, rays, shape=shape)
        return regroup(made, chunk_sizes(shape.frames, self._pipe.window))


class _StillCamera(NamedTuple):
    """Rays of a camera that stands still, without a path: numbers of the right shapes."""

    channels: int
    height: int
    width: int

    def raymap(self, start: int, stop: int) -> Float32:
        """Return `(t, 20)`: the unit pose and plausible intrinsics."""
        pose = np.eye(4, dtype=np.float32).ravel()
        lens = (self.width / 2, self.width / 2, self.width / 2, self.height / 2)
        row = np.concatenate([pose, np.array(lens, np.float32)])
        return np.repeat(row[None], stop - start, axis=0)

    def chunk_plucker(self, start: int, stop: int) -> Float32:
        """Return `(6r, t, H, W)`."""
        size = (self.channels, stop - start, self.height, self.width)
        return np.full(size, 0.1, dtype=np.float32)


def _taken(chunks: list[T]) -> Iterator[T]:
    """Yield what stands in `chunks` whenever it is asked for."""
    while chunks:
        yield chunks.pop(0)


def _run_clip(pipe: Pipeline, plan: BenchPlan, *, record: bool) -> tuple[list[StageRow], float]:
    """Take one clip through the stages; return their rows and the time to the first chunk.

    `record`: one block more finds the work of every stage, and the limit for it.
    """
    clock = partial(now, pipe.device)
    start, first = clock(), 0.0
    with tempfile.TemporaryDirectory(prefix="sanawm-bench-") as folder:
        clip = _Clip(pipe, plan, Path(folder) / "bench.mp4")
        rows = {name: StageRow(name) for name in clip.stages}
        for number in range(plan.warm + plan.blocks):
            for name, work in clip.stages.items():
                before = clock()
                work()
                if number >= plan.warm:
                    rows[name].seconds.append(clock() - before)
            first = first or clock() - start
        for name, work in clip.stages.items() if record else ():
            with RecordCalls() as recorded:
                work()
            rows[name].flops = recorded.flops
            rows[name].limit_seconds = limit_seconds(recorded.calls, pipe.device)
        clip.close()
    rows.pop("draw", None)
    return list(rows.values()), first
