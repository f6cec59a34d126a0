"""Where a refiner token lies in time and space, as RoPE sees it.

All arithmetic is float32 in the order written here; see `sanawm.ops.rope` for why that matters.
Source: the video coordinate rule of LTX-2 (midpoints of patches, time in seconds).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sanawm.ops.rope import RopeTable, frequencies, table_from_fractions

from .config import RefinerConfig


class RopeBuilder:
    """Build RoPE tables for latent frames at absolute positions on one `height x width` grid."""

    def __init__(
        self,
        config: RefinerConfig,
        *,
        height: int,
        width: int,
        fps: float,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.fps = fps
        self.device = device
        self._freqs = frequencies(
            config.width // 6, theta=config.rope_theta, double=config.rope_double_precision
        )
        _, scale_h, scale_w = config.vae_scale_factors
        rows = _midpoints(height, scale_h) / config.base_height  # (H,)
        columns = _midpoints(width, scale_w) / config.base_width  # (W,)
        self._rows = rows.repeat_interleave(width)  # (H*W,): rows slow, columns fast
        self._columns = columns.repeat(height)

    def build(self, frames: Sequence[int]) -> RopeTable:
        """Return the table of all tokens of `frames` (absolute, >= 0), frames slowest."""
        time = self._seconds(torch.tensor(list(frames), dtype=torch.float32))
        time = time / self.config.pos_embed_max_pos
        per_frame = self._rows.numel()
        fractions = torch.stack(
            (
                time.repeat_interleave(per_frame),
                self._rows.repeat(len(time)),
                self._columns.repeat(len(time)),
            ),
            dim=1,
        )  # (S, 3): time, height, width
        table = table_from_fractions(
            fractions,
            self._freqs,
            heads=self.config.num_attention_heads,
            width=self.config.width,
        )
        return table.to(self.device)

    def _seconds(self, frames: Tensor) -> Tensor:
        """Return the middle of each latent frame in seconds; the first covers one frame only."""
        scale = self.config.vae_scale_factors[0]
        shift = self.config.causal_offset - scale
        low = (frames * scale + shift).clamp(min=0) / self.fps
        high = ((frames + 1) * scale + shift).clamp(min=0) / self.fps
        return (low + high) / 2


def _midpoints(count: int, scale: int) -> Tensor:
    start = torch.arange(count, dtype=torch.float32) * scale
    return (start + (start + scale)) / 2
