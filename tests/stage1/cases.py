"""The golden stage-1 models: tiny random weights and what the reference made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from sanawm.notes import Notes
from sanawm.shapes import LatentShape
from sanawm.stage1.camera import ReadyCamera
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.noise import ClipNoise
from sanawm.stage1.sampler import Stage1Stream
from sanawm.stage1.weights import load_stage1

GOLDEN = Path(__file__).parents[1] / "golden" / "stage1"
TINY = GOLDEN / "streaming_tiny"
CASES = ("case_a", "case_b_nosink")
#: Frames of the chunks of the layer fixtures, and their grid.
LAYER_CHUNKS, LAYER_HEIGHT, LAYER_WIDTH = (4, 3, 3), 2, 3
LAYER_ATOL = 1e-5
STREAM_ATOL = 5e-5


@dataclass(frozen=True)
class Case:
    """Settings and tensors of one streaming run."""

    steps: tuple[float, ...]
    cached: int
    sink: bool
    segments: tuple[int, ...]
    tensors: dict[str, Tensor]

    @property
    def shape(self) -> LatentShape:
        return LatentShape(*self.tensors["noise"].shape)


@cache
def case(name: str) -> Case:
    settings = json.loads((TINY / f"{name}.json").read_text())
    return Case(
        tuple(settings["steps"]),
        settings["num_cached_blocks"],
        settings["sink_token"],
        tuple(settings["segments"]),
        load_file(TINY / f"{name}.safetensors"),
    )


@cache
def layer(name: str) -> dict[str, Tensor]:
    return {k: v.float() for k, v in load_file(GOLDEN / "layers" / f"{name}.safetensors").items()}


@cache
def bidirectional() -> dict[str, Tensor]:
    return load_file(GOLDEN / "bidir_tiny" / "case.safetensors")


def tiny_config() -> Stage1Config:
    return Stage1Config.from_file(TINY / "model.yaml")


def tiny_model(
    *, config: Stage1Config | None = None, dtype: torch.dtype = torch.float32
) -> Stage1Model:
    """Load the tiny weights anew, so that a test may change them."""
    return load_stage1(
        TINY / "weights.safetensors",
        config=tiny_config() if config is None else config,
        device="cpu",
        dtype=dtype,
        notes=Notes(),
    )


def layer_config() -> Stage1Config:
    """Config of the fixtures in `layers`: width 48, 3 heads of 16, cross-attention with 4 heads."""
    return Stage1Config(
        latent_channels=8, width=48, depth=4, head_size=16, cross_heads=4, text_width=8
    )


def stream(
    model: Stage1Model,
    run: Case,
    *,
    steps: Sequence[float] | None = None,
    cached: int | None = None,
    sink: bool | None = None,
    frames: int | None = None,
    start: bool = True,
) -> Stage1Stream:
    """Set up the stream of a case, with some of its settings replaced."""
    t = run.tensors
    shape = run.shape if frames is None else run.shape._replace(frames=frames)
    made = Stage1Stream(
        model,
        caption=t["caption"],
        mask=t["caption_mask"],
        camera=ReadyCamera(t["camera_conditions"], t["chunk_plucker"]),
        shape=shape,
        noise=ClipNoise(t["noise"][:, :, : shape.frames], shape=shape),
        steps=run.steps if steps is None else steps,
        num_cached_blocks=run.cached if cached is None else cached,
        sink_token=run.sink if sink is None else sink,
    )
    if start:
        made.start(t["image_latent"])
    return made


def worst(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference of two tensors of one shape."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float((found.float() - expected.float()).abs().max())
