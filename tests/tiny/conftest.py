"""Held-out scenes, rendered here, through the models of the `tiny` preset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from configs.tiny.make.judge import (
    ModelSet,
    RefinerCase,
    decode,
    load_model_set,
    refine,
    refiner_case,
)
from sanawm.config import resolve
from sanawm.shapes import Window

#: Held-out scenes of the refiner's tests, few for the sake of time; README.md has figures of 16.
SCENES = (0, 1)


@pytest.fixture(autouse=True, scope="package")
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Preset(NamedTuple):
    """What the preset says about the refiner, and where its models are."""

    folder: Path
    window: Window
    sigmas: Sequence[float]

    def refine(
        self, models: ModelSet, case: RefinerCase, *, window: Window | None = None,
        true_history: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return refined latents, by the preset's window and sigmas."""
        return refine(
            models,
            case,
            window=window or self.window,
            sigmas=self.sigmas,
            true_history=true_history,
        )


@pytest.fixture(scope="session")
def preset() -> Preset:
    settings = resolve(["tiny"])
    names = ("sink_size", "block_size", "kv_max_frames")
    return Preset(
        Path(settings.get("model.refiner")).parent,
        Window(*(settings.get(f"refiner.{n}") for n in names)),
        settings.get("refiner.sigmas"),
    )


@pytest.fixture(scope="session")
def models(preset: Preset) -> ModelSet:
    return load_model_set(preset.folder)


@pytest.fixture(scope="session")
def case(models: ModelSet) -> RefinerCase:
    """Clips of 12 blocks; their latents made worse, as a hurried stage 1 would have left them."""
    return refiner_case(models, SCENES)


@pytest.fixture(scope="session")
def refined(preset: Preset, models: ModelSet, case: RefinerCase) -> Tensor:
    """The refiner's own roll-out over the 12 blocks."""
    return preset.refine(models, case)


class Shown(NamedTuple):
    """Decoded pixels `(B, 3, F, 64, 96)`: degraded latents, refined ones, and the VAE's best."""

    given: Tensor
    refined: Tensor
    best: Tensor


@pytest.fixture(scope="session")
def shown(models: ModelSet, case: RefinerCase, refined: Tensor) -> Shown:
    return Shown(*(decode(models, z) for z in (case.given, refined, case.truth)))
