"""The distilled Euler walk from noise to a refined block.

| quantity | dtype |
|---|---|
| sigmas, their ratios, scaled timesteps | float32 |
| mixing, x0, Euler update | float32, each rounded to the model dtype |

x0 is rounded *before* the Euler update. Source: the authors' chunk runner
(`x <- r x + (1 - r) x0` with `r = sigma' / sigma`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sanawm.schedules import check_sigmas

#: At or below this sigma the predicted clean block is taken as it is.
TINY_SIGMA = 1e-6


class EulerStep(NamedTuple):
    """One step: from `sigma`, keeping the share `ratio` of the noisy block (both float32)."""

    sigma: float
    ratio: float


class SigmaSchedule:
    """A checked sigma list, rounded to float32: one `EulerStep` per denoising pass."""

    def __init__(self, sigmas: Sequence[float]) -> None:
        exact = torch.tensor(check_sigmas(sigmas), dtype=torch.float32)
        self.sigmas: tuple[float, ...] = tuple(exact.tolist())
        ratios = (exact[1:] / exact[:-1]).tolist()
        self.steps = tuple(
            EulerStep(s, 0.0 if s <= TINY_SIGMA else r)
            for s, r in zip(self.sigmas[:-1], ratios, strict=True)
        )

    def timestep(self, sigma: float, *, multiplier: float) -> Tensor:
        """Return the scaled timestep `sigma * multiplier` as a float32 scalar."""
        return torch.tensor(sigma, dtype=torch.float32) * multiplier


def mix_noise(clean: Tensor, noise: Tensor, *, sigma: float) -> Tensor:
    """Return `(1 - sigma) clean + sigma noise` in float32, in the dtype of `clean`."""
    s = torch.tensor(sigma, dtype=torch.float32)
    return ((1 - s) * clean.float() + s * noise.float()).to(clean.dtype)


def predict_clean(x: Tensor, velocity: Tensor, *, sigma: float) -> Tensor:
    """Return `x0 = x - sigma v` in float32, in the dtype of `x`."""
    return (x.float() - sigma * velocity.float()).to(x.dtype)


def euler_update(x: Tensor, x0: Tensor, step: EulerStep) -> Tensor:
    """Return `r x + (1 - r) x0` in float32, in the dtype of `x`; exactly `x0` at the last step."""
    r = torch.tensor(step.ratio, dtype=torch.float32)
    return (r * x.float() + (1 - r) * x0.float()).to(x.dtype)


def to_tokens(latents: Tensor) -> Tensor:
    """Return latents `(B, C, T, H, W)` as tokens `(B, T*H*W, C)`, time slowest, width fastest."""
    return latents.flatten(2).transpose(1, 2)


def from_tokens(tokens: Tensor, *, frames: int, height: int, width: int) -> Tensor:
    """Return tokens `(B, T*H*W, C)` as latents `(B, C, T, H, W)`."""
    return tokens.transpose(1, 2).unflatten(2, (frames, height, width)).contiguous()
