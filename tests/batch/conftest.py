"""Inputs of batches, and one batch that many tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.command import CHANNELS

from .manifests import MIXED, Batched, single_runs, write_mixed
from .manifests import batch as run_batch


@pytest.fixture(scope="session")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents of the sink and two blocks, 32x48 pixels."""
    path = tmp_path_factory.mktemp("in") / "z.safetensors"
    clip = torch.randn((1, CHANNELS, 7, 4, 6), generator=torch.Generator().manual_seed(7))
    save_file({"latents": clip}, path)
    return path


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, latents: Path) -> Batched:
    """A dozen jobs with 2 processes, some lines broken, two with equal recipes. Only look."""
    folder = tmp_path_factory.mktemp("mixed")
    manifest = write_mixed(folder, latents)
    done = run_batch(manifest, folder / "out", "--jobs", 2)
    assert done.code == 1, done.err
    return Batched(done, folder / "out", manifest)


@pytest.fixture(scope="session")
def singles(tmp_path_factory: pytest.TempPathFactory, latents: Path, mixed: Batched) -> Path:
    """The good jobs of `mixed`, each by a `sanawm refine` of its own."""
    return single_runs(tmp_path_factory.mktemp("singles"), MIXED, latents)
