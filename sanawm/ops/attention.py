"""Scaled dot-product attention: one signature, whatever back end computes it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """Return `softmax(q k^T / sqrt(K) + bias) v`.

    q: `(B, N, S, K)`; k, v: `(B, N, P, K)`, any strides with a contiguous last axis;
    bias: broadcastable to `(B, N, S, P)`, or None. Result `(B, N, S, K)`.
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return `(B, S, N*K)` as `(B, N, S, K)`: heads are consecutive slices of the width."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Return `(B, N, S, K)` as `(B, S, N*K)`."""
    return x.transpose(1, 2).flatten(2)
