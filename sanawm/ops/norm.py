"""Norms and modulation.

| step | dtype |
|---|---|
| mean of squares, reciprocal root, product with x | float32 |
| `rms_norm` with `weight` (query/key norms) | weight product in float32, one rounding at the end |
| `block_norm` with `weight` | rounded to the weight's 16-bit dtype first, then multiplied |
| `modulate`, `gated_add` | the dtype of x, one rounding per elementary operation |
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, *, eps: float, weight: Tensor | None = None) -> Tensor:
    """Return `x / rms(x)` over the last axis, times `weight` in float32, in the dtype of `x`."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)


def block_norm(x: Tensor, *, eps: float, weight: Tensor | None = None) -> Tensor:
    """Return `x / rms(x)` rounded to the dtype of `x`, then times `weight` if there is one."""
    y = rms_norm(x, eps=eps)
    return y if weight is None else y.to(weight.dtype) * weight


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return `x * (1 + scale) + shift` (AdaLN)."""
    return x * (1 + scale) + shift


def gated_add(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """Return the residual sum `x + update * gate`."""
    return x + update * gate
