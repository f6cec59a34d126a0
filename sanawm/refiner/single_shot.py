"""Single-shot mode: the whole clip in one sequence, no cache.

Sink tokens stay clean (timestep 0) and attend only to each other; all other tokens attend to
everything. Memory grows with the clip: this is the mode of the non-streaming release.
Source: the authors' single-shot refiner. Noise is mixed in float32, as in the chunk runner.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sanawm.errors import NumericsError, UsageError
from sanawm.shapes import BlockSpan, LatentShape, check_fps

from .model import Modulation, RefinerModel, TextContext
from .noise import Noise
from .positions import RopeBuilder
from .sampler import (
    SigmaSchedule,
    euler_update,
    from_tokens,
    mix_noise,
    predict_clean,
    to_tokens,
)
from .stream import StepObserver


@torch.no_grad()
def refine_single_shot(
    model: RefinerModel,
    text: TextContext,
    latents: Tensor,
    *,
    sink: int,
    fps: float,
    sigmas: Sequence[float],
    noise: Noise,
    observe: StepObserver | None = None,
) -> Tensor:
    """Return the refined clip `(B, C, T, H, W)`; its first `sink` frames equal the input's.

    latents: clean clip `(B, C, T, H, W)`, T > sink >= 0. Noise is drawn once, for frames
    sink..T-1. Raises `UsageError` for another shape, sink, sigma list or frame rate.
    """
    if latents.ndim != 5 or latents.shape[1] != model.config.in_channels:
        raise UsageError(
            f"latents have shape {tuple(latents.shape)}; "
            f"this refiner expects (B, {model.config.in_channels}, T, H, W)"
        )
    check_fps(fps)
    shape = LatentShape(*latents.shape)
    if sink < 0:
        raise UsageError(f"sink size {sink} is negative", fix="use --sink-size 0 or more")
    if shape.frames <= sink:
        raise UsageError(
            f"a clip of {shape.frames} latent frames has nothing to refine after a sink of {sink}",
            fix=f"give at least {sink + 1} latent frames",
        )
    schedule = SigmaSchedule(sigmas)
    text = text.expand(shape.batch)
    clip = latents.to(model.device, model.dtype)
    rope = RopeBuilder(
        model.config, height=shape.height, width=shape.width, fps=fps, device=model.device
    ).build(range(shape.frames))
    context = sink * shape.tokens_per_frame
    fixed, clean = to_tokens(clip[:, :, :sink]), clip[:, :, sink:]
    eps = noise.draw(BlockSpan(0, sink, shape.frames), tuple(clean.shape))
    x = to_tokens(mix_noise(clean, eps.to(clip.device, clip.dtype), sigma=schedule.sigmas[0]))
    for number, step in enumerate(schedule.steps):
        modulation = _split_modulation(model, schedule, step.sigma, context, x.shape[1])
        tokens = torch.cat((fixed, x), dim=1)
        velocity = model(tokens, text, modulation, rope, context_tokens=context)[:, context:]
        x0 = predict_clean(x, velocity, sigma=step.sigma)
        x = euler_update(x, x0, step)
        if observe is not None:
            observe(number, x0, x)
    if not bool(torch.isfinite(x).all()):
        raise NumericsError("refiner: the clip came out with NaN or infinity (single-shot mode)")
    refined = from_tokens(x, frames=shape.frames - sink, height=shape.height, width=shape.width)
    return torch.cat((clip[:, :, :sink], refined), dim=2)


def _split_modulation(
    model: RefinerModel, schedule: SigmaSchedule, sigma: float, context: int, rest: int
) -> Modulation:
    """Return modulation rows for `context` tokens at timestep 0 and `rest` tokens at `sigma`."""
    multiplier = model.config.timestep_scale_multiplier
    times = torch.stack([schedule.timestep(s, multiplier=multiplier) for s in (0.0, sigma)])
    two = model.modulation(times.unsqueeze(0))  # (1, 2, ...)
    counts = torch.tensor([context, rest], device=model.device)
    return Modulation(
        two.rows.repeat_interleave(counts, dim=1), two.embedded.repeat_interleave(counts, dim=1)
    )
