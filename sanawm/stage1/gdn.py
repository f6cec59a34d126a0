"""Gated-delta attention over latent frames, with a state carried from chunk to chunk.

| step | dtype |
|---|---|
| projections, sigmoid of beta | dtype of the weights |
| short convolution, query/key norms | float32, rounded back |
| `A_log`, `dt_bias`, decay | float32 |
| rotation, ray transform, recurrence, read-out, carried memories | float32 |

Source: the public SANA-WM model (its reference mathematics, not its fused kernels). All tokens of
a frame enter the memory together: the recurrence runs over frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .branches import QKV, ChunkContext, TwoBranchAttention
from .config import Stage1Config
from .positions import TokenGrid, rotate
from .rays import RayFrames

#: Added to the normaliser before the division.
READ_EPS = 1e-8
#: Smallest squared length of a key in the camera branch's growth ratio.
LENGTH_EPS = 1e-12


class GDNState(NamedTuple):
    """What one block carries to the next chunk. None stands for zeros: nothing came before.

    memory: `(B, N, K, K)` (value x key) and norm `(B, N, 1, K)`, float32; camera_memory like
    memory; key_tail, camera_key_tail: the last `conv_taps - 1` frames of the convolutions' input,
    `(B, taps-1, HW, D)`. Without a camera its parts stay None.
    """

    memory: Tensor | None = None
    norm: Tensor | None = None
    key_tail: Tensor | None = None
    camera_memory: Tensor | None = None
    camera_key_tail: Tensor | None = None


class ShortConv(nn.Module):
    """Depthwise convolution along time, causal across chunks, symmetric inside the chunk.

    With taps w (last one the centre) the kernel is `w0 … w_centre … w0`: frames of earlier chunks
    count, frames after the chunk's end are zero.
    """

    def __init__(self, width: int, *, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, 1, taps))

    def forward(self, x: Tensor, *, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the convolved `x` `(B, T, HW, D)` and the tail for the next chunk.

        A sum of shifted products: chunks are so short that this takes a third of a convolution's
        time.
        """
        B, frames, HW, D = x.shape
        reach = self.weight.shape[-1] - 1
        if tail is None:
            tail = x.new_zeros(B, reach, HW, D)
        known = torch.cat([tail, x], dim=1)  # (B, reach + T, HW, D)
        rows = known.float()
        taps = self.weight.float()[:, 0].T  # (reach + 1, D), the last one is the centre
        y = rows[:, reach:] * taps[reach]
        for j in range(1, reach + 1):
            tap = taps[reach - j]
            y.addcmul_(rows[:, reach - j : reach - j + frames], tap)
            if j < frames:
                y[:, : frames - j].addcmul_(rows[:, reach + j :], tap)
        return y.to(x.dtype), known[:, known.shape[1] - reach :]

    def prepare(self) -> None:
        """Lay the weights out tap by tap, as the products read them."""
        if not self.weight.requires_grad:
            self.weight.data = self.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)


class Frames(NamedTuple):
    """Keys and values of M memories as updates of them, per frame.

    overlap: `K^T B K` `(T, M, K, K)`; added: `V^T B K` `(T, M, V, K)`, B the betas.
    """

    overlap: Tensor
    added: Tensor


def frame_updates(k: Tensor, v: Tensor, beta: Tensor) -> Frames:
    """Build the updates from keys, values `(T, M, HW, K)` and beta `(T, M, HW, 1)`."""
    weighted = k * beta
    return Frames(k.mT @ weighted, v.mT @ weighted)


