"""Pixels to bytes: rounding, clamping, order of axes, and values that are no numbers."""

from __future__ import annotations

import pytest
import torch

from sanawm.errors import NumericsError, UsageError
from sanawm.vae import pixels_to_uint8, uint8_to_pixels


@pytest.mark.parametrize(
    ("value", "byte"),
    [(-1.0, 0), (1.0, 255), (-7.0, 0), (7.0, 255), (0.0, 128), (-0.9999, 0), (0.9999, 255)],
)
def test_clamps_and_ends(value: float, byte: int) -> None:
    assert pixels_to_uint8(torch.full((1, 3, 1, 1, 1), value)).unique().tolist() == [byte]


def test_rounds_and_does_not_truncate() -> None:
    levels = torch.tensor([10.4, 10.6, 99.49, 99.51])
    pixels = (levels / 127.5 - 1).view(1, 1, 1, 1, 4)
    assert pixels_to_uint8(pixels).flatten().tolist() == [10, 11, 99, 100]


def test_axes() -> None:
    pixels = torch.arange(2 * 3 * 4 * 5 * 6).view(2, 3, 4, 5, 6).remainder(256) / 127.5 - 1
    found = pixels_to_uint8(pixels)
    assert found.shape == (2, 4, 5, 6, 3)
    assert found.is_contiguous()
    assert found[1, 2, 3, 4, 1] == (((1 * 3 + 1) * 4 + 2) * 5 + 3) * 6 + 4 - 256 * 2
    assert torch.equal(pixels_to_uint8(uint8_to_pixels(found)), found)


def test_input_is_left_alone() -> None:
    pixels = torch.full((1, 3, 1, 2, 2), 0.3)
    pixels_to_uint8(pixels)
    assert pixels.unique().tolist() == [pytest.approx(0.3)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers(bad: float) -> None:
    pixels = torch.zeros(1, 3, 1, 2, 2)
    pixels[0, 1, 0, 0, 1] = bad
    with pytest.raises(NumericsError, match="VAE decoder: 1 of 12 pixel values are NaN"):
        pixels_to_uint8(pixels)


def test_bytes_must_be_bytes() -> None:
    with pytest.raises(UsageError, match="expected uint8"):
        uint8_to_pixels(torch.zeros(1, 1, 2, 2, 3))
