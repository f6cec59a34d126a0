"""The parts of the refiner transformer: vectors of a timestep, norms, attention, embeddings.

See `model` for the dtypes and the sources. Parameter names are those of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.errors import UsageError
from sanawm.ops.attention import merge_heads, split_heads
from sanawm.ops.fused import EAGER, BlockOps, WideNorm
from sanawm.ops.linear import JoinedLinear, Linear

from .config import RefinerConfig

#: Width of the sinusoidal timestep embedding (fixed by the format).
SINUSOID = 256
#: eps of the query/key norms and of the output norm (fixed; they do not follow `norm_eps`).
FIXED_EPS = 1e-6
#: What masked text positions get added to their scores.
MASKED_BIAS = -10000.0


class TextContext(NamedTuple):
    """Cross-attention keys and values of one prompt: per layer `(B, N, L, K)`, once a prompt.

    `bias` `(B, 1, 1, L)` is None when every text position is seen.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    bias: Tensor | None

    def expand(self, batch: int) -> TextContext:
        """Return the context for `batch` items; a batch of 1 is broadcast, others must agree."""
        found = self.keys[0].shape[0]
        if found == batch:
            return self
        if found != 1:
            raise UsageError(
                f"{found} prompts for a batch of {batch} latents; expected 1 or {batch}"
            )

        def widen(t: Tensor) -> Tensor:
            return t.expand(batch, *t.shape[1:])

        bias = None if self.bias is None else widen(self.bias)
        return TextContext(tuple(map(widen, self.keys)), tuple(map(widen, self.values)), bias)


class Modulation(NamedTuple):
    """What a timestep does to the model: AdaLN rows and the output head's embedding.

    `rows` is `(B or 1, S or 1, 6, D)`: shift, scale, gate of attention, then of the feed-forward;
    `embedded` is `(B or 1, S or 1, D)`.
    """

    rows: Tensor
    embedded: Tensor


class LayerVectors(NamedTuple):
    """What a timestep does to one block, each `(B or 1, S or 1, D)`.

    In the model dtype, the scales with their 1 added. They depend on layer and sigma alone, so a
    stream computes them once per sigma.
    """

    shift1: Tensor
    scale1: Tensor
    gate1: Tensor
    shift3: Tensor
    scale3: Tensor
    gate3: Tensor


class PassVectors(NamedTuple):
    """`LayerVectors` of every layer, and shift and scale of the output head."""

    layers: tuple[LayerVectors, ...]
    head_shift: Tensor
    head_scale: Tensor


