"""Pixels to bytes: rounding, clamping, order of axes, and values that are no numbers."""

from __future__ import annotations

import pytest
import torch

from sanawm.errors import NumericsError, UsageError
from sanawm.vae import channels_last, pixels_to_uint8, uint8_to_pixels


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


@pytest.mark.parametrize("values", [1, 7, 100, 1 << 19])
def test_slices_are_the_whole(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.randn(2, 3, 5, 6, 4, generator=torch.Generator().manual_seed(0))
    whole = ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 4, 1)
    monkeypatch.setattr(channels_last, "SLICE_VALUES", values)
    assert torch.equal(pixels_to_uint8(pixels), whole)
    in_order = pixels.contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(pixels_to_uint8(in_order), whole)


def test_finite_pixels_whose_sum_is_not() -> None:
    pixels = torch.full((1, 3, 1, 2, 2), 2e36)  # times 127.5, twelve of them: above float32
    assert pixels_to_uint8(pixels).unique().tolist() == [255]


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
