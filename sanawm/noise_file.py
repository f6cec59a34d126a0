"""The refiner's noise in a run: seeded or from a file, and handed on to be saved on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .io.latents import NoiseSource
from .pipeline import Pipeline
from .plan import Plan
from .refiner.noise import GivenNoise, Noise
from .shapes import BlockSpan


def noise_source(plan: Plan) -> NoiseSource | None:
    """Return the noise file of a run, if it has one."""
    path = plan.settings.settings.input.noise
    return NoiseSource.open(path, shape=plan.shape, first=plan.window.sink) if path else None


def noise_dtype(plan: Plan) -> torch.dtype:
    """Return the dtype in which the noise is drawn, and saved: the file's, float32 if seeded."""
    source = noise_source(plan)
    dtype: torch.dtype = torch.float32 if source is None else getattr(torch, source.dtype)
    return dtype


def run_noise(plan: Plan, pipeline: Pipeline, *, write: Callable[[int, Tensor], None]) -> Noise:
    """Return the noise of a run; with `--save-noise` every draw is handed to `write`.

    `write` takes the latent frame from which on the noise is, counted without the sink.
    """
    source = noise_source(plan)
    noise: Noise = pipeline.noise()
    if source is not None:
        noise = GivenNoise(source.frames, sink=plan.window.sink)
    if plan.outputs.save_noise is None:
        return noise
    return RecordedNoise(noise, write, sink=plan.window.sink)


class RecordedNoise:
    """Noise of which every draw is written, for `--save-noise`. Nothing of it is held."""

    def __init__(self, noise: Noise, write: Callable[[int, Tensor], None], *, sink: int) -> None:
        self._noise = noise
        self._write = write
        self._sink = sink

    def draw(self, span: BlockSpan, shape: tuple[int, ...]) -> Tensor:
        """Draw as the wrapped source does, and write it; a block drawn again replaces itself."""
        eps = self._noise.draw(span, shape)
        self._write(span.start - self._sink, eps)
        return eps

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the wrapped source."""
        return self._noise.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a position of the wrapped source."""
        self._noise.load_state_dict(state)
