"""The bidirectional sampler: a whole clip at once, many Euler steps, classifier-free guidance.

| step | dtype |
|---|---|
| schedule, Euler step | float32 |
| guidance, latents between steps | dtype of the weights |

Source: the public SANA-WM bidirectional pipeline and its flow-matching Euler schedule. The model
is the streaming forward with one chunk and no past.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sanawm.errors import InputError

from .branches import ChunkContext
from .model import Stage1Model, Text

#: Guidance scale and steps of the bidirectional release.
GUIDANCE = 5.0
STEPS = 60


def flow_timesteps(steps: int, *, shift: float) -> Tensor:
    """Return `steps` timesteps from 1000 down and a final 0, float32 `(steps + 1,)`.

    The schedule shifts twice, as the release does: once to find its smallest timestep, once more
    on the evenly spaced ones (60 steps with shift 9.8 end at 87.70).
    """
    smallest = _shifted(torch.tensor(1 / 1000, dtype=torch.float64), shift)
    sigmas = _shifted(torch.linspace(1.0, float(smallest), steps, dtype=torch.float64), shift)
    return torch.cat([sigmas * 1000, torch.zeros(1, dtype=torch.float64)]).float()


def _shifted(sigma: Tensor, shift: float) -> Tensor:
    return shift * sigma / (1 + (shift - 1) * sigma)


def denoise_clip(
    model: Stage1Model,
    noise: Tensor,
    *,
    first_latent: Tensor,
    text: Text,
    negative: Text | None,
    context: ChunkContext,
    timesteps: Tensor,
    guidance: float = GUIDANCE,
) -> Tensor:
    """Return the clean latents `(1, C, T, H, W)` of a clip that begins with `first_latent`.

    noise: `(1, C, T, H, W)`; first_latent: `(1, C, 1, H, W)`, kept as it is; timesteps: descending,
    the last one 0. With `negative` the velocity is `v_n + guidance * (v_p - v_n)`.
    """
    if first_latent.shape != noise[:, :, :1].shape:
        raise InputError(
            f"stage 1: the image latent is {tuple(first_latent.shape)}, "
            f"expected {tuple(noise[:, :, :1].shape)}"
        )
    first = first_latent.to(model.device, model.dtype)
    x = torch.cat([first, noise[:, :, 1:].to(first)], dim=2)
    for now, after in zip(timesteps[:-1].tolist(), timesteps[1:].tolist(), strict=True):
        times = torch.full((1, x.shape[2]), now, device=x.device)
        times[:, 0] = 0
        v = model(x, times, text, context).velocity
        if negative is not None:
            base = model(x, times, negative, context).velocity
            v = base + guidance * (v - base)
        stepped = (x.float() - (now - after) / 1000 * v.float()).to(x.dtype)
        x = torch.cat([first, stepped[:, :, 1:]], dim=2)
    return x
