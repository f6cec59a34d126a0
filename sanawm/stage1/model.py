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
from sanawm.ops.linear import needs_gradients

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
    bias: Tensor | None  # (B, 1, 1, L); None: every key counts


class PassVectors(NamedTuple):
    """What the timesteps of a pass do to its frames: the same for every chunk of a stream.

    time: the embedding `(B, T, D)`; blocks: shift, 1 + scale and gate of the attention and of the
    feed-forward of every block, `(B, T, 1, D)` each.
    """

    time: Tensor
    blocks: tuple[tuple[Tensor, ...], ...]


class Stage1Output(NamedTuple):
    """Velocity `(B, C, T, H, W)` and, if asked for, what `Stage1State.commit` takes."""

    velocity: Tensor
    writes: tuple[BlockWrite, ...] | None


class Stage1Block(nn.Module):
    """Self-attention, Plücker residual, cross-attention, feed-forward."""

    def __init__(self, config: Stage1Config, *, number: int) -> None:
        super().__init__()
        D = config.width
        self.number = number
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
        vectors: tuple[Tensor, ...],
        text: TextKV,
        *,
        bias: Tensor | None,
        context: ChunkContext,
        past: BlockPast,
    ) -> tuple[Tensor, BlockWrite]:
        """Return tokens `(B, T, HW, D)` and what the next chunk needs.

        vectors: what `vectors` makes of the pass's modulation.
        """
        by_frame = context.grid.frames, context.grid.per_frame
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = vectors
        u = torch.addcmul(shift_a, layer_norm(x), scale_a).flatten(1, 2)  # (B, S, D)
        if isinstance(self.attn, GDNAttention):
            update, state = self.attn(u, context, past=past.gdn)
        else:
            update, state = self.attn(u, context, past=past.window)
        x = torch.addcmul(x, update.unflatten(1, by_frame), gate_a)
        tokens = x.flatten(1, 2)  # (B, S, D)
        if self.plucker_proj is not None and context.plucker is not None:
            made = context.residuals
            tokens = tokens + (made[self.number] if made else self.plucker_proj(context.plucker))
        tokens = tokens + self.cross_attn(tokens, text, bias=bias)
        x = tokens.unflatten(1, by_frame)
        w = torch.addcmul(shift_f, layer_norm(x), scale_f).flatten(1, 2)
        update, tail = self.mlp(w, context.grid, tail=past.ffn_tail)
        return torch.addcmul(x, update.unflatten(1, by_frame), gate_f), BlockWrite(state, tail)

    def vectors(self, modulation: Tensor) -> tuple[Tensor, ...]:
        """Return this block's `PassVectors` entry from the frames' modulation `(B, T, 6, D)`."""
        table = (self.scale_shift_table + modulation).unsqueeze(3)  # (B, T, 6, 1, D)
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = table.unbind(2)
        return shift_a, 1 + scale_a, gate_a, shift_f, 1 + scale_f, gate_f


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
        Of a single caption padding is left out: its bias would make it count exactly nothing, and
        every pass would attend to it.
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
        bias: Tensor | None = None
        if B == 1 and bool((mask == 1).any()) and bool(((mask == 0) | (mask == 1)).all()):
            y = y[:, mask[0].nonzero()[:, 0].to(y.device)]
        else:
            bias = ((1 - mask.to(self.device, torch.float32)) * MASKED).to(self.dtype)[
                :, None, None
            ]
        keys = tuple(block.cross_attn.text_kv(y) for block in self._blocks())
        return Text(keys, bias)

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
        return ChunkContext(grid, tables.main, rays, tokens, self._residuals(tokens))

    def _residuals(self, plucker: Tensor | None) -> tuple[Tensor, ...]:
        """Return the Plücker residuals of all blocks: once a chunk instead of once a pass.

        They take `(S, D)` values a block. A bidirectional model's only chunk is the whole clip, for
        which that would be too much.
        """
        layers = [b.plucker_proj for b in self._blocks() if b.plucker_proj is not None]
        if plucker is None or not layers or not self.config.streaming:
            return ()
        if needs_gradients(plucker, layers[0].weight):
            return ()
        return tuple(layer(plucker) for layer in layers)

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

    def pass_vectors(self, timestep: Tensor) -> PassVectors:
        """Return what timesteps `(B, T)` do to all blocks and to the last layer."""
        time = self.t_embedder(timestep)  # (B, T, D)
        modulation = self.t_block(time).unflatten(-1, (6, -1))  # (B, T, 6, D)
        return PassVectors(time, tuple(block.vectors(modulation) for block in self._blocks()))

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        text: Text,
        context: ChunkContext,
        *,
        state: Stage1State | None = None,
        write: bool = False,
        vectors: PassVectors | None = None,
    ) -> Stage1Output:
        """Return the velocity of latents `x` `(B, C, T, H, W)` at `timestep` `(B, T)`.

        Timesteps run 0 … 1000 and are truncated to integers. `state` None: nothing came before.
        With `write` the blocks' new states are returned too; `state` itself is never changed.
        vectors: `pass_vectors(timestep)`, if the caller kept them.
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
        time, rows = self.pass_vectors(timestep) if vectors is None else vectors
        writes = []
        for block, row, keys, before in zip(self._blocks(), rows, text.blocks, past, strict=True):
            h, written = block(h, row, keys, bias=text.bias, context=context, past=before)
            if write:
                writes.append(written)
        velocity = self.final_layer(h, time)  # (B, T, HW, C)
        velocity = velocity.unflatten(2, (grid.height, grid.width)).permute(0, 4, 1, 2, 3)
        return Stage1Output(velocity, tuple(writes) if write else None)

    def prepare(self) -> None:
        """Lay the weights out for runs without gradients; results stay equal up to rounding."""
        for block in self._blocks():
            block.attn.prepare()
            block.mlp.prepare()

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
