"""How the stages of a run share time: in a row, or overlapped on threads.

Both give equal results: every stage works on its chunks in order, with the same number of
intra-op threads, and no stage shares state with another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, Generic, TypeVar

import torch

from .measure import Timeline, resident_bytes
from .notes import Notes
from .streams import StageStream, adopt

T = TypeVar("T")

#: Chunks that may wait between two stages.
DEPTH = 1
_POLL = 0.1


class StageThread(Iterator[T], Generic[T]):
    """Run an iterator in a thread of its own, at most `depth` items ahead of its consumer.

    On a card (`device`) its work goes to a stream of its own.
    An exception in the thread is raised by `next`, at the place in the order where it happened.
    `close` stops the thread after the item in hand.
    """

    def __init__(
        self,
        items: Iterator[T],
        *,
        name: str,
        depth: int = DEPTH,
        device: torch.device | None = None,
    ) -> None:
        self._items = items
        self._stream = StageStream(device)
        self._queue: Queue[tuple[str, T | BaseException | None]] = Queue(maxsize=depth)
        self._stop = Event()
        self._over = False
        self._threads = torch.get_num_threads()
        self._thread = Thread(target=self._work, name=f"sanawm-{name}", daemon=True)
        self._thread.start()

    def __next__(self) -> T:
        """Return the next item."""
        if self._over:
            raise StopIteration
        while True:
            try:
                kind, item = self._queue.get(timeout=_POLL)
                break
            except Empty:
                if self._stop.is_set():
                    raise StopIteration from None
        if kind == "item":
            adopt(item)
            return item  # type: ignore[return-value]
        self._over = True
        self._thread.join()
        if isinstance(item, BaseException):
            raise item
        raise StopIteration

    def close(self, *, wait: bool = True) -> None:
        """Stop the thread, and wait for the item in hand unless told not to."""
        self._stop.set()
        self._over = True
        if wait:
            self._thread.join()

    def _work(self) -> None:
        # OpenMP keeps the thread count per thread: without this line the stage would run with
        # another number of threads, and so sum in another order.
        torch.set_num_threads(self._threads)
        try:
            with self._stream.current():
                for item in self._items:
                    self._stream.finish()
                    if not self._put(("item", item)):
                        return
            self._put(("end", None))
        except BaseException as e:
            self._put(("end", e))

    def _put(self, entry: tuple[str, T | BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=_POLL)
                return True
            except Full:
                continue
        return False


class Residency:
    """Where a stage's model is: always on its device (this class), or there only to work."""

    def enter(self) -> None:
        """Bring the model to the device."""

    def leave(self) -> None:
        """Take the model off the device."""


class Offloaded(Residency):
    """Keep a model in main memory and bring it to the device for each chunk."""

    def __init__(self, model: Callable[[], torch.nn.Module], device: torch.device) -> None:
        self._model = model
        self._device = device
        self.moves = 0

    def enter(self) -> None:
        """Bring the model to the device."""
        self._move(self._device)

    def leave(self) -> None:
        """Take the model back to main memory."""
        self._move(torch.device("cpu"))

    def _move(self, device: torch.device) -> None:
        self.moves += 1
        model = self._model()
        if next(model.parameters()).device != device:
            model.to(device)


class Stage:
    """One stage of a chain: measures its work, and keeps its model on the device only meanwhile.

    `feed` wraps what the stage reads and `work` what it yields. A span runs from the arrival of
    the input to the output, so waiting for the stage before is not counted.
    """

    def __init__(
        self,
        name: str,
        timeline: Timeline,
        *,
        residency: Residency | None = None,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        self.name = name
        self.peak_bytes = 0
        self._timeline = timeline
        self._residency = residency or Residency()
        self._memory = memory
        self._began = 0.0

    def feed(self, items: Iterator[T]) -> Iterator[T]:
        """Pass the stage's input on; the model is away while the stage before works."""
        while True:
            self._residency.leave()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._residency.enter()
                self._began = self._timeline.now()
            yield item

    def work(self, items: Iterator[T], *, first: int = 0) -> Iterator[T]:
        """Pass the stage's output on, recording a span for each; numbers start at `first`."""
        number = first
        while True:
            self._residency.enter()
            self._began = self._timeline.now()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.peak_bytes = max(self.peak_bytes, self._memory())
                self._residency.leave()
            self._timeline.add(self.name, number, self._began, self._timeline.now())
            number += 1
            yield item


def in_turn(items: Iterator[T], name: str) -> Iterator[T]:
    """Schedule a stage in a row with the others: it works when its consumer asks."""
    return items


#: How a stage joins the chain: given its iterator and its name.
Join = Callable[[Iterator[T], str], Iterator[T]]


class Overlap:
    """Schedule stages on threads, and stop them all at the end."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._threads: list[StageThread[object]] = []

    def __call__(self, items: Iterator[T], name: str) -> Iterator[T]:
        """Run a stage in its own thread."""
        thread = StageThread(items, name=name, device=self._device)
        self._threads.append(thread)  # type: ignore[arg-type]
        return thread

    def close(self, *, wait: bool = True) -> None:
        """Stop every stage, the last in the chain first."""
        for thread in reversed(self._threads):
            thread.close(wait=wait)
        self._threads.clear()


def overlaps(schedule: str, device: torch.device) -> bool:
    """Tell whether `schedule` (auto, sequential, overlap) uses threads on `device`.

    `auto` overlaps on an accelerator; on a CPU the stages would only share the same cores.
    """
    return schedule == "overlap" or (schedule == "auto" and device.type == "cuda")


def join_stages(
    schedule: str, offload: str, device: torch.device, *, stack: ExitStack, notes: Notes
) -> tuple[Join[Any], str]:
    """Return how stages are chained (in a row, or each on a thread of `stack`), and its name."""
    overlap = overlaps(schedule, device)
    if overlap and offload == "all":
        notes.change("offload all keeps one model on the device at a time: the stages run in a row")
        overlap = False
    if not overlap:
        return in_turn, "sequential"
    threads = Overlap(device)
    # Whoever interrupts twice does not want to wait for the blocks in hand.
    stack.push(lambda kind, *_: threads.close(wait=kind is not KeyboardInterrupt))
    return threads, "overlap"
