"""Packing: one hidden state per layer becomes one wide, normalised row per token.

| quantity | dtype |
|---|---|
| sum, minimum, maximum, range of a layer | that of the states (in bfloat16 the 1e-6 vanishes) |
| mean, difference, quotient, scaling | float32 |
| result | rounded once, to the dtype of the states |

Source: LTX-2's text path. It must run once: diffusers 0.38 and later repeat it inside the
connectors, which is idempotent up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sanawm.errors import UsageError

#: Width of the interval that the values of a layer are spread over.
SPREAD = 8.0
EPS = 1e-6


def pack_states(states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return the states of M layers, each `(B, L, E)`, as one tensor `(B, L, E*M)`.

    mask: `(B, L)`, 1 at valid tokens (they may stand left or right), 0 at padding. Statistics are
    taken over the valid tokens and all channels, for each batch item and layer by itself; padding
    rows of the result are 0. Channel c of layer l lands at `M*c + l`: the layer index is fastest.
    Raises `UsageError` when a batch item has no valid token.
    """
    B, L, E = states[0].shape
    valid = mask.bool().unsqueeze(-1)  # (B, L, 1)
    count = valid.sum(1, keepdim=True)  # (B, 1, 1) tokens
    if not count.all():
        raise UsageError("packing: a prompt without any valid token")
    packed = states[0].new_empty(B, L, E, len(states))
    for layer, state in enumerate(states):
        packed[..., layer] = _normalise(state, valid, count * E)
    return packed.flatten(2)


def _normalise(state: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Return one layer `(B, L, E)` centred and scaled to a range of 8, in float32."""
    total = state.masked_fill(~valid, 0.0).sum((1, 2), keepdim=True)  # (B, 1, 1)
    low = state.masked_fill(~valid, torch.inf).amin((1, 2), keepdim=True)
    high = state.masked_fill(~valid, -torch.inf).amax((1, 2), keepdim=True)
    mean = total.float() / (count + EPS)
    spread = high - low + EPS
    return ((state.float() - mean) / spread.float() * SPREAD).masked_fill(~valid, 0.0)
