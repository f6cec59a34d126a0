"""One finished run of the tiny preset that many tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import sanawm


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
