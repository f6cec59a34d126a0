"""Softmax attention over a window of chunks, the other kind of self-attention of stage 1.

| step | dtype |
|---|---|
| projections, attention, cached keys and values | dtype of the weights |
| query/key norms, rotation, ray transform | float32, rounded back |

Source: the public SANA-WM model. No mask: the queries of a chunk see the whole chunk and the cached
chunks. The scale is `1 / sqrt(K)` of the true head size (not of a padded one).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sanawm.ops.attention import attention, merge_heads

from .branches import QKV, ChunkContext, TwoBranchAttention
from .positions import rotate
from .rays import RayFrames


class ChunkKV(NamedTuple):
    """Keys and values of one chunk, `(B, N, S, K)`.

    The main ones are kept after rotation, the camera's after the ray transform (None without).
    """

    k: Tensor
    v: Tensor
    camera_k: Tensor | None = None
    camera_v: Tensor | None = None


class SoftmaxAttention(TwoBranchAttention):
    """Self-attention of every fourth block of the release."""

    def forward(
        self, u: Tensor, context: ChunkContext, *, past: Sequence[ChunkKV]
    ) -> tuple[Tensor, ChunkKV]:
        """Return the attention of modulated tokens `u` `(B, S, D)` and this chunk's keys/values.

        past: the cached chunks that are visible, ascending.
        """
        qkv, *camera_qkv, gate = self.project(u)
        q, k, v = qkv.chunk(3, dim=-1)  # (B, S, D) each
        both = self.split(torch.cat([self.q_norm(q), self.k_norm(k)], dim=-1))
        q, k = rotate(both, context.rope).chunk(2, dim=2)
        q, k, v = (x.transpose(1, 2) for x in (q, k, self.split(v)))  # (B, N, S, K) each
        main = attention(q, _joined([c.k for c in past], k), _joined([c.v for c in past], v))
        camera, camera_k, camera_v = None, None, None
        if context.rays is not None:
            turned = self._camera_qkv(QKV(*camera_qkv), context.rays)
            cq, camera_k, camera_v = (x.transpose(1, 2) for x in turned)
            seen_k = _joined([c.camera_k for c in past], camera_k)
            seen_v = _joined([c.camera_v for c in past], camera_v)
            o = attention(cq, seen_k, seen_v).transpose(1, 2)  # (B, S, N, K)
            camera = context.rays.turn_output(o).flatten(2)
        return self.combine(gate, merge_heads(main), camera), ChunkKV(k, v, camera_k, camera_v)

    def _camera_qkv(self, qkv: QKV, rays: RayFrames) -> QKV:
        """Return the camera branch's queries, keys and values, normed and turned."""
        q, k = self.q_norm_cam(qkv.q), self.k_norm_cam(qkv.k)
        return self.turn(QKV(self.split(q), self.split(k), self.split(qkv.v)), rays)


def _joined(past: Sequence[Tensor | None], now: Tensor) -> Tensor:
    """Return cached keys (or values) and this chunk's along the key axis, `(B, N, P, K)`."""
    parts = [p for p in past if p is not None]
    assert len(parts) == len(past), "a chunk in the window was written without a camera"
    return torch.cat([*parts, now], dim=2) if parts else now
