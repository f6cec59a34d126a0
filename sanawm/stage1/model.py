"""The stage-1 diffusion transformer: camera-controlled, run chunk by chunk or on a whole clip.

| step | dtype |
|---|---|
| residual stream, linears, convolutions, layer norms, modulation | dtype of the weights |
| what the modules below list | float32 |

Source: the public SANA-WM model. The bidirectional model is the same forward with the whole clip
as one chunk and an empty past.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sanawm.errors import InputError, UsageError
from sanawm.ops.norm import gated_add, modulate

from .branches import ChunkContext
from .config import Stage1Config
from .embed import (
    MASKED,
    CaptionEmbedder,
    CellEmbedder,
    CrossAttention,
    FinalLayer,
    TextKV,
    TimeEmbedder,
    layer_norm,
)
from .ffn import ConvFeedForward
from .gdn import GDNAttention
from .norm import RMSNorm
from .positions import TokenGrid, rope_tables
from .rays import ray_frames
from .softmax import SoftmaxAttention
from .state import BlockPast, BlockWrite, Stage1State

CAPTION_NORM_EPS = 1e-5
#: Columns of a raymap: a 4x4 pose and four intrinsics.
RAYMAP_WIDTH = 20


class Text(NamedTuple):
    """The caption as the blocks read it; computed once a prompt."""

    blocks: tuple[TextKV, ...]
    bias: Tensor  # (B, 1, 1, L)


class Stage1Output(NamedTuple):
    """Velocity `(B, C, T, H, W)` and, if asked for, what `Stage1State.commit` takes."""

    velocity: Tensor
    writes: tuple[BlockWrite, ...] | None


class Stage1Block(nn.Module):
    """Self-attention, Plücker residual, cross-attention, feed-forward."""

    def __init__(self, config: Stage1Config, *, number: int) -> None:
        super().__init__()
        D = config.width
        self.scale_shift_table = nn.Parameter(torch.zeros(6, D))
        self.attn: GDNAttention | SoftmaxAttention = (
            SoftmaxAttention(config) if config.is_softmax(number) else GDNAttention(config)
        )
        self.cross_attn = CrossAttention(config)
        self.mlp = ConvFeedForward(config)
        self.plucker_proj = nn.Linear(D, D) if number < config.plucker_blocks else None

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        text: TextKV,
        *,
        bias: Tensor,
        context: ChunkContext,
        past: BlockPast,
    ) -> tuple[Tensor, BlockWrite]:
        """Return tokens `(B, T, HW, D)` and what the next chunk needs.

        time: `(B, T, 6, D)`, the modulation of each frame before this block's table is added.
        """
        by_frame = context.grid.frames, context.grid.per_frame
        table = (self.scale_shift_table + time).unsqueeze(3)  # (B, T, 6, 1, D)
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = table.unbind(2)  # (B, T, 1, D) each
        u = modulate(layer_norm(x), shift_a, scale_a).flatten(1, 2)  # (B, S, D)
        if isinstance(self.attn, GDNAttention):
            update, state = self.attn(u, context, past=past.gdn)
        else:
            update, state = self.attn(u, context, past=past.window)
        x = gated_add(x, update.unflatten(1, by_frame), gate_a)
        tokens = x.flatten(1, 2)  # (B, S, D)
        if self.plucker_proj is not None and context.plucker is not None:
            tokens = tokens + self.plucker_proj(context.plucker)
        tokens = tokens + self.cross_attn(tokens, text, bias=bias)
        x = tokens.unflatten(1, by_frame)
        w = modulate(layer_norm(x), shift_f, scale_f).flatten(1, 2)
        update, tail = self.mlp(w, context.grid, tail=past.ffn_tail)
        return gated_add(x, update.unflatten(1, by_frame), gate_f), BlockWrite(state, tail)


class Stage1Model(nn.Module):
    """Weights of stage 1. State is an argument: see `Stage1State`."""

    def __init__(self, config: Stage1Config) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.x_embedder = CellEmbedder(config.latent_channels, D)
        self.plucker_embedder = (
            CellEmbedder(config.plucker_channels, D) if config.plucker_channels else None
        )
        self.t_embedder = TimeEmbedder(D)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        self.y_embedder = CaptionEmbedder(config.text_width, D)
        self.attention_y_norm = RMSNorm(D, eps=CAPTION_NORM_EPS)
        self.blocks = nn.ModuleList(Stage1Block(config, number=i) for i in range(config.depth))
        self.final_layer = FinalLayer(config)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.x_embedder.proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, tokens and latents."""
        return self.x_embedder.proj.weight.dtype

    def embed_text(self, caption: Tensor, mask: Tensor) -> Text:
        """Return the caption's keys and values for every block.

        caption: `(B, 1, L, E)` hidden states of the text encoder; mask: `(B, L)`, 1 = a token.
        """
        B, L = mask.shape[0], mask.shape[-1]
        expected = (B, 1, L, self.config.text_width)
        if mask.dim() != 2 or caption.shape != expected:
            raise InputError(
                f"stage 1: caption {tuple(caption.shape)} and mask {tuple(mask.shape)} do not fit; "
                f"expected (B, 1, L, {self.config.text_width}) and (B, L)"
            )
        y = self.y_embedder(caption[:, 0].to(self.device, self.dtype))  # (B, L, D)
        y = self.attention_y_norm(y)
        bias = ((1 - mask.to(self.device, torch.float32)) * MASKED).to(self.dtype)
        keys = tuple(block.cross_attn.text_kv(y) for block in self._blocks())
        return Text(keys, bias[:, None, None])

    def chunk_context(
        self,
        grid: TokenGrid,
        *,
        start: int,
        raymap: Tensor | None = None,
        plucker: Tensor | None = None,
    ) -> ChunkContext:
        """Return what all passes of the chunk starting at latent frame `start` share.

        raymap: `(B, T, 20)`, poses relative to frame 0 of the clip and latent-grid intrinsics;
        None skips the camera branch. plucker: `(B, 6r, T, H, W)`, None skips its residual.
        Raises `InputError` when their frames or cells are not those of `grid`.
        """
        head = self.config.head_size
        tables = rope_tables(grid, start=start, head_size=head, device=self.device)
        rays = None
        if raymap is not None:
            check_raymap(raymap, grid)
            dtype = self.dtype if self.config.ray_dtype == "model" else torch.float32
            rays = ray_frames(raymap.to(self.device, dtype), grid, rope=tables.camera)
        tokens = None if plucker is None else self._embed_plucker(plucker, grid)
        return ChunkContext(grid, tables.main, rays, tokens)

    def _embed_plucker(self, plucker: Tensor, grid: TokenGrid) -> Tensor:
        if self.plucker_embedder is None:
            raise UsageError(
                "stage 1: Plücker rays were given, but plucker_embedder is not initialized: "
                "this model has none",
                fix="leave the Plücker rays out, or use a config with chunk_plucker_channels",
            )
        channels = self.plucker_embedder.channels
        if plucker.dim() != 5 or plucker.shape[1] != channels:
            raise InputError(
                f"stage 1: Plücker rays are {tuple(plucker.shape)}; "
                f"expected (B, {channels}, T, H, W)"
            )
        tokens = plucker.shape[2:].numel()
        if tokens != grid.tokens or tuple(plucker.shape[2:]) != tuple(grid):
            raise InputError(
                f"stage 1: plucker_emb token count {tokens} != latent token count {grid.tokens}: "
                f"Plücker rays are {tuple(plucker.shape)}, expected (B, {channels}, "
                f"{grid.frames}, {grid.height}, {grid.width})"
            )
        return self.plucker_embedder(plucker.to(self.device, self.dtype))

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        text: Text,
        context: ChunkContext,
        *,
        state: Stage1State | None = None,
        write: bool = False,
    ) -> Stage1Output:
        """Return the velocity of latents `x` `(B, C, T, H, W)` at `timestep` `(B, T)`.

        Timesteps run 0 … 1000 and are truncated to integers. `state` None: nothing came before.
        With `write` the blocks' new states are returned too; `state` itself is never changed.
        """
        C = self.config.latent_channels
        if x.dim() != 5 or x.shape[1] != C or tuple(x.shape[2:]) != tuple(context.grid):
            raise InputError(
                f"stage 1: latents are {tuple(x.shape)}, expected (B, {C}, "
                f"{', '.join(str(n) for n in context.grid)})"
            )
        if state is not None:
            state.check_mode(camera=context.rays is not None)
        past = [BlockPast()] * self.config.depth if state is None else state.blocks
        grid = context.grid
        h = self.x_embedder(x.to(self.dtype))  # (B, S, D)
        h = h.unflatten(1, (grid.frames, grid.per_frame))  # (B, T, HW, D)
        time = self.t_embedder(timestep)  # (B, T, D)
        modulation = self.t_block(time).unflatten(-1, (6, -1))  # (B, T, 6, D)
        writes = []
        for block, keys, before in zip(self._blocks(), text.blocks, past, strict=True):
            h, written = block(h, modulation, keys, bias=text.bias, context=context, past=before)
            if write:
                writes.append(written)
        velocity = self.final_layer(h, time)  # (B, T, HW, C)
        velocity = velocity.unflatten(2, (grid.height, grid.width)).permute(0, 4, 1, 2, 3)
        return Stage1Output(velocity, tuple(writes) if write else None)

    def _blocks(self) -> list[Stage1Block]:
        return [block for block in self.blocks if isinstance(block, Stage1Block)]


def check_raymap(raymap: Tensor, grid: TokenGrid) -> None:
    """Raise `InputError` unless `raymap` has 20 columns and the chunk's frames."""
    if raymap.dim() != 3 or raymap.shape[-1] != RAYMAP_WIDTH:
        raise InputError(
            f"stage 1: raymap is {tuple(raymap.shape)}, expected (B, T, {RAYMAP_WIDTH})"
        )
    if raymap.shape[1] != grid.frames:
        raise InputError(
            f"stage 1: raymap has {raymap.shape[1]} frames, the latents have {grid.frames}"
        )
