"""Chunk spans, attention window and step list of the stage-1 stream. Imports no torch.

Source: the public streaming sampler of SANA-WM.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, SupportsIndex

from sanawm.errors import UsageError
from sanawm.shapes import BlockSpan

from .config import Stage1Config

#: Timesteps of the released streaming weights (distilled to four steps).
RELEASED_STEPS = (1000.0, 960.0, 889.0, 727.0, 0.0)


class ChunkWindow(NamedTuple):
    """Which earlier chunks softmax attention sees: `cached` of them, `sink` keeps chunk 0 inside.

    `cached <= 0` means all of them; the state then grows with the clip.
    """

    cached: int = 2
    sink: bool = True

    def seen_by(self, chunk: int) -> list[int]:
        """Return the earlier chunks that chunk `chunk` (from 0) sees, ascending.

        The sink counts inside the `cached` chunks: with 2 and a sink, chunk 4 sees [0, 3].
        """
        if self.cached <= 0:
            return list(range(chunk))
        if self.sink and chunk - self.cached + 1 > 0:
            return [0, *range(chunk - self.cached + 1, chunk)]
        return list(range(max(chunk - self.cached, 0), chunk))

    def kept_after(self, chunk: int) -> list[int]:
        """Return the chunks whose keys a later chunk can still see once `chunk` is done."""
        return self.seen_by(chunk + 1)


def check_chunk_window(window: ChunkWindow) -> str | None:
    """Raise `UsageError` for a window that cannot work; return a warning line for a doubtful one.

    One cached chunk with a sink would leave no place for the chunk just before.
    """
    if window.cached == 1 and window.sink:
        raise UsageError(
            "num_cached_blocks 1 with a sink leaves no room for the previous chunk",
            fix="use --num-cached-blocks 2 or more, or --no-sink-token",
        )
    if window.cached <= 0:
        return (
            f"num_cached_blocks {window.cached} keeps the keys of every chunk: "
            "stage 1's memory grows with the clip"
        )
    return None


def plan_chunks(latent_frames: int, chunk: int) -> list[BlockSpan]:
    """Return the chunks of a clip: the first takes the remainder, 31 frames give 4, 3, 3, ….

    Raises `UsageError` unless the clip is longer than one chunk.
    """
    if latent_frames <= chunk:
        raise UsageError(
            f"a clip of {latent_frames} latent frames cannot be streamed in chunks of {chunk}: "
            f"at least {chunk + 1} are needed",
            fix="ask for more frames",
        )
    borders = [0, *range(chunk + latent_frames % chunk, latent_frames + 1, chunk)]
    return [BlockSpan(i, a, b) for i, (a, b) in enumerate(pairwise(borders))]


class ChunkPlan(Protocol):
    """The chunks of a clip in order: a list from `plan_chunks`, or `OpenChunks`."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: SupportsIndex, /) -> BlockSpan: ...


class OpenChunks:
    """The chunks of a clip whose end is not known: chunk + 1 latent frames, then `chunk` each.

    They are those of every clip of `chunk * k + 1` latent frames. There is no last one: `len` is
    the largest that Python knows.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, number: SupportsIndex, /) -> BlockSpan:
        index = int(number)
        stop = self._chunk * (index + 1) + 1
        return BlockSpan(index, stop - self._chunk if index else 0, stop)


def chunk_plan(latent_frames: int, chunk: int, *, open_ended: bool) -> ChunkPlan:
    """Return the chunks of a clip of `latent_frames`, or of one without an end."""
    return OpenChunks(chunk) if open_ended else plan_chunks(latent_frames, chunk)


def check_chunk_size(chunk: int, config: Stage1Config) -> None:
    """Raise `UsageError` unless the checkpoint was trained for chunks of `chunk` latent frames."""
    if config.chunk_size is None:
        raise UsageError(
            "these stage-1 weights are bidirectional: they denoise a whole clip at once and "
            "cannot stream",
            fix="use the streaming release, or a config with its chunk_size",
        )
    if chunk != config.chunk_size:
        raise UsageError(
            f"num_frame_per_block {chunk} differs from the checkpoint's chunk size "
            f"{config.chunk_size}",
            fix=f"use --num-frame-per-block {config.chunk_size}",
        )


def check_steps(steps: Iterable[float]) -> tuple[float, ...]:
    """Return the timesteps as floats; raise `UsageError` unless they can be walked.

    Rules: at least two, each in [0, 1000], strictly descending, the last one 0.
    """
    values = tuple(float(t) for t in steps)
    shown = ",".join(f"{t:g}" for t in values)
    if len(values) < 2 or values[-1] != 0:
        raise UsageError(
            f"denoising step list [{shown}]: expected two or more timesteps, the last one 0",
            fix=f"the release uses {_shown(RELEASED_STEPS)}",
        )
    falling = all(a > b for a, b in pairwise(values))
    if not falling or not 0 < values[0] <= 1000:
        raise UsageError(
            f"denoising step list [{shown}]: expected descending timesteps within 1000 … 0",
            fix=f"the release uses {_shown(RELEASED_STEPS)}",
        )
    return values


def _shown(steps: Sequence[float]) -> str:
    return ",".join(f"{t:g}" for t in steps)
