"""What both kinds of self-attention share: a main and a camera branch, joined and gated.

| step | dtype |
|---|---|
| projections, sums | dtype of the weights |
| query/key norms, product with the output gate | float32, rounded back |

Source: the public SANA-WM model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.ops.rope import RopeTable

from .config import Stage1Config
from .norm import RMSNorm
from .positions import TokenGrid
from .rays import RayFrames, limit_growth

NORM_EPS = 1e-5


class ChunkContext(NamedTuple):
    """What every block of one chunk needs besides tokens: the same in all passes of the chunk."""

    grid: TokenGrid
    rope: RopeTable  # (1, S, K/2)
    rays: RayFrames | None  # None: the camera branch is skipped
    plucker: Tensor | None  # (B, S, D) embedded, None: no Plücker residual


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
        self.heads, self.camera_clamp = config.heads, config.camera_clamp
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

    def split(self, x: Tensor) -> Tensor:
        """Return `(B, S, D)` as `(B, S, N, K)`."""
        return x.unflatten(-1, (self.heads, -1))

    def turn(self, qkv: QKV, rays: RayFrames) -> QKV:
        """Return queries, keys and values `(B, S, N, K)` turned by the rays of their tokens."""
        turned = QKV(rays.turn_query(qkv.q), rays.turn_key(qkv.k), rays.turn_key(qkv.v))
        if not self.camera_clamp:
            return turned
        return QKV(*(limit_growth(t, x) for t, x in zip(turned, qkv, strict=True)))

    def combine(self, u: Tensor, main: Tensor, camera: Tensor | None) -> Tensor:
        """Return the block's attention result `(B, S, D)` from both branches `(B, S, D)`."""
        joined = main if camera is None else main + self.out_proj_cam(camera)
        gated = joined.float() * F.silu(self.output_gate(u).float())
        return self.proj(gated.to(u.dtype))
