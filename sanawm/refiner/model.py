"""The video half of the LTX-2 transformer, as the streaming refiner runs it.

| quantity | dtype |
|---|---|
| timestep, its sinusoids | float32, rounded to the model dtype before the first linear |
| statistics of every norm, query/key norm weights | float32, one rounding |
| RoPE and its application | float32, rounded back |
| softmax statistics | float32 inside the attention kernel |
| linears, modulation, gates, residuals, GELU, stored K/V | model dtype |

Parameter names are those of `transformer/diffusion_pytorch_model.safetensors`. Modules hold
weights only; keys and values that outlive a pass are in `RefinerCache`.
Source of the formulas: the public LTX-2 transformer and the SANA-WM refiner.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.errors import UsageError
from sanawm.ops.attention import attention, merge_heads, split_heads
from sanawm.ops.norm import block_norm, gated_add, modulate, rms_norm
from sanawm.ops.rope import RopeKind, RopeTable, apply_rope

from .cache import CachePass
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


class GELUProj(nn.Module):
    """Linear followed by the tanh approximation of GELU."""

    def __init__(self, width: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(width, inner, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    """`D -> 4D -> D` with GELU in between."""

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        inner = 4 * width
        self.net = nn.ModuleList(
            [GELUProj(width, inner, bias=bias), nn.Identity(), nn.Linear(inner, width, bias=bias)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.net:
            x = layer(x)
        return x


class QKNorm(nn.Module):
    """RMS norm over the whole width, across heads, before the head split."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, eps=FIXED_EPS, weight=self.weight)


class BlockNorm(nn.Module):
    """RMS norm in front of each part of a block; weightless in the release."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        if config.norm_elementwise_affine:
            self.weight: nn.Parameter | None = nn.Parameter(torch.ones(config.width))
        else:
            self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        return block_norm(x, eps=self.eps, weight=self.weight)


class Attention(nn.Module):
    """Query, key, value and output projections, shared by self- and cross-attention."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        D = config.width
        self.heads = config.num_attention_heads
        self.to_q = nn.Linear(D, D, bias=config.attention_bias)
        self.to_k = nn.Linear(D, D, bias=config.attention_bias)
        self.to_v = nn.Linear(D, D, bias=config.attention_bias)
        self.norm_q = QKNorm(D)
        self.norm_k = QKNorm(D)
        self.to_out = nn.ModuleList([nn.Linear(D, D, bias=config.attention_out_bias)])
        self.to_gate_logits = nn.Linear(D, self.heads) if config.gated_attn else None

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


