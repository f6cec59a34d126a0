"""Gated-delta attention over latent frames, with a state carried from chunk to chunk.

| step | dtype |
|---|---|
| projections, short convolution, sigmoid of beta | dtype of the weights |
| query/key norms | float32, rounded back |
| `A_log`, `dt_bias`, decay | float32 |
| rotation, ray transform, recurrence, read-out, carried memories | float32 |

Source: the public SANA-WM model (its reference mathematics, not its fused kernels). All tokens of
a frame enter the memory together: the recurrence runs over frames.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .branches import QKV, ChunkContext, TwoBranchAttention
from .config import Stage1Config
from .positions import TokenGrid, rotate

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
        """Return the convolved `x` `(B, T, HW, D)` and the tail for the next chunk."""
        B, _, HW, D = x.shape
        reach = self.weight.shape[-1] - 1
        if tail is None:
            tail = x.new_zeros(B, reach, HW, D)
        known = torch.cat([tail, x], dim=1)  # (B, reach + T, HW, D)
        kernel = torch.cat([self.weight, self.weight[..., :-1].flip(-1)], dim=-1)  # (D, 1, 2r+1)
        rows = F.pad(known.permute(0, 2, 3, 1).flatten(0, 1), (0, reach))  # (B*HW, D, r + T + r)
        y = F.conv1d(rows, kernel, groups=D).unflatten(0, (B, HW)).permute(0, 3, 1, 2)
        return y, known[:, known.shape[1] - reach :]


class Frames(NamedTuple):
    """One branch's keys and values as updates of its memory, per frame.

    overlap: `K^T B K` `(B, N, T, K, K)`; added: `V^T B K` `(B, N, T, V, K)`, B the betas.
    """

    overlap: Tensor
    added: Tensor


def frame_updates(k: Tensor, v: Tensor, beta: Tensor) -> Frames:
    """Build the updates from keys, values `(B, N, T, HW, K)` and beta `(B, N, T, HW)`."""
    weighted = k * beta[..., None]
    return Frames(k.mT @ weighted, v.mT @ weighted)


def run_memory(updates: Frames, decay: Tensor, *, past: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the memory that each frame's queries read, and the memory carried on.

    Forward, including the frame itself: `M_t = g_t M_{t-1} (I - K_t^T B_t K_t) + V_t^T B_t K_t`,
    seeded with `past` (None: zeros). Backward, excluding it: the same step from the chunk's end,
    always from zero. decay: g `(B, N, T)`. Results `(B, N, T, V, K)` and `(B, N, V, K)`.
    """
    overlap, added = updates
    frames = added.shape[2]
    gates = decay[..., None, None]  # (B, N, T, 1, 1)

    def step(memory: Tensor, t: int) -> Tensor:
        return gates[:, :, t] * (memory - memory @ overlap[:, :, t]) + added[:, :, t]

    memory = torch.zeros_like(added[:, :, 0]) if past is None else past
    ahead = []
    for t in range(frames):
        memory = step(memory, t)
        ahead.append(memory)
    carried = memory
    memory = torch.zeros_like(carried)
    for t in range(frames - 1, 0, -1):
        memory = step(memory, t)
        ahead[t - 1] = ahead[t - 1] + memory
    return torch.stack(ahead, dim=2), carried


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

    def forward(
        self, u: Tensor, context: ChunkContext, *, past: GDNState
    ) -> tuple[Tensor, GDNState]:
        """Return the attention of modulated tokens `u` `(B, S, D)` and the state after them."""
        beta, decay = self.gates(u, context.grid)
        main, memory, norm, tail = self._main(u, context, beta, decay, past)
        camera, camera_memory, camera_tail = None, None, None
        if context.rays is not None:
            camera, camera_memory, camera_tail = self._camera(u, context, beta, decay, past)
        state = GDNState(memory, norm, tail, camera_memory, camera_tail)
        return self.combine(u, main, camera), state

    def gates(self, u: Tensor, grid: TokenGrid) -> tuple[Tensor, Tensor]:
        """Return beta `(B, N, T, HW)` and decay `(B, N, T)`, float32, both in (0, 1)."""
        frames = u.unflatten(1, (grid.frames, grid.per_frame))  # (B, T, HW, D)
        beta = self.beta_proj(frames).sigmoid().permute(0, 3, 1, 2).float()
        a = self.gate_proj(frames.mean(2)).float()  # (B, T, N)
        rate = self.A_log.float().exp() * F.softplus(a + self.dt_bias.float())
        return beta, rate.neg().exp().transpose(1, 2)

    def _main(
        self,
        u: Tensor,
        context: ChunkContext,
        beta: Tensor,
        decay: Tensor,
        past: GDNState,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        grid = context.grid
        q, k, v = self.qkv(u).chunk(3, dim=-1)  # (B, S, D) each
        k, tail = _convolve(self.conv_k, k, grid, tail=past.key_tail)
        q = self.split(F.relu(self.q_norm(q)).float())  # (B, S, N, K)
        k = self.split(F.relu(self.k_norm(k)).float()) * self._key_scale(grid)
        turned_q, turned_k = (_by_frame(rotate(x, context.rope), grid) for x in (q, k))
        q, k, v = (_by_frame(x, grid) for x in (q, k, self.split(v.float())))
        updates = frame_updates(turned_k, v, beta)
        memory, last_memory = run_memory(updates, decay, past=past.memory)
        # The normaliser is the memory of a single value channel of ones, on unrotated keys.
        ones = torch.ones_like(v[..., :1])
        norm, last_norm = run_memory(
            frame_updates(k, ones, beta), decay, past=past.norm
        )  # (B, N, T, 1, K)
        o = turned_q @ memory.mT / (q @ norm.mT + READ_EPS)  # (B, N, T, HW, K)
        return _by_token(o).to(u.dtype), last_memory, last_norm, tail

    def _camera(
        self,
        u: Tensor,
        context: ChunkContext,
        beta: Tensor,
        decay: Tensor,
        past: GDNState,
    ) -> tuple[Tensor, Tensor, Tensor]:
        grid, rays = context.grid, context.rays
        assert rays is not None
        k, tail = _convolve(self.conv_k_cam, self.k_proj_cam(u), grid, tail=past.camera_key_tail)
        plain = QKV(
            self.split(F.relu(self.q_norm_cam(self.q_proj_cam(u))).float()),
            self.split(F.relu(self.k_norm_cam(k)).float()) * self._key_scale(grid),
            self.split(self.v_proj_cam(u).float()),
        )
        turned = self.turn(plain, rays)
        growth = _by_frame(key_growth(turned.k, plain.k)[..., None], grid)  # (B, N, T, HW, 1)
        q, k, v = (_by_frame(x, grid) for x in turned)
        updates = frame_updates(k, v, beta / growth[..., 0].mean(-1, keepdim=True).clamp_min(1))
        memory, carried = run_memory(updates, decay, past=past.camera_memory)
        o = _by_token(q @ memory.mT).to(u.dtype)  # (B, S, D)
        return rays.turn_output(self.split(o)).flatten(2), carried, tail

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


def _by_frame(x: Tensor, grid: TokenGrid) -> Tensor:
    """Return `(B, S, N, K)` as `(B, N, T, HW, K)`."""
    return x.unflatten(1, (grid.frames, grid.per_frame)).permute(0, 3, 1, 2, 4)


def _by_token(x: Tensor) -> Tensor:
    """Return `(B, N, T, HW, K)` as `(B, S, D)`."""
    return x.permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)
