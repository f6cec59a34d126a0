"""`torch.compile` of small functions: whether it can work here, what it cost, what it gained."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sanawm.notes import Notes

#: Runs of each form when a gain is measured.
RUNS = 5


def can_compile(device: torch.device, notes: Notes) -> bool:
    """Return whether functions can be compiled for `device`; a line says so when they cannot.

    On a CPU torch needs a C++ compiler at run time (`CXX`, else g++ or clang++).
    """
    if device.type != "cpu":
        return True
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    if any(name and shutil.which(name) for name in names):
        return True
    notes.change("--compile: no C++ compiler was found (CXX, g++, clang++); nothing is compiled")
    return False


class _Like(NamedTuple):
    """A tensor's layout, from which one like it can be made."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> Tensor:
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return made.normal_()


def _layout(value: Any) -> Any:
    """Return what describes an argument: tensors by their layout, tuples part by part."""
    if isinstance(value, Tensor):
        return _Like(tuple(value.shape), value.stride(), value.dtype, value.device)
    if isinstance(value, tuple):
        return type(value), tuple(_layout(part) for part in value)
    return value


def _made(layout: Any) -> Any:
    """Return an argument of this layout, filled with random numbers."""
    if isinstance(layout, _Like):
        return layout.make()
    if isinstance(layout, tuple):
        kind, parts = layout
        values = [_made(part) for part in parts]
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    return layout


class Compiled:
    """A compiled function beside its eager form; counts its calls by the layout of what it gets."""

    def __init__(
        self, plain: Callable[..., Any], eager: Callable[..., Any], *, log: CompileLog
    ) -> None:
        self.eager = eager
        self.calls: Counter[Any] = Counter()
        # Not `fullgraph`: beyond the recompile limit the plain function runs as it is, no error.
        self._compiled = torch.compile(plain, dynamic=False, backend=log)

    def __call__(self, *args: Any) -> Any:
        """Do as the plain function does."""
        self.calls[_layout(args)] += 1
        return self._compiled(*args)

    def gains(self) -> Iterator[float]:
        """Yield the seconds that all calls of one layout saved against the eager form."""
        for layout, count in self.calls.items():
            eager, compiled = (_least(f, layout) for f in (self.eager, self._compiled))
            yield count * (eager - compiled)


def _least(function: Callable[..., Any], layout: Any) -> float:
    """Return the least seconds of a call with random arguments."""
    least, args = float("inf"), _made(layout)
    for _ in range(RUNS):
        start = time.perf_counter()
        function(*args)
        least = min(least, time.perf_counter() - start)
    return least


@dataclass
class CompileLog:
    """The back end of all compiled functions of this process: inductor, with its cost noted."""

    inner: str = "inductor"
    graphs: int = 0
    failed: int = 0
    seconds: float = 0.0
    functions: list[Compiled] = field(default_factory=list)

    def __call__(self, graph: Any, inputs: Any) -> Any:
        """Compile one graph; where that fails (a broken C++ compiler), run it as it is."""
        from torch._dynamo import lookup_backend

        start = time.perf_counter()
        try:
            return lookup_backend(self.inner)(graph, inputs)
        except (RuntimeError, OSError):
            self.failed += 1
            return graph.forward
        finally:
            self.graphs += 1
            self.seconds += time.perf_counter() - start

    def function(self, plain: Callable[..., Any], eager: Callable[..., Any]) -> Compiled:
        """Return `plain` compiled at its first call for every layout (about a second each)."""
        import torch._dynamo

        # One small function serves several strides, dtypes and models of a process.
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 64)
        made = Compiled(plain, eager, log=self)
        self.functions.append(made)
        return made

    @torch.no_grad()
    def report(self, *, enabled: bool) -> dict[str, Any]:
        """Return what compiling cost and, measured on the same layouts now, what it gained."""
        used = [f for f in self.functions if f.calls] if enabled else []
        cost = (self.graphs, self.failed, round(self.seconds, 3)) if used else (0, 0, 0.0)
        graphs, failed, seconds = cost
        return {
            "enabled": enabled,
            "graphs": graphs,
            "failed_graphs": failed,
            "seconds": seconds,
            "calls": sum(f.calls.total() for f in used),
            "saved_seconds": round(sum(gain for f in used for gain in f.gains()), 3),
        }


#: Of this process: compiled functions are shared by all models.
COMPILED = CompileLog()
