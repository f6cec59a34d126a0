"""PSNR and SSIM against their definitions, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sanawm.comparison import psnr, ssim
from sanawm.comparison.similarity import luma
from tests.tools.clips import moving


def plain_ssim(a: np.ndarray, b: np.ndarray, peak: float, size: int) -> float:
    """SSIM by its definition: a loop over windows, in float64."""
    place = np.arange(size) - size // 2
    line = np.exp(-(place**2) / (2 * 1.5**2))
    window = np.outer(line, line) / np.outer(line, line).sum()
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    values = []
    for y in range(a.shape[0] - size + 1):
        for x in range(a.shape[1] - size + 1):
            p = a[y : y + size, x : x + size].astype(np.float64)
            q = b[y : y + size, x : x + size].astype(np.float64)
            mean_p, mean_q = (window * p).sum(), (window * q).sum()
            var_p = (window * (p - mean_p) ** 2).sum()
            var_q = (window * (q - mean_q) ** 2).sum()
            cov = (window * (p - mean_p) * (q - mean_q)).sum()
            light = (2 * mean_p * mean_q + c1) / (mean_p**2 + mean_q**2 + c1)
            values.append(light * (2 * cov + c2) / (var_p + var_q + c2))
    return float(np.mean(values))


@pytest.mark.parametrize(("noise", "size"), [(1, 11), (12, 11), (80, 11), (12, 7)])
def test_ssim_is_its_definition(noise: int, size: int) -> None:
    rng = np.random.default_rng(noise)
    side = (7, 9) if size == 7 else (20, 26)
    a = np.clip(rng.normal(150, 20, side) + 30 * np.sin(np.arange(side[1]) / 3), 0, 255)
    b = np.clip(a + rng.normal(0, noise, side), 0, 255)
    assert ssim(a, b, peak=255) == pytest.approx(plain_ssim(a, b, 255, size), abs=1e-5)


def test_ssim_of_planes_is_their_mean_and_knows_its_limits() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, (2, 3, 12, 12))
    each = [ssim(x, y, peak=6.0) for x, y in zip(a, b, strict=True)]
    assert ssim(a, b, peak=6.0) == pytest.approx(np.mean(each), abs=1e-6)
    assert ssim(a, a, peak=6.0) == 1.0
    assert ssim(a, -a, peak=6.0) < 0
    assert math.isnan(ssim(a[:, :2], b[:, :2], peak=6.0))


def test_psnr_is_its_definition() -> None:
    assert psnr(0.0, peak=255) == math.inf
    assert psnr(1.0, peak=255) == pytest.approx(48.1308, abs=1e-4)
    assert psnr(255.0**2, peak=255) == 0


def test_luma_is_that_of_bt709() -> None:
    assert luma(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)) == pytest.approx(
        np.array([[54.213, 182.376, 18.411]]), abs=1e-3
    )
    assert luma(moving(1)).shape == (1, 32, 48)
