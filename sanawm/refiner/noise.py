"""Where the refiner's noise comes from: one draw per block, in block order.

Drawn in float32 on the CPU by default, so the same seed gives the same noise on every machine, and
the first blocks of a long run equal those of a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from sanawm.errors import InputError, UsageError
from sanawm.shapes import BlockSpan


class Noise(Protocol):
    """A source of standard normal noise for the blocks of one clip."""

    def draw(self, span: BlockSpan, shape: tuple[int, ...]) -> Tensor:
        """Return noise `(B, C, f, H, W)` for the block `span`; called once a block, in order."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the source, for retrying a block or resuming a run."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a position returned by `state_dict`."""
        ...


class SeededNoise:
    """Draw from one generator seeded once a clip (`device="cpu"`: equal on every machine)."""

    def __init__(self, seed: int, *, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def draw(self, span: BlockSpan, shape: tuple[int, ...]) -> Tensor:
        """Return the next draw, float32 on the generator's device."""
        return torch.randn(shape, generator=self._generator, device=self._generator.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generator's state; raise `UsageError` when `state` is of another source."""
        if "generator" not in state:
            raise UsageError(
                "the saved noise position is not of a seeded generator",
                fix="resume with the noise source of the saved run",
            )
        self._generator.set_state(state["generator"])


class GivenNoise:
    """Serve noise from a tensor or file of the clip's blocks, `(B, C, T - sink, H, W)`."""

    def __init__(self, read: Callable[[int, int], Tensor], *, sink: int) -> None:
        self._read = read
        self._sink = sink

    @classmethod
    def of(cls, eps: Tensor, *, sink: int) -> GivenNoise:
        """Serve slices of a tensor already in memory."""
        return cls(lambda start, stop: eps[:, :, start:stop], sink=sink)

    def draw(self, span: BlockSpan, shape: tuple[int, ...]) -> Tensor:
        """Return the slice of this block; raise `InputError` when its shape is another."""
        eps = self._read(span.start - self._sink, span.stop - self._sink)
        if tuple(eps.shape) != shape:
            raise InputError(
                f"noise for block {span.number} has shape {tuple(eps.shape)}, expected {shape}",
                fix="give noise of shape (B, C, T - sink, H, W) for this clip",
            )
        return eps

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a given tensor has no position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