class GELUProj(nn.Module):
    """Linear followed by the tanh approximation of GELU."""

    ops: BlockOps = EAGER

    def __init__(self, width: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = Linear(width, inner, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.gelu(self.proj(x))


class FeedForward(nn.Module):
    """`D -> 4D -> D` with GELU in between."""

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        inner = 4 * width
        self.net = nn.ModuleList(
            [GELUProj(width, inner, bias=bias), nn.Identity(), Linear(inner, width, bias=bias)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.net:
            x = layer(x)
        return x


class QKNorm(nn.Module):
    """RMS norm over the whole width, across heads, before the head split."""

    ops: BlockOps = EAGER

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.norm(x, self.weight, FIXED_EPS)

    @property
    def wide(self) -> WideNorm:
        """The norm as the functions take it that do more at the same time."""
        return WideNorm(self.weight, FIXED_EPS)


class BlockNorm(nn.Module):
    """RMS norm in front of each part of a block; weightless in the release."""

    ops: BlockOps = EAGER

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        if config.norm_elementwise_affine:
            self.weight: nn.Parameter | None = nn.Parameter(torch.ones(config.width))
        else:
            self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ops.norm(x, None, self.eps)
        return y if self.weight is None else y.to(self.weight.dtype) * self.weight

    def modulated(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Return `norm(x) * scale + shift`, `scale` with its 1 added."""
        if self.weight is None:
            return self.ops.norm_modulate(x, shift, scale, self.eps)
        return torch.addcmul(shift, self(x), scale)

    def after_residual(self, x: Tensor, y: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        """Return `x + y * gate`, and its norm."""
        if self.weight is None:
            return self.ops.residual_norm(x, y, gate, self.eps)
        x = self.ops.residual(x, y, gate)
        return x, self(x)

    def modulated_sum(
        self, x: Tensor, y: Tensor, shift: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return `x + y`, and its norm modulated."""
        if self.weight is None:
            return self.ops.sum_norm_modulate(x, y, shift, scale, self.eps)
        x = x + y
        return x, self.modulated(x, shift, scale)


class Attention(nn.Module):
    """Query, key, value and output projections, shared by self- and cross-attention."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        D = config.width
        self.heads = config.num_attention_heads
        self.to_q = Linear(D, D, bias=config.attention_bias)
        self.to_k = Linear(D, D, bias=config.attention_bias)
        self.to_v = Linear(D, D, bias=config.attention_bias)
        self.norm_q = QKNorm(D)
        self.norm_k = QKNorm(D)
        self.to_out = nn.ModuleList([Linear(D, D, bias=config.attention_out_bias)])
        self.to_gate_logits = nn.Linear(D, self.heads) if config.gated_attn else None
        self.joined: JoinedLinear | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Attention:
        self.joined = None  # moved weights: the joined ones would stay behind
        return super()._apply(fn, recurse)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys `(B, S, D)`, not normalised, and values `(B, N, S, K)`.

        One product once the weights were joined: a third of the calls, one read of `x`.
        """
        if self.joined is None:
            q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        else:
            q, k, v = self.joined(x)
        return q, k, split_heads(v, self.heads)

    def query(self, x: Tensor) -> Tensor:
        """Return normalised queries `(B, N, S, K)`, not rotated."""
        return split_heads(self.norm_q(self.to_q(x)), self.heads)

    def key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised keys, not rotated, and values, `(B, N, S, K)` each."""
        k = split_heads(self.norm_k(self.to_k(x)), self.heads)
        return k, split_heads(self.to_v(x), self.heads)

    def output(self, heads: Tensor, x: Tensor) -> Tensor:
        """Gate each head by `2 sigmoid(logit(x))` if gated, join `(B, N, S, K)` and project."""
        if self.to_gate_logits is not None:
            gate = 2 * torch.sigmoid(self.to_gate_logits(x))  # (B, S, N)
            heads = heads * gate.transpose(1, 2).unsqueeze(-1)
        return self.to_out[0](merge_heads(heads))


class TimestepMLP(nn.Module):
    """`256 -> D -> D` with SiLU in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(SINUSOID, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class TimeEmbed(nn.Module):
    """AdaLN-single: one timestep to the modulation rows of all blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb = nn.ModuleDict({"timestep_embedder": TimestepMLP(width)})
        self.linear = nn.Linear(width, 6 * width)

    def forward(self, timestep: Tensor) -> Modulation:
        sinusoid = timestep_sinusoid(timestep).to(self.linear.weight.dtype)
        embedded = self.emb["timestep_embedder"](sinusoid)
        rows = self.linear(F.silu(embedded))
        return Modulation(rows.unflatten(-1, (6, -1)), embedded)


class CaptionProjection(nn.Module):
    """Text width to model width: linear, GELU (tanh), linear."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(config.caption_channels, config.width)
        self.linear_2 = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.gelu(self.linear_1(x), approximate="tanh"))


def timestep_sinusoid(timestep: Tensor) -> Tensor:
    """Return the 256 sinusoids of a scaled timestep, cosines first, float32 `(..., 256)`."""
    half = SINUSOID // 2
    j = torch.arange(half, dtype=torch.float32, device=timestep.device)
    angles = timestep.float().unsqueeze(-1) * torch.exp(-math.log(10000.0) * j / half)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
