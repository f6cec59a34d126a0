"""The refiner's noise in a run: seeded or from a file, and saved on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .io.latent_writer import save_tensors
from .io.latents import NoiseSource
from .pipeline import Pipeline
from .plan import Plan
from .refiner.noise import GivenNoise, Noise
from .shapes import BlockSpan


def run_noise(plan: Plan, pipeline: Pipeline, *, drawn: list[Tensor], done: int) -> Noise:
    """Return the noise of a run; with `--save-noise` every draw is put into `drawn`.

    A continued run draws the noise of its `done` blocks once more, so that all can be saved.
    """
    path = plan.settings.settings.input.noise
    if path:
        sink = plan.window.sink
        source = NoiseSource.open(Path(path), shape=plan.shape, first=sink)
        noise: Noise = GivenNoise(source.frames, sink=sink)
    else:
        noise = pipeline.noise()
    if plan.outputs.save_noise is None:
        return noise
    recorded = RecordedNoise(noise, drawn)
    for span in plan.blocks[:done]:
        recorded.draw(span, tuple(plan.shape._replace(frames=span.frames)))
    return recorded


def save_noise(plan: Plan, drawn: list[Tensor]) -> None:
    """Write the noise of all blocks, `eps` `(B, C, T - sink, H, W)`, if the run asked for it."""
    target = plan.outputs.save_noise
    if target is None or not drawn:
        return
    eps = torch.cat([n.cpu() for n in drawn], dim=2).contiguous()
    save_tensors(target, {"eps": eps}, {}, overwrite=plan.outputs.replace_sides)


class RecordedNoise:
    """Noise that remembers what it drew, for `--save-noise`."""

    def __init__(self, noise: Noise, drawn: list[Tensor]) -> None:
        self._noise = noise
        self._drawn = drawn

    def draw(self, span: BlockSpan, shape: tuple[int, ...]) -> Tensor:
        """Draw as the wrapped source does, and remember it."""
        eps = self._noise.draw(span, shape)
        self._drawn.append(eps)
        return eps

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the wrapped source."""
        return {**self._noise.state_dict(), "recorded": len(self._drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a position, forgetting what was drawn after it."""
        self._noise.load_state_dict(state)
        del self._drawn[state.get("recorded", len(self._drawn)) :]
