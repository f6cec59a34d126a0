"""The whole clip in one call with chunk borders as masks: an independent form of streaming.

`block_causal` replaces everything that mixes time (memories, short convolution, softmax, temporal
convolution) by a dense version written from the formulas, frame by frame, which looks at the whole
clip and is told by a table which chunk each frame belongs to. Nothing is carried.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sanawm.stage1 import gdn, softmax
from sanawm.stage1.ffn import ConvFeedForward
from sanawm.stage1.gdn import Frames, ShortConv
from sanawm.stage1.positions import TokenGrid


class Borders:
    """Which chunk each frame belongs to, and what follows for every layer that mixes time."""

    def __init__(self, chunk_of: Sequence[int], per_frame: int) -> None:
        self.chunk_of, self.per_frame = list(chunk_of), per_frame
        self.frames = len(self.chunk_of)

    def visible(self, now: int, other: int) -> bool:
        """Whether frame `now` may look at frame `other`."""
        return 0 <= other < self.frames and self.chunk_of[other] <= self.chunk_of[now]

    def short_conv(self, weight: Tensor, x: Tensor) -> Tensor:
        taps = weight[:, 0].T  # (taps, D), the last one is the centre
        reach = len(taps) - 1
        y = torch.zeros_like(x)
        for t in range(self.frames):
            for j in range(-reach, reach + 1):
                if self.visible(t, t + j):
                    y[:, t] += taps[reach - abs(j)] * x[:, t + j]
        return y

    def memory(self, updates: Frames, decay: Tensor) -> Tensor:
        """Sum, for every pair of frames, what the one adds and the frames between decay."""
        eye = torch.eye(updates.overlap.shape[-1], dtype=torch.float64)
        keep = decay[..., None, None].double() * (eye - updates.overlap.double())
        added = updates.added.double()
        read = torch.zeros_like(added)
        for t in range(self.frames):
            for source in range(self.frames):
                if source > t and self.chunk_of[source] != self.chunk_of[t]:
                    continue
                path = range(source + 1, t + 1) if source <= t else range(source - 1, t, -1)
                term = added[source]
                for step in path:
                    term = term @ keep[step]
                read[t] += term
        return read.float()

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        chunk = torch.tensor(self.chunk_of).repeat_interleave(self.per_frame)  # (S,)
        scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(chunk[None, :] > chunk[:, None], -torch.inf)
        return (scores.softmax(-1) @ v.double()).float()

    def temporal(self, weight: Tensor, y: Tensor) -> Tensor:
        before, now, after = weight[..., 0].unbind(-1)  # (D, D) each
        out = y + y @ now.T
        for t in range(self.frames):
            if t > 0:
                out[:, t] += y[:, t - 1] @ before.T
            if self.visible(t, t + 1):
                out[:, t] += y[:, t + 1] @ after.T
        return out


def block_causal(
    monkeypatch: pytest.MonkeyPatch, *, chunk_of: Sequence[int], per_frame: int
) -> None:
    """Make one call over all frames equal the stream in which frame t is in chunk `chunk_of[t]`."""
    borders = Borders(chunk_of, per_frame)

    def short_conv(self: ShortConv, x: Tensor, *, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        assert tail is None
        return borders.short_conv(self.weight, x), x[:, -1:]

    def run_memory(updates: Frames, decay: Tensor, *, past: Tensor | None) -> tuple[Tensor, Tensor]:
        assert past is None
        read = borders.memory(updates, decay)
        return read, read[-1]

    def feed_forward(
        self: ConvFeedForward, x: Tensor, grid: TokenGrid, *, tail: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        assert tail is None
        y = self._spatial(x, grid)
        return borders.temporal(self.t_conv.weight, y).flatten(1, 2), y[:, -1:]

    monkeypatch.setattr(ShortConv, "forward", short_conv)
    monkeypatch.setattr(gdn, "run_memory", run_memory)
    monkeypatch.setattr(softmax, "attention", borders.attention)
    monkeypatch.setattr(ConvFeedForward, "forward", feed_forward)