class RefinerBlock(nn.Module):
    """Self-attention over `[sink | history | block]`, cross-attention to the text, feed-forward."""

    def __init__(self, config: RefinerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.rope_kind = cast(RopeKind, config.rope_type)
        self.norm1 = BlockNorm(config)
        self.attn1 = Attention(config)
        self.norm2 = BlockNorm(config)
        self.attn2 = Attention(config)
        self.norm3 = BlockNorm(config)
        self.ff = FeedForward(config.width, bias=config.ff_bias)
        self.scale_shift_table = nn.Parameter(torch.empty(6, config.width))

    def forward(
        self,
        x: Tensor,
        text: TextContext,
        modulation: Modulation,
        rope: RopeTable,
        *,
        cache: CachePass | None = None,
        context_tokens: int = 0,
    ) -> Tensor:
        """Return the hidden states `(B, S, D)` after this block.

        `context_tokens` leading tokens attend only to each other (single-shot mode).
        """
        shift1, scale1, gate1, shift3, scale3, gate3 = self._rows(modulation)
        n = modulate(self.norm1(x), shift1, scale1)
        x = gated_add(x, self._self_attention(n, rope, cache, context_tokens), gate1)

        n = self.norm2(x)
        heads = attention(
            self.attn2.query(n), text.keys[self.layer], text.values[self.layer], bias=text.bias
        )
        x = x + self.attn2.output(heads, n)

        n = modulate(self.norm3(x), shift3, scale3)
        return gated_add(x, self.ff(n), gate3)

    def capture(self, x: Tensor, modulation: Modulation, rope: RopeTable, cache: CachePass) -> None:
        """Write this block's keys and values and compute nothing else (last layer of a capture)."""
        shift, scale, *_ = self._rows(modulation)
        k, v = self.attn1.key_value(modulate(self.norm1(x), shift, scale))
        cache.write(self.layer, k, v, rope, self.rope_kind)

    def text_key_value(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-attention keys and values of the projected text `(B, L, D)`."""
        return self.attn2.key_value(y)

    def _rows(self, modulation: Modulation) -> tuple[Tensor, ...]:
        return (self.scale_shift_table + modulation.rows).unbind(-2)

    def _self_attention(
        self, n: Tensor, rope: RopeTable, cache: CachePass | None, context_tokens: int
    ) -> Tensor:
        k, v = self.attn1.key_value(n)
        if cache is None:
            k = apply_rope(k, rope, self.rope_kind)
        else:
            k, v = cache.write(self.layer, k, v, rope, self.rope_kind)
        q = apply_rope(self.attn1.query(n), rope, self.rope_kind)
        c = context_tokens
        if 0 < c < q.shape[2]:
            sink = attention(q[:, :, :c], k[:, :, :c], v[:, :, :c])
            heads = torch.cat((sink, attention(q[:, :, c:], k, v)), dim=2)
        else:
            heads = attention(q, k, v)
        return self.attn1.output(heads, n)


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


class RefinerModel(nn.Module):
    """The refiner transformer. Predicts the velocity `(x_sigma - x_0) / sigma` of latent tokens."""

    def __init__(self, config: RefinerConfig) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.proj_in = nn.Linear(config.in_channels, D)
        self.caption_projection = CaptionProjection(config)
        self.time_embed = TimeEmbed(D)
        self.transformer_blocks = nn.ModuleList(
            RefinerBlock(config, layer) for layer in range(config.num_layers)
        )
        self.scale_shift_table = nn.Parameter(torch.empty(2, D))
        self.proj_out = nn.Linear(D, config.out_channels)

    @property
    def dtype(self) -> torch.dtype:
        """Model dtype: that of the weights."""
        return self.proj_in.weight.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.proj_in.weight.device

    def prepare_text(self, prompt_embeds: Tensor, mask: Tensor | None = None) -> TextContext:
        """Return the keys and values of a prompt for all layers: computed once a prompt.

        prompt_embeds: `(B, L, E)` after the connectors; mask: `(B, L)` of 0 and 1, or None.
        An all-ones mask is dropped: the result is the same and unmasked kernels are faster.
        """
        E = self.config.caption_channels
        if prompt_embeds.ndim != 3 or prompt_embeds.shape[-1] != E:
            raise UsageError(
                f"prompt embeddings have shape {tuple(prompt_embeds.shape)}; "
                f"this refiner expects (B, L, {E})"
            )
        if mask is not None and mask.shape != prompt_embeds.shape[:2]:
            raise UsageError(
                f"the text mask has shape {tuple(mask.shape)}; "
                f"expected {tuple(prompt_embeds.shape[:2])} as the prompt embeddings have"
            )
        y = self.caption_projection(prompt_embeds.to(self.device, self.dtype))  # (B, L, D)
        # Head-major and contiguous, because every pass of every block reads them.
        pairs = [tuple(t.contiguous() for t in b.text_key_value(y)) for b in self._blocks()]
        bias = None
        if mask is not None and not bool((mask == 1).all()):
            bias = (1 - mask.to(self.device, self.dtype)) * MASKED_BIAS
            bias = bias[:, None, None, :]  # (B, 1, 1, L)
        return TextContext(tuple(k for k, _ in pairs), tuple(v for _, v in pairs), bias)

    def modulation(self, timestep: Tensor) -> Modulation:
        """Return what a scaled timestep (sigma x multiplier, float32) does to every block.

        timestep: scalar for all tokens alike, or `(B, S)` for each token its own.
        """
        t = timestep.reshape(1, 1) if timestep.ndim == 0 else timestep
        return self.time_embed(t.to(self.device))

    def forward(
        self,
        tokens: Tensor,
        text: TextContext,
        modulation: Modulation,
        rope: RopeTable,
        *,
        cache: CachePass | None = None,
        context_tokens: int = 0,
    ) -> Tensor:
        """Return the velocity `(B, S, C)` of `tokens` `(B, S, C)`."""
        self._check_cache(cache)
        x = self.proj_in(tokens)  # (B, S, D)
        for block in self._blocks():
            x = block(x, text, modulation, rope, cache=cache, context_tokens=context_tokens)
        shift, scale = (self.scale_shift_table + modulation.embedded.unsqueeze(-2)).unbind(-2)
        x = F.layer_norm(x, (self.config.width,), eps=FIXED_EPS)
        return self.proj_out(modulate(x, shift, scale))

    def capture(
        self,
        tokens: Tensor,
        text: TextContext,
        modulation: Modulation,
        rope: RopeTable,
        cache: CachePass,
    ) -> None:
        """Run a pass only for its keys and values: it ends at the last layer's K/V, no head."""
        self._check_cache(cache)
        x = self.proj_in(tokens)
        *blocks, last = self._blocks()
        for block in blocks:
            x = block(x, text, modulation, rope, cache=cache)
        last.capture(x, modulation, rope, cache)

    def _check_cache(self, cache: CachePass | None) -> None:
        if cache is not None and len(cache.written) != self.config.num_layers:
            raise UsageError(
                f"the cache has {len(cache.written)} layers, this refiner {self.config.num_layers}",
                fix="make the cache with the model's number of layers",
            )

    def _blocks(self) -> list[RefinerBlock]:
        return cast(list[RefinerBlock], list(self.transformer_blocks))


def timestep_sinusoid(timestep: Tensor) -> Tensor:
    """Return the 256 sinusoids of a scaled timestep, cosines first, float32 `(..., 256)`."""
    half = SINUSOID // 2
    j = torch.arange(half, dtype=torch.float32, device=timestep.device)
    angles = timestep.float().unsqueeze(-1) * torch.exp(-math.log(10000.0) * j / half)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
