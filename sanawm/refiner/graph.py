"""A pass of the full window as one CUDA graph (`--cuda-graph`).

A pass makes thousands of launches; a graph replays them as one (no card was there to measure what
that saves). It needs fixed addresses, and the steady state has them: the cache's buffers
never move, the window is full, text and vectors of a sigma stay where they are. Only the block's
tokens and its RoPE table are copied in. There is a graph for every sigma and for the clean pass,
all in one memory pool. A replay runs the same kernels as the pass that was recorded: equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sanawm.ops.rope import RopeTable

from .cache import CachePass

Work = Callable[[Tensor, RopeTable], Tensor | None]


class Recorded(NamedTuple):
    """Work that can be repeated on the same memory: how, and where its result then lies."""

    replay: Callable[[], None]
    output: Tensor | None


#: Records work without running it.
Recorder = Callable[[Callable[[], Tensor | None]], Recorded]


def cuda_recorder() -> Recorder:
    """Return a recorder of CUDA graphs that share one memory pool."""
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], Tensor | None]) -> Recorded:
        graph = torch.cuda.CUDAGraph()
        # Other threads (decode, stage 1) go on using the card meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            output = work()
        return Recorded(graph.replay, output)

    return record


class PassGraphs:
    """Runs the passes of one stream, the steady ones by replaying a recording."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._record = recorder or cuda_recorder()
        self._tokens: Tensor | None = None
        self._rope: RopeTable | None = None
        self._met: set[object] = set()
        self._recorded: dict[object, Recorded] = {}

    @property
    def count(self) -> int:
        """Number of recordings."""
        return len(self._recorded)

    def __call__(
        self, work: Work, tokens: Tensor, rope: RopeTable, *, key: object, running: CachePass
    ) -> Tensor | None:
        """Return `work(tokens, rope)`; `key` tells passes apart that differ in anything else."""
        if not running.steady:
            return work(tokens, rope)
        if key not in self._met:  # libraries set themselves up in a first run, outside of a graph
            self._met.add(key)
            return work(tokens, rope)
        static_tokens, static_rope = self._copied(tokens, rope)
        if key not in self._recorded:
            self._recorded[key] = self._record(lambda: work(static_tokens, static_rope))
        recorded = self._recorded[key]
        recorded.replay()
        running.mark_written()
        return recorded.output

    def _copied(self, tokens: Tensor, rope: RopeTable) -> tuple[Tensor, RopeTable]:
        """Copy a pass's inputs to where the graphs read them."""
        if self._tokens is None or self._rope is None:
            self._tokens = torch.empty_like(tokens)
            self._rope = RopeTable(torch.empty_like(rope.cos), torch.empty_like(rope.sin))
        self._tokens.copy_(tokens)
        self._rope.cos.copy_(rope.cos)
        self._rope.sin.copy_(rope.sin)
        return self._tokens, self._rope
