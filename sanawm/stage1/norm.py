"""Root-mean-square norm with a weight, over the last axis.

| step | dtype |
|---|---|
| norm and weight product | float32, rounded once to the dtype of the input |
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`. Query and key norms act on the whole width, before the head split."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:  # torch's own form: bit-equal, a third less time
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return rms_norm(x, eps=self.eps, weight=self.weight)
