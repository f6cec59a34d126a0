"""Smallest, largest, mean and deviation of numbers that come in pieces. float64 throughout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

#: Numbers that are converted at once.
PIECE = 1 << 22


class Statistics(NamedTuple):
    """Values of a tensor; `low`, `high`, `mean`, `std` (population) are of its finite values.

    They are NaN when there is none. `nan` and `infinite` count the others.
    """

    numbers: int
    low: float
    high: float
    mean: float
    std: float
    nan: int
    infinite: int

    def line(self) -> str:
        """Return the values for people."""
        odd = f", {self.nan} NaN" + (f", {self.infinite} infinite" if self.infinite else "")
        text = f"min {self.low:.5g}  max {self.high:.5g}  mean {self.mean:.5g}  std {self.std:.5g}"
        return f"{text}{odd}"

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON, which has no NaN."""
        ends = {"min": self.low, "max": self.high, "mean": self.mean, "std": self.std}
        values = {k: None if math.isnan(v) else v for k, v in ends.items()}
        return {**values, "nan": self.nan, "infinite": self.infinite}


def statistics_of(pieces: Iterable[np.ndarray]) -> Statistics:
    """Return the statistics of all numbers in `pieces`, of which one is in memory at a time.

    Means and deviations of the pieces are merged as they are (Chan, Golub, LeVeque 1979), so that
    a deviation that is small beside the mean keeps its digits.
    """
    count = finite = nan = infinite = 0
    low, high, mean, spread = math.inf, -math.inf, 0.0, 0.0
    for piece in pieces:
        values = piece.astype(np.float64).ravel()
        count += values.size
        good = values[np.isfinite(values)]
        missing = int(np.isnan(values).sum())
        nan += missing
        infinite += values.size - good.size - missing
        if not good.size:
            continue
        low, high = min(low, float(good.min())), max(high, float(good.max()))
        piece_mean = float(good.mean())
        piece_spread = float(np.square(good - piece_mean).sum())
        total = finite + good.size
        shift = piece_mean - mean
        spread += piece_spread + shift * shift * finite * good.size / total
        mean += shift * good.size / total
        finite = total
    if not finite:
        return Statistics(count, math.nan, math.nan, math.nan, math.nan, nan, infinite)
    return Statistics(count, low, high, mean, math.sqrt(spread / finite), nan, infinite)


def pieces_of(tensor: Tensor) -> Iterable[np.ndarray]:
    """Yield the numbers of a real tensor in pieces, as a dtype that NumPy knows."""
    import torch

    flat = tensor.detach().reshape(-1)
    exact = flat.dtype in (torch.float64, torch.float32) or not flat.is_floating_point()
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        yield (piece if exact else piece.float()).numpy()
