"""CUDA streams for stages on threads, and copies to main memory. On a CPU it all does nothing.

Stages that overlap on one card need a stream each: threads alone share the default stream, where
everything runs in a row. A stage hands a chunk on once an event says that it is done, so its
consumer never reads too early; and the consumer tells the allocator that it uses the chunk, so its
memory is not given away while the consumer's kernels still read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


class StageStream:
    """The stream of one stage on `device`; without CUDA all methods return at once."""

    def __init__(self, device: torch.device | None) -> None:
        on_card = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_card else None

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which the stage's work goes to its stream (of this thread)."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def finish(self) -> None:
        """Wait for what the stage has queued: an event, not the whole device."""
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record(self._stream)
            event.synchronize()


def adopt(item: Any) -> None:
    """Tell the allocator that this thread's stream uses the tensors of a chunk from another."""
    for tensor in _tensors(item):
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _tensors(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif is_dataclass(item):
        for entry in fields(item):
            yield from _tensors(getattr(item, entry.name))


def to_host(tensor: Tensor) -> Tensor:
    """Return `tensor` in main memory: from a card by one copy into pinned memory and an event."""
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    event.synchronize()
    return pinned
