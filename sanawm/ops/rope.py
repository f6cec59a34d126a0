"""Rotary position embedding (RoPE): tables at absolute positions, and their application.

| quantity | dtype |
|---|---|
| frequencies | float64 or float32 (`double`), then float32 |
| positions, angles, cos, sin | float32, in the order of operations written here |
| rotation | float32, result rounded back to the dtype of its input |

Angles reach 1e5 rad, where float32 is spaced 8e-3 rad apart: the order of the float32 operations
decides the table, so it is part of the definition (source: LTX-2's positional embedding).

A table holds one angle per *pair* of channels, `(N, S, K/2)`; in memory the tokens come first, as
in the projected keys that it meets. The two kinds differ only in which channels form a pair:
`split` pairs element i with i + K/2 of a head, `interleaved` pairs 2i with 2i + 1.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sanawm.errors import UsageError

RopeKind = Literal["split", "interleaved"]
ROPE_KINDS = ("split", "interleaved")
#: Heads that are rotated at a time, for each thread.
SLICE_HEADS = 4


class RopeTable(NamedTuple):
    """Cosines and sines of the angles of S tokens, each `(N, S, K/2)` float32."""

    cos: Tensor
    sin: Tensor

    def tokens(self, part: slice) -> RopeTable:
        """Return the table of some of the tokens, as a view."""
        return RopeTable(self.cos[:, part], self.sin[:, part])

    def to(self, device: torch.device | str) -> RopeTable:
        """Return the table on `device`."""
        return RopeTable(self.cos.to(device), self.sin.to(device))


def check_rope_kind(kind: str, *, where: str) -> None:
    """Raise `UsageError` unless `kind` is one of the two pairings."""
    if kind not in ROPE_KINDS:
        raise UsageError(
            f"{where}: rope_type {kind!r} is unknown; expected 'split' or 'interleaved'"
        )


def frequencies(count: int, *, theta: float, double: bool) -> Tensor:
    """Return `count` angular frequencies `(pi/2) * theta^(j/(count-1))`, float32 `(count,)`."""
    dtype = torch.float64 if double else torch.float32
    exponents = torch.linspace(0.0, 1.0, count, dtype=dtype)
    return (torch.pow(torch.tensor(theta, dtype=dtype), exponents) * math.pi / 2.0).float()


def table_from_fractions(fractions: Tensor, freqs: Tensor, *, heads: int, width: int) -> RopeTable:
    """Return the table of S tokens at positions given as fractions of the trained range.

    fractions: `(S, A)` float32, one column per axis; they may exceed 1.
    freqs: `(n,)` float32, with `A * n <= width / 2`; pairs left over do not rotate and come first.
    """
    angles = (fractions * 2 - 1).unsqueeze(1) * freqs.view(1, -1, 1)  # (S, n, A): axis fastest
    angles = angles.flatten(1)  # (S, n*A)
    still = width // 2 - angles.shape[1]
    cos = torch.nn.functional.pad(angles.cos(), (still, 0), value=1.0)  # (S, width/2)
    sin = torch.nn.functional.pad(angles.sin(), (still, 0), value=0.0)
    return RopeTable(*(t.unflatten(1, (heads, -1)).transpose(0, 1) for t in (cos, sin)))


def apply_rope(x: Tensor, table: RopeTable, kind: RopeKind) -> Tensor:
    """Return `x` `(B, N, S, K)` rotated by `table`, in the dtype of `x`."""
    return rotate_into(torch.empty_like(x), x, table, kind)


def rotate_into(out: Tensor, x: Tensor, table: RopeTable, kind: RopeKind) -> Tensor:
    """Write `x` `(B, N, S, K)` rotated by `table` into `out` (same shape, any strides).

    On a CPU in slices of a few heads, so that their float32 values stay in its cache.
    """
    heads = x.shape[1]
    step = SLICE_HEADS * torch.get_num_threads() if x.device.type == "cpu" else heads
    for h in range(0, heads, step):
        part = slice(h, h + step)
        rotate_slice(out[:, part], x[:, part], RopeTable(table.cos[part], table.sin[part]), kind)
    return out


def rotate_slice(out: Tensor, x: Tensor, table: RopeTable, kind: RopeKind) -> Tensor:
    """Do as `rotate_into`, in one piece."""
    for half, values in zip(halves(out, kind), rotated_halves(x, table, kind), strict=True):
        half.copy_(values)
    return out


def rotated_halves(x: Tensor, table: RopeTable, kind: RopeKind) -> tuple[Tensor, Tensor]:
    """Return first and second elements of every rotated pair, float32 `(B, N, S, K/2)` each."""
    u, v = halves(x.float(), kind)
    return (u * table.cos).sub_(v * table.sin), (v * table.cos).add_(u * table.sin)


def halves(x: Tensor, kind: RopeKind) -> tuple[Tensor, Tensor]:
    """Return views of the first and of the second elements of every pair."""
    if kind == "split":
        first, second = x.chunk(2, dim=-1)
    else:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return first, second
