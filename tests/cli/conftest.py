"""Inputs for tests of the command, and one finished run that many tests look at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from .command import CHANNELS, Done, pixel_frames, sanawm

#: Latent frames, height and width of the clip that most tests refine: two blocks of 48x64.
LATENTS = (7, 6, 8)


def make_latents(frames: int, height: int, width: int) -> torch.Tensor:
    """Return latents `(1, C, frames, height, width)`; a longer clip starts like a shorter one."""
    generator = torch.Generator().manual_seed(7)
    clip = [torch.randn((CHANNELS, height, width), generator=generator) for _ in range(frames)]
    return torch.stack(clip, dim=1)[None].contiguous()


def save_latents(path: Path, latents: torch.Tensor) -> Path:
    """Write a latents file and return its path."""
    save_file({"latents": latents.contiguous()}, path)
    return path


@pytest.fixture(scope="session")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents of two blocks and the sink."""
    return save_latents(tmp_path_factory.mktemp("in") / "z.safetensors", make_latents(*LATENTS))


@pytest.fixture(scope="session")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slow walk forward, one pose a frame of the clip."""
    poses = np.tile(np.eye(4, dtype=np.float32), (pixel_frames(LATENTS[0]), 1, 1))
    poses[:, 2, 3] = np.linspace(0, 0.5, len(poses))
    path = tmp_path_factory.mktemp("camera") / "poses.npy"
    np.save(path, poses)
    return path


class Run(NamedTuple):
    """A finished run with every output that it can have."""

    done: Done
    folder: Path
    video: Path


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, latents: Path, camera: Path) -> Run:
    """The clip refined once, everything saved. Look, but do not touch."""
    folder = tmp_path_factory.mktemp("run")
    done = sanawm(
        "--log-format", "json", "--log-file", folder / "log.jsonl",
        "refine", "--latents", latents, "--camera", camera, "--prompt", "a red tower",
        "-o", folder / "out.mp4",
        "--save-latents", folder / "refined.safetensors",
        "--save-noise", folder / "noise.safetensors",
        "--save-prompt-embeds", folder / "embeds.safetensors",
        "--save-camera", folder / "camera.npy",
        "--frames-dir", folder / "frames",
        "--preview", folder / "sheet.png",
    )  # fmt: skip
    assert done.code == 0, done.err
    return Run(done, folder, folder / "out.mp4")


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    """Work in an empty folder."""
    here = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(here)
