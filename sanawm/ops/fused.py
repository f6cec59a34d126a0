"""The element-wise work between the matrix products of a transformer block.

Each function is one formula with float32 statistics. Two bodies of each exist behind one switch:

* eager: the forms that are cheapest one call at a time (the table below);
* compiled: the plain formulas in float32 with one rounding at the end, which `torch.compile` turns
  into one loop each. They change no Python state, and products and attention stay outside, so no
  graph depends on the history length.

Single calls on one core (AVX-512, torch 2.13), 660 rows of 1024, feed-forward 4096, ms in
bfloat16; "before" is the form each replaced here. The compiled forms were not timed one by one.

| function | before | eager | what the eager form does |
|---|---|---|---|
| row norm | 0.97 | 0.53 | one reduction, then batch norm with the rows as its channels: one pass that reads and writes the model dtype; bit-equal to scaling |
| norm, modulated | 1.31 | 0.78 | as above, then one `addcmul` in the model dtype (sum of its two parts) |
| norm with a weight | 1.24 | 0.66 | one reduction, the rest in place, in slices of rows that stay in the L2 cache |
| residual and norm, sum and modulated norm | | | eager: one after the other; compiled: the sum is not read again |
| query/key norm and RoPE into the cache | 3.4 | 1.9 | a slice of rows goes through all steps while it is in the L2 cache, one rounding instead of two; the table lies in memory as the keys do; float32: bit-equal |
| RoPE alone (the sink's keys) | 2.01 | 1.9 | in slices of a few heads; bit-equal |
| residual | 0.25 | 0.25 | one `addcmul` |
| GELU | 2.73 | 2.05 | bfloat16: looked up in a table, over its own input; bit-equal |
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import split_heads
from .compiler import COMPILED
from .rope import RopeKind, RopeTable, rotate_into, rotate_slice, rotated_halves

#: tanh-GELU as `x * sigmoid(x (A + B x^2))`, which is the same function.
GELU_A = 2 * math.sqrt(2 / math.pi)
GELU_B = 0.044715 * GELU_A
#: Values that the table GELU looks up at a time, for each thread: their indices stay in the cache.
GELU_VALUES = 1 << 17
#: Values of a slice of rows, for each thread: three float32 copies of it stay in the cache.
ROW_VALUES = 1 << 17


class WideNorm(NamedTuple):
    """An RMS norm of queries or keys over all heads together: `weight` `(N*K,)`, and `eps`."""

    weight: Tensor
    eps: float


class BlockOps(NamedTuple):
    """The element-wise functions of a block.

    norm(x, weight, eps): `x / rms(x)`, times `weight` if given.
    norm_modulate(x, shift, scale1, eps): `norm(x) * scale1 + shift`, with scale1 = 1 + scale.
    residual(x, y, gate): `x + y * gate`.
    residual_norm(x, y, gate, eps): that sum, and its `norm`.
    sum_norm_modulate(x, y, shift, scale1, eps): `x + y`, and its `norm_modulate`.
    gelu(x): the tanh approximation of GELU; `x` may be overwritten.
    rotate_into(out, x, table, kind): RoPE, see `sanawm.ops.rope`.
    norm_rotate_into(out, x, norm, table, kind): norm of x `(B, S, N*K)`, and RoPE into out
    `(B, N, S, K)`.
    Vectors broadcast over rows; x, y and results have the model dtype.
    """

    norm: Callable[[Tensor, Tensor | None, float], Tensor]
    norm_modulate: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    residual: Callable[[Tensor, Tensor, Tensor], Tensor]
    residual_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    sum_norm_modulate: Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    gelu: Callable[[Tensor], Tensor]
    rotate_into: Callable[[Tensor, Tensor, RopeTable, RopeKind], Tensor]
    norm_rotate_into: Callable[[Tensor, Tensor, WideNorm, RopeTable, RopeKind], Tensor]


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if x.device.type != "cpu":  # there torch has one kernel for it
        return F.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), eps)
    if weight is None and x.is_contiguous() and x.numel():
        mean_square = _mean_square(x)
        rows = mean_square.numel()
        y = x.view(1, rows, -1)
        zeros = mean_square.new_zeros(rows)
        y = torch.batch_norm(y, None, None, zeros, mean_square.view(rows), False, 0.0, eps, False)
        return y.view(x.shape)
    if x.dtype == torch.float32:
        y = x * torch.rsqrt(_mean_square(x) + eps)
        return y if weight is None else y.mul_(weight.float())
    out = x.new_empty(x.shape)
    for part in _row_slices(x):
        y = _scaled_copy(x[part], eps)
        out[part] = y if weight is None else y.mul_(weight.float())
    return out


def _scaled_copy(x: Tensor, eps: float) -> Tensor:
    """Return `x / rms(x)` in float32, in steps on one copy of `x`."""
    y = x.to(torch.float32, copy=True)
    return y.mul_(_mean_square(y).add_(eps).rsqrt_())


def _row_slices(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield indices that cut `(B, S, D)` into slices of rows."""
    S, D = x.shape[-2:]
    rows = max(1, ROW_VALUES * torch.get_num_threads() // D)
    for start in range(0, S, rows):
        yield slice(None), slice(start, start + rows)


def _mean_square(x: Tensor) -> Tensor:
    """Return the mean square of every row, float32 `(..., 1)`, by one reduction."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return length.square_().div_(x.shape[-1])


def _norm_modulate(x: Tensor, shift: Tensor, scale1: Tensor, eps: float) -> Tensor:
    return torch.addcmul(shift, _norm(x, None, eps), scale1)


def _residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return torch.addcmul(x, y, gate)


def _residual_norm(x: Tensor, y: Tensor, gate: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = _residual(x, y, gate)
    return x, _norm(x, None, eps)


def _sum_norm_modulate(
    x: Tensor, y: Tensor, shift: Tensor, scale1: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = x + y
    return x, _norm_modulate(x, shift, scale1, eps)


def _gelu(x: Tensor) -> Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        return F.gelu(x, approximate="tanh")
    if not _has_table(x):
        return torch.ops.aten.gelu.out(x, approximate="tanh", out=x)
    # bfloat16 has 65,536 values and the CPU's tanh is slow: half the time, bit-equal.
    bits, values = x.view(torch.uint16).view(-1), x.view(-1)
    step = GELU_VALUES * torch.get_num_threads()
    for part, out in zip(bits.split(step), values.split(step), strict=True):
        torch.index_select(_gelu_table(), 0, part.to(torch.int32), out=out)
    return x


def _has_table(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and x.is_contiguous()


@cache
def _gelu_table() -> Tensor:
    """Return the GELU of every bfloat16 value, ordered by its bits."""
    bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    return F.gelu(bits.view(torch.bfloat16), approximate="tanh")


def _norm_rotate_into(
    out: Tensor, x: Tensor, norm: WideNorm, table: RopeTable, kind: RopeKind
) -> Tensor:
    heads = out.shape[1]
    if x.device.type != "cpu":
        return rotate_into(out, split_heads(_norm(x, norm.weight, norm.eps), heads), table, kind)
    for part in _row_slices(x):
        y = split_heads(_scaled_copy(x[part], norm.eps).mul_(norm.weight), heads)
        # Turned in the keys' order of memory; straight into the cache's order it was slower.
        turned = split_heads(x.new_empty(x[part].shape), heads)
        out[:, :, part[1]] = rotate_slice(turned, y, table.tokens(part[1]), kind)
    return out


EAGER = BlockOps(
    _norm,
    _norm_modulate,
    _residual,
    _residual_norm,
    _sum_norm_modulate,
    _gelu,
    rotate_into,
    _norm_rotate_into,
)


def _scaled(x: Tensor, eps: float) -> Tensor:
    """Return `x / rms(x)` in float32."""
    y = x.float()
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)


def _plain_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = _scaled(x, eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype)


def _plain_norm_modulate(x: Tensor, shift: Tensor, scale1: Tensor, eps: float) -> Tensor:
    return (_scaled(x, eps) * scale1.float() + shift.float()).to(x.dtype)


# The norms below are of the rounded sum: the next layer reads that one too.


def _plain_residual_norm(x: Tensor, y: Tensor, gate: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = _plain_residual(x, y, gate)
    return x, _plain_norm(x, None, eps)


def _plain_sum_norm_modulate(
    x: Tensor, y: Tensor, shift: Tensor, scale1: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = (x.float() + y.float()).to(x.dtype)
    return x, _plain_norm_modulate(x, shift, scale1, eps)


def _plain_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return (x.float() + y.float() * gate.float()).to(x.dtype)


def _plain_gelu(x: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.sigmoid(y * (GELU_A + GELU_B * y * y))).to(x.dtype)


def _plain_norm_rotate_into(
    out: Tensor, x: Tensor, norm: WideNorm, table: RopeTable, kind: RopeKind
) -> Tensor:
    y = _scaled(x, norm.eps) * norm.weight.float()
    return _plain_rotate_into(out, split_heads(y, out.shape[1]), table, kind)


def _plain_rotate_into(out: Tensor, x: Tensor, table: RopeTable, kind: RopeKind) -> Tensor:
    a, b = rotated_halves(x, table, kind)
    pair = (a, b) if kind == "split" else (a.unsqueeze(-1), b.unsqueeze(-1))
    joined = torch.cat(pair, dim=-1)
    return out.copy_(joined if kind == "split" else joined.flatten(-2))


PLAIN = BlockOps(
    _plain_norm,
    _plain_norm_modulate,
    _plain_residual,
    _plain_residual_norm,
    _plain_sum_norm_modulate,
    _plain_gelu,
    _plain_rotate_into,
    _plain_norm_rotate_into,
)


@cache
def compiled_ops() -> BlockOps:
    """Return the compiled functions; each compiles at its first call (about a second)."""
    pairs = ((getattr(PLAIN, name), getattr(EAGER, name)) for name in BlockOps._fields)
    ops = BlockOps(*(COMPILED.function(plain, eager) for plain, eager in pairs))

    def gelu(x: Tensor) -> Tensor:  # the table beats the compiled form, 2.4 against 3.0 ms
        return _gelu(x) if _has_table(x) else ops.gelu(x)

    return ops._replace(gelu=gelu)
