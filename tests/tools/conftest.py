"""One finished run of the tiny preset that many tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import sanawm


@pytest.fixture(autouse=True, scope="session")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's caches and settings out, and the network off."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SANAWM_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("SANAWM_LOG_FORMAT", "SANAWM_LOG_FILE"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run: two blocks, everything saved. Look, but do not touch."""
    folder = tmp_path_factory.mktemp("run")
    done = sanawm(
        "refine", "--num-frames", 25, "--prompt", "a red tower", "--fov-x", 80,
        "--refiner-kv-max-frames", 8, "-o", folder / "out.mp4",
        "--save-latents", folder / "refined.safetensors",
        "--save-noise", folder / "noise.safetensors",
        "--save-prompt-embeds", folder / "embeds.safetensors",
        "--save-camera", folder / "camera.npy",
        "--frames-dir", folder / "frames",
        "--preview", folder / "sheet.png",
    )  # fmt: skip
    assert done.code == 0, done.err
    return folder
