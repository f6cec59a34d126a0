"""PSNR and SSIM, in NumPy.

| quantity | dtype |
|---|---|
| squared errors, their means | float64 |
| local means and variances of SSIM | float32, about the middle of the range |

SSIM is that of Wang, Bovik, Sheikh, Simoncelli (2004): a Gaussian window of 11 with sigma 1.5
(population statistics), K1 = 0.01, K2 = 0.03, over the places where the whole window lies in the
picture. It is what scikit-image computes with `gaussian_weights=True, sigma=1.5,
use_sample_covariance=False`, without its padding. Of pictures it looks at BT.709 luma.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: Size and deviation of the window, pixels. Smaller pictures get the largest odd window they hold.
WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
LUMA = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)


def psnr(mean_square: float, *, peak: float) -> float:
    """Return the peak signal-to-noise ratio in dB; infinite without an error."""
    if mean_square == 0:
        return math.inf
    return 10 * math.log10(peak * peak / mean_square) if peak > 0 else -math.inf


def luma(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return BT.709 luma `(..., H, W)`, 0 to 255, of RGB `(..., H, W, 3)`."""
    return pixels.astype(np.float32) @ LUMA


def ssim(a: NDArray[np.floating], b: NDArray[np.floating], *, peak: float) -> float:
    """Return the mean structural similarity of planes `(..., H, W)` whose values span `peak`.

    1 means equal. Planes smaller than 3 pixels a side have no structure: NaN.
    """
    if np.array_equal(a, b):
        return 1.0
    height, width = a.shape[-2:]
    size = min(WINDOW, height - 1 + height % 2, width - 1 + width % 2)
    if size < 3 or peak <= 0:
        return math.nan
    middle = np.float32((float(a.min()) + float(a.max())) / 2)
    x = a.astype(np.float32) - middle  # variances lose no digits to a large mean
    y = b.astype(np.float32) - middle
    mean_x, mean_y, xx, yy, xy = _smooth(np.stack([x, y, x * x, y * y, x * y]), size)
    var_x, var_y = xx - mean_x * mean_x, yy - mean_y * mean_y
    cov = xy - mean_x * mean_y
    mean_x, mean_y = mean_x + middle, mean_y + middle
    c1, c2 = np.float32((K1 * peak) ** 2), np.float32((K2 * peak) ** 2)
    light = (2 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1)
    shape = (2 * cov + c2) / (var_x + var_y + c2)
    return float(np.mean(light * shape, dtype=np.float64))


def _smooth(planes: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return Gaussian means over `size x size` windows that lie inside the planes `(..., H, W)`."""
    place = np.arange(size) - size // 2
    kernel = np.exp(-(place**2) / (2 * SIGMA**2))
    kernel = (kernel / kernel.sum()).astype(np.float32)
    rows = planes.shape[-2] - size + 1
    down = kernel[0] * planes[..., :rows, :]
    for i in range(1, size):
        down += kernel[i] * planes[..., i : i + rows, :]
    columns = planes.shape[-1] - size + 1
    across: NDArray[np.float32] = kernel[0] * down[..., :columns]
    for i in range(1, size):
        across += kernel[i] * down[..., i : i + columns]
    return across
