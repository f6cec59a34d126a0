"""What both kinds of self-attention share: a main and a camera branch, joined and gated.

| step | dtype |
|---|---|
| projections, sums | dtype of the weights |
| query/key norms, product with the output gate | float32, rounded back |

Source: the public SANA-WM model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.ops.linear import JoinedLinear, needs_gradients

from .config import Stage1Config
from .norm import RMSNorm
from .positions import TokenGrid
from .rays import RayFrames, limit_growth

NORM_EPS = 1e-5


class ChunkContext(NamedTuple):
    """What every block of one chunk needs besides tokens: the same in all passes of the chunk."""

    grid: TokenGrid
    rope: Tensor  # complex, (S, 1, K/2)
    rays: RayFrames | None  # None: the camera branch is skipped
    plucker: Tensor | None  # (B, S, D) embedded, None: no Plücker residual
    residuals: tuple[Tensor, ...] = ()  # of the first blocks, if made in advance; (B, S, D) each


class QKV(NamedTuple):
    """Queries, keys and values of one branch."""

    q: Tensor
    k: Tensor
    v: Tensor


class TwoBranchAttention(nn.Module):
    """Projections of the main and the camera branch, and their combination.

    Both branches read the same input; their results are added, gated per channel and projected.
    """

    def __init__(self, config: Stage1Config) -> None:
        super().__init__()
        D = config.width
        self.heads, self.head_size = config.heads, config.head_size
        self.camera_clamp = config.camera_clamp
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.q_norm = RMSNorm(D, eps=NORM_EPS)
        self.k_norm = RMSNorm(D, eps=NORM_EPS)
        self.q_proj_cam = nn.Linear(D, D)
        self.k_proj_cam = nn.Linear(D, D)
        self.v_proj_cam = nn.Linear(D, D)
        self.q_norm_cam = RMSNorm(D, eps=NORM_EPS)
        self.k_norm_cam = RMSNorm(D, eps=NORM_EPS)
        self.out_proj_cam = nn.Linear(D, D)
        self.output_gate = nn.Linear(D, D)
        self.proj = nn.Linear(D, D)
        self.joined: JoinedLinear | None = None

    @property
    def readers(self) -> list[nn.Linear]:
        """All linear layers that read the block's modulated tokens."""
        cameras = [self.q_proj_cam, self.k_proj_cam, self.v_proj_cam]
        return [self.qkv, *cameras, self.output_gate]

    def prepare(self) -> None:
        """Join the layers of `readers` to one product: a quarter less time for 72 tokens."""
        if not self.qkv.weight.requires_grad:
            self.joined = JoinedLinear(self.readers)

    def project(self, u: Tensor) -> tuple[Tensor, ...]:
        """Return what every layer of `readers` makes of tokens `u` `(B, S, D)`."""
        if self.joined is None or needs_gradients(u, self.qkv.weight):
            return tuple(layer(u) for layer in self.readers)
        return self.joined(u)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TwoBranchAttention:
        self.joined = None  # moved weights are no longer views of the joined one
        return super()._apply(fn, recurse)

    def split(self, x: Tensor) -> Tensor:
        """Return `(B, S, M*D)` as `(B, S, M*N, K)`."""
        return x.view(*x.shape[:-1], -1, self.head_size)

    def turn(self, qkv: QKV, rays: RayFrames) -> QKV:
        """Return queries, keys and values `(B, S, N, K)` turned by the rays of their tokens."""
        # Keys and values turn alike: one call for both.
        k, v = rays.turn_key(torch.cat([qkv.k, qkv.v], dim=2)).chunk(2, dim=2)
        turned = QKV(rays.turn_query(qkv.q), k, v)
        if not self.camera_clamp:
            return turned
        return QKV(*(limit_growth(t, x) for t, x in zip(turned, qkv, strict=True)))

    def combine(self, gate: Tensor, main: Tensor, camera: Tensor | None) -> Tensor:
        """Return the block's attention result `(B, S, D)` from both branches `(B, S, D)`.

        gate: `output_gate` of the block's tokens, before its SiLU.
        """
        joined = main if camera is None else main + self.out_proj_cam(camera)
        gated = joined.float() * F.silu(gate.float())
        return self.proj(gated.to(gate.dtype))