def run_memory(updates: Frames, decay: Tensor, *, past: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the memories that each frame's queries read, and the memories carried on.

    Forward, including the frame itself: `M_t = g_t M_{t-1} (I - K_t^T B_t K_t) + V_t^T B_t K_t`,
    seeded with `past` (None: zeros). Backward, excluding it: the same step from the chunk's end,
    always from zero. decay: g `(T, M)`. Results `(T, M, V, K)` and `(M, V, K)`.

    The transitions `g (I - K^T B K)` are formed for all frames at once, so that a step is one
    product: less work than going through the keys wherever a frame has more than 2/3 K tokens.
    """
    added = updates.added.float()
    frames = added.shape[0]
    eye = torch.eye(updates.overlap.shape[-1], device=added.device)
    transitions = (eye - updates.overlap) * decay[..., None, None]  # (T, M, K, K)
    ahead = []
    with torch.autocast("cpu", enabled=False):  # the training here uses one; memories are float32
        memory = added[0] if past is None else torch.baddbmm(added[0], past, transitions[0])
        ahead.append(memory)
        for t in range(1, frames):
            memory = torch.baddbmm(added[t], memory, transitions[t])
            ahead.append(memory)
        carried, memory = memory, added[-1]
        for t in range(frames - 1, 0, -1):
            if t < frames - 1:
                memory = torch.baddbmm(added[t], memory, transitions[t])
            ahead[t - 1] = ahead[t - 1] + memory
    return torch.stack(ahead), carried


class GDNAttention(TwoBranchAttention):
    """Self-attention of most blocks: a decaying key-value memory read by every token."""

    def __init__(self, config: Stage1Config) -> None:
        super().__init__(config)
        D, N = config.width, config.heads
        self.head_size = config.head_size
        self.conv_k = ShortConv(D, taps=config.conv_taps)
        self.conv_k_cam = ShortConv(D, taps=config.conv_taps)
        self.beta_proj = nn.Linear(D, N)
        self.gate_proj = nn.Linear(D, N)
        self.A_log = nn.Parameter(torch.zeros(N))
        self.dt_bias = nn.Parameter(torch.zeros(N))

    @property
    def readers(self) -> list[nn.Linear]:
        """All linear layers that read the block's modulated tokens."""
        return [*super().readers, self.beta_proj, self.gate_proj]

    def prepare(self) -> None:
        """Do as every attention; the convolutions as well."""
        super().prepare()
        self.conv_k.prepare()
        self.conv_k_cam.prepare()

    def forward(
        self, u: Tensor, context: ChunkContext, *, past: GDNState
    ) -> tuple[Tensor, GDNState]:
        """Return the attention of modulated tokens `u` `(B, S, D)` and the state after them.

        The normaliser, the main and the camera branch are memories over the same frames: they run
        as one batch, a third of the calls. The normaliser is the memory of ones as values, on
        unrotated keys; all its value channels are equal, one is carried.
        """
        grid, rays = context.grid, context.rays
        qkv, *camera_qkv, gate, beta, a = self.project(u)
        weights, decay = self.gates(beta, a, grid)
        plain, turned, tail = self._main(qkv, context, past)
        parts, betas, camera_tail = [plain, turned], [weights, weights], None
        if rays is not None:
            plain, camera_tail = self._camera_qkv(QKV(*camera_qkv), grid, past)
            turned = self.turn(plain, rays)
            growth = key_growth(turned.k, plain.k).view(weights.shape).mean(2, keepdim=True)
            parts.append(turned)
            betas.append(weights / growth.clamp_min(1))
        queries, keys, values = (
            by_frame(x, grid, heads=self.heads) for x in zip(*parts, strict=True)
        )
        updates = frame_updates(keys, values, by_frame(betas, grid, heads=self.heads))
        memory, carried = run_memory(updates, decay.repeat(1, len(parts)), past=_seed(past, rays))
        read = (queries @ memory.mT).view(
            grid.frames, len(parts), len(u), self.heads, -1, self.head_size
        )
        norm, main, *camera = carried.view(len(parts), len(u), self.heads, self.head_size, -1)
        state = GDNState(main, norm[:, :, :1], tail, camera[0] if camera else None, camera_tail)
        o, o_camera = by_token(read[:, 1] / (read[:, 0] + READ_EPS), u), None
        if rays is not None:
            o_camera = rays.turn_output(self.split(by_token(read[:, 2], u))).flatten(2)
        return self.combine(gate, o, o_camera), state

    def gates(self, beta: Tensor, a: Tensor, grid: TokenGrid) -> tuple[Tensor, Tensor]:
        """Return beta `(B, T, HW, N)` and decay `(T, B*N)`, float32, both in (0, 1).

        beta, a: `beta_proj` and `gate_proj` of the tokens, `(B, S, N)`.
        """
        frames = grid.frames, grid.per_frame
        mean = a.float().unflatten(1, frames).mean(2)  # (B, T, N); upstream projects the mean
        rate = self.A_log.float().exp() * F.softplus(mean + self.dt_bias.float())
        weights = beta.sigmoid().float().unflatten(1, frames)
        return weights, rate.neg().exp().transpose(0, 1).flatten(1)

    def _main(self, qkv: Tensor, context: ChunkContext, past: GDNState) -> tuple[QKV, QKV, Tensor]:
        """Return what the normaliser and the main branch read, and the new key tail."""
        grid = context.grid
        q, k, v = qkv.chunk(3, dim=-1)  # (B, S, D) each
        k, tail = _convolve(self.conv_k, k, grid, tail=past.key_tail)
        q, k = F.relu(self.q_norm(q)).float(), F.relu(self.k_norm(k)).float()
        both = self.split(torch.cat([q, k * self._key_scale(grid)], dim=-1))  # (B, S, 2N, K)
        turned = rotate(both, context.rope).chunk(2, dim=2)
        ones = both.new_ones(1).expand_as(turned[0])
        plain_q, plain_k = both.chunk(2, dim=2)
        values = self.split(v.float())
        return QKV(plain_q, plain_k, ones), QKV(turned[0], turned[1], values), tail

    def _camera_qkv(self, qkv: QKV, grid: TokenGrid, past: GDNState) -> tuple[QKV, Tensor]:
        """Return the camera branch's values before they are turned, and the new key tail."""
        k, tail = _convolve(self.conv_k_cam, qkv.k, grid, tail=past.camera_key_tail)
        q = F.relu(self.q_norm_cam(qkv.q)).float()
        k = F.relu(self.k_norm_cam(k)).float() * self._key_scale(grid)
        return QKV(self.split(q), self.split(k), self.split(qkv.v.float())), tail

    def _key_scale(self, grid: TokenGrid) -> float:
        """Scale of the keys, so that the overlap of a frame does not grow with its tokens."""
        return float((self.head_size * grid.per_frame) ** -0.5)


def key_growth(turned: Tensor, plain: Tensor) -> Tensor:
    """Return how much the ray transform enlarged each key, `|k~|^2 / |k|^2`, `(B, S, N)`."""
    after, before = (x.square().sum(-1).clamp_min(LENGTH_EPS) for x in (turned, plain))
    return after / before


def _convolve(
    conv: ShortConv, k: Tensor, grid: TokenGrid, *, tail: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Convolve keys `(B, S, D)` along time; also return the tail for the next chunk."""
    y, tail = conv(k.unflatten(1, (grid.frames, grid.per_frame)), tail=tail)
    return y.flatten(1, 2), tail


def by_frame(parts: Sequence[Tensor], grid: TokenGrid, *, heads: int) -> Tensor:
    """Return tensors `(B, S, N, K)` (or `(B, T, HW, N)`) of G memories as `(T, M, HW, K)` (or 1).

    M is G, then batch, then heads. Frames come first: what a step reads lies together.
    """
    frames = [x.view(len(x), grid.frames, grid.per_frame, heads, -1) for x in parts]
    return torch.stack([x.permute(1, 0, 3, 2, 4) for x in frames], dim=1).flatten(1, 3)


def by_token(x: Tensor, u: Tensor) -> Tensor:
    """Return `(T, B, N, HW, K)` as `(B, S, D)` like `u`."""
    return x.permute(1, 0, 3, 2, 4).reshape(u.shape).to(u.dtype)


def _seed(past: GDNState, rays: RayFrames | None) -> Tensor | None:
    """Return what an earlier chunk left, `(M, V, K)` in the order of the memories."""
    if past.memory is None or past.norm is None:
        return None
    parts = [past.norm.expand_as(past.memory), past.memory]
    if rays is not None:
        parts.append(
            torch.zeros_like(past.memory) if past.camera_memory is None else past.camera_memory
        )
    return torch.stack(parts).flatten(0, 2)
