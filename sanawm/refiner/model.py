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

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.errors import UsageError
from sanawm.ops.attention import attention, split_heads
from sanawm.ops.fused import EAGER, BlockOps, compiled_ops
from sanawm.ops.linear import JoinedLinear, Linear
from sanawm.ops.norm import modulate
from sanawm.ops.rope import RopeKind, RopeTable

from .cache import CachePass
from .config import RefinerConfig
from .parts import (
    FIXED_EPS,
    MASKED_BIAS,
    Attention,
    BlockNorm,
    CaptionProjection,
    FeedForward,
    GELUProj,
    LayerVectors,
    Modulation,
    PassVectors,
    QKNorm,
    TextContext,
    TimeEmbed,
    timestep_sinusoid,
)

__all__ = [
    "LayerVectors",
    "Modulation",
    "PassVectors",
    "RefinerBlock",
    "RefinerModel",
    "TextContext",
    "timestep_sinusoid",
]


class RefinerBlock(nn.Module):
    """Self-attention over `[sink | history | block]`, cross-attention to the text, feed-forward."""

    ops: BlockOps = EAGER

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
        modulation: Modulation | PassVectors,
        rope: RopeTable,
        *,
        cache: CachePass | None = None,
        context_tokens: int = 0,
    ) -> Tensor:
        """Return the hidden states `(B, S, D)` after this block.

        `context_tokens` leading tokens attend only to each other (single-shot mode).
        """
        m = self._vectors(modulation)
        n = self.norm1.modulated(x, m.shift1, m.scale1)
        attended = self._self_attention(n, rope, cache, context_tokens)

        x, n = self.norm2.after_residual(x, attended, m.gate1)
        heads = attention(
            self.attn2.query(n), text.keys[self.layer], text.values[self.layer], bias=text.bias
        )
        seen = self.attn2.output(heads, n)

        x, n = self.norm3.modulated_sum(x, seen, m.shift3, m.scale3)
        return self.ops.residual(x, self.ff(n), m.gate3)

    def capture(
        self, x: Tensor, modulation: Modulation | PassVectors, rope: RopeTable, cache: CachePass
    ) -> None:
        """Write this block's keys and values and compute nothing else (last layer of a capture)."""
        m, a = self._vectors(modulation), self.attn1
        n = self.norm1.modulated(x, m.shift1, m.scale1)
        v = split_heads(a.to_v(n), a.heads)
        cache.write(self.layer, a.to_k(n), v, rope, self.rope_kind, norm=a.norm_k.wide)

    def text_key_value(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-attention keys and values of the projected text `(B, L, D)`."""
        return self.attn2.key_value(y)

    def vectors(self, modulation: Modulation) -> LayerVectors:
        """Return what a timestep does to this block, ready to be applied."""
        shift1, scale1, gate1, shift3, scale3, gate3 = (
            self.scale_shift_table + modulation.rows
        ).unbind(-2)
        vectors = (shift1, 1 + scale1, gate1, shift3, 1 + scale3, gate3)
        return LayerVectors(*(v.contiguous() for v in vectors))

    def _vectors(self, modulation: Modulation | PassVectors) -> LayerVectors:
        if isinstance(modulation, PassVectors):
            return modulation.layers[self.layer]
        return self.vectors(modulation)

    def _self_attention(
        self, n: Tensor, rope: RopeTable, cache: CachePass | None, context_tokens: int
    ) -> Tensor:
        a = self.attn1
        q, k, v = a.project(n)
        q = self._placed(q, a.norm_q, rope)
        if cache is None:
            k = self._placed(k, a.norm_k, rope)
        else:
            k, v = cache.write(self.layer, k, v, rope, self.rope_kind, norm=a.norm_k.wide)
        c = context_tokens
        if 0 < c < q.shape[2]:
            sink = attention(q[:, :, :c], k[:, :, :c], v[:, :, :c])
            heads = torch.cat((sink, attention(q[:, :, c:], k, v)), dim=2)
        else:
            heads = attention(q, k, v)
        return a.output(heads, n)

    def _placed(self, x: Tensor, norm: QKNorm, rope: RopeTable) -> Tensor:
        """Return `x` `(B, S, D)` normalised and rotated, head-major as attention likes it best."""
        B, S, D = x.shape
        heads = self.attn1.heads
        out = x.new_empty(B, heads, S, D // heads)
        return self.ops.norm_rotate_into(out, x, norm.wide, rope, self.rope_kind)


#: Parts whose element-wise functions `RefinerModel.prepare` chooses.
WITH_OPS = (RefinerBlock, GELUProj, QKNorm, BlockNorm)


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

    def pass_vectors(self, modulation: Modulation) -> PassVectors:
        """Return what a timestep does to all blocks and the head: once per sigma of a stream."""
        shift, scale = (self.scale_shift_table + modulation.embedded.unsqueeze(-2)).unbind(-2)
        return PassVectors(tuple(b.vectors(modulation) for b in self._blocks()), shift, scale)

    def prepare(self, *, rows: int, compiled: bool = False) -> None:
        """Lay the weights out for blocks of `rows` tokens, and choose the element-wise functions.

        Joins q, k and v to one product and packs the large linears where the CPU gains from it.
        Results stay equal up to rounding (bit-equal in float32 without `compiled`, as a rule).
        """
        ops = compiled_ops() if compiled else EAGER
        for module in self.modules():
            if isinstance(module, WITH_OPS):
                module.ops = ops
        for block in self._blocks():
            a = block.attn1
            a.joined = JoinedLinear([a.to_q, a.to_k, a.to_v], rows=rows)
            for linear in (a.to_out[0], block.attn2.to_q, block.attn2.to_out[0]):
                cast(Linear, linear).prepare(rows=rows)
            for layer in block.ff.modules():
                if isinstance(layer, Linear):
                    layer.prepare(rows=rows)

    @property
    def ops(self) -> BlockOps:
        """The element-wise functions in use."""
        return self._blocks()[0].ops

    def forward(
        self,
        tokens: Tensor,
        text: TextContext,
        modulation: Modulation | PassVectors,
        rope: RopeTable,
        *,
        cache: CachePass | None = None,
        context_tokens: int = 0,
    ) -> Tensor:
        """Return the velocity `(B, S, C)` of `tokens` `(B, S, C)`."""
        self._check_cache(cache)
        m = self._pass_vectors(modulation)
        x = self.proj_in(tokens)  # (B, S, D)
        for block in self._blocks():
            x = block(x, text, m, rope, cache=cache, context_tokens=context_tokens)
        x = F.layer_norm(x, (self.config.width,), eps=FIXED_EPS)
        return self.proj_out(modulate(x, m.head_shift, m.head_scale))

    def capture(
        self,
        tokens: Tensor,
        text: TextContext,
        modulation: Modulation | PassVectors,
        rope: RopeTable,
        cache: CachePass,
    ) -> None:
        """Run a pass only for its keys and values: it ends at the last layer's K/V, no head."""
        self._check_cache(cache)
        m = self._pass_vectors(modulation)
        x = self.proj_in(tokens)
        *blocks, last = self._blocks()
        for block in blocks:
            x = block(x, text, m, rope, cache=cache)
        last.capture(x, m, rope, cache)

    def _pass_vectors(self, modulation: Modulation | PassVectors) -> PassVectors:
        return modulation if isinstance(modulation, PassVectors) else self.pass_vectors(modulation)

    def _check_cache(self, cache: CachePass | None) -> None:
        if cache is not None and len(cache.written) != self.config.num_layers:
            raise UsageError(
                f"the cache has {len(cache.written)} layers, this refiner {self.config.num_layers}",
                fix="make the cache with the model's number of layers",
            )

    def _blocks(self) -> list[RefinerBlock]:
        return cast(list[RefinerBlock], list(self.transformer_blocks))
