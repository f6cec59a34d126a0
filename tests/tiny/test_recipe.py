"""The recipe of the `tiny` preset's refiner agrees with the preset, and sees what it is to mend."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from configs.tiny.make.data import make_clip
from configs.tiny.make.export import SIGMAS
from configs.tiny.make.judge import as_pixels
from configs.tiny.make.train_refiner import WINDOW
from configs.tiny.make.tune import edge_error

from .conftest import Preset


def blurred(pixels: Tensor, size: int) -> Tensor:
    pad = (0, size // 2, size // 2)
    return F.avg_pool3d(pixels, (1, size, size), 1, pad, count_include_pad=False)


def test_an_export_declares_the_steps_and_the_window_of_the_preset(preset: Preset) -> None:
    assert list(SIGMAS) == list(preset.sigmas)
    assert preset.window == WINDOW


def test_soft_pictures_cost_more_than_pictures_that_are_a_pixel_off() -> None:
    truth = as_pixels([make_clip("test", 7, frames=5)])
    assert edge_error(truth, truth) == 0
    little, much = (float(edge_error(blurred(truth, size), truth)) for size in (3, 5))
    shifted = float(edge_error(truth[..., 1:], truth[..., :-1]))
    assert 0 < shifted < little < much
