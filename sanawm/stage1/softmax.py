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
        q, k, v = self.qkv(u).chunk(3, dim=-1)  # (B, S, D) each
        q, k, v = (self.split(x) for x in (self.q_norm(q), self.k_norm(k), v))
        q, k = rotate(q, context.rope), rotate(k, context.rope)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, N, S, K) each
        main = attention(q, _joined([c.k for c in past], k), _joined([c.v for c in past], v))
        camera, camera_k, camera_v = None, None, None
        if context.rays is not None:
            cq, camera_k, camera_v = (x.transpose(1, 2) for x in self._camera_qkv(u, context))
            seen_k = _joined([c.camera_k for c in past], camera_k)
            seen_v = _joined([c.camera_v for c in past], camera_v)
            o = attention(cq, seen_k, seen_v).transpose(1, 2)  # (B, S, N, K)
            camera = context.rays.turn_output(o).flatten(2)
        return self.combine(u, merge_heads(main), camera), ChunkKV(k, v, camera_k, camera_v)

    def _camera_qkv(self, u: Tensor, context: ChunkContext) -> QKV:
        """Return the camera branch's turned queries, keys and values, `(B, S, N, K)` each."""
        assert context.rays is not None
        q = self.q_norm_cam(self.q_proj_cam(u))
        k = self.k_norm_cam(self.k_proj_cam(u))
        plain = QKV(self.split(q), self.split(k), self.split(self.v_proj_cam(u)))
        return self.turn(plain, context.rays)


def _joined(past: Sequence[Tensor | None], now: Tensor) -> Tensor:
    """Return cached keys (or values) and this chunk's along the key axis, `(B, N, P, K)`."""
    parts = [p for p in past if p is not None]
    assert len(parts) == len(past), "a chunk in the window was written without a camera"
    return torch.cat([*parts, now], dim=2) if parts else now
