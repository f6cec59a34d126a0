"""Timers and memory. Works without CUDA; imports torch only when asked about a device."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def resident_bytes() -> int:
    """Return the memory this process holds now, bytes (0 where the system does not say)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:  # noqa: PTH123
            return int(f.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def peak_resident_bytes() -> int:
    """Return the most memory this process has ever held, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes() -> tuple[int, int]:
    """Return free and total main memory, bytes; a container's limit counts. 0, 0 if not known."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 0, 0
    rows = dict(line.split(":", 1) for line in text.splitlines())
    free, total = (int(rows[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    try:
        cgroup = Path("/sys/fs/cgroup")
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no limit ("max"), or another system
        return free, total
    return min(free, max(0, limit - used)), min(total, limit)


def capacity_bytes(device: torch.device) -> int:
    """Return the memory of the card, or of the machine on a CPU, bytes; 0 if not known."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return memory_bytes()[1]


def compile_seconds() -> float:
    """Return the seconds that torch's compiler has taken in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0.0
    return float(sum(utils.compilation_time_metrics.get("_compile.compile_inner", ())))


def device_bytes(device: torch.device) -> int:
    """Return the memory in use where the model runs: the card's, or the process's on a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.memory_allocated(device)
    return resident_bytes()


def peak_device_bytes(device: torch.device) -> int:
    """Return the most memory ever in use where the model runs."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()


@dataclass(frozen=True)
class Span:
    """One stretch of work: `stage` on chunk `chunk`, seconds since the run began."""

    stage: str
    chunk: int
    start: float
    stop: float

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return self.stop - self.start


@dataclass
class Timeline:
    """When every stage worked on every chunk."""

    zero: float = field(default_factory=time.monotonic)
    spans: list[Span] = field(default_factory=list)

    def now(self) -> float:
        """Return seconds since the run began."""
        return time.monotonic() - self.zero

    @contextmanager
    def measure(self, stage: str, chunk: int) -> Iterator[None]:
        """Record the enclosed work."""
        start = self.now()
        yield
        self.add(stage, chunk, start, self.now())

    def add(self, stage: str, chunk: int, start: float, stop: float) -> None:
        """Record work measured elsewhere (in another thread, say)."""
        self.spans.append(Span(stage, chunk, start, stop))

    def seconds(self, stage: str) -> float:
        """Return the total time of a stage."""
        return sum(s.seconds for s in self.spans if s.stage == stage)

    def rows(self) -> list[dict[str, object]]:
        """Return the spans for a report, in order of their start."""
        return [
            {
                "stage": s.stage,
                "chunk": s.chunk,
                "start": round(s.start, 4),
                "stop": round(s.stop, 4),
            }
            for s in sorted(self.spans, key=lambda s: (s.start, s.stop))
        ]


def luma_statistics(frames: np.ndarray) -> tuple[float, float]:
    """Return mean and deviation of BT.709 luma (0..255) over every other pixel of `frames`."""
    import numpy as np

    sample = frames[:, ::2, ::2].astype(np.float32)
    luma = sample @ np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
    return round(float(luma.mean()), 3), round(float(luma.std()), 3)
