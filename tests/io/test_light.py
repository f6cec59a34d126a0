"""The modules of `sanawm.io` bring in no more than they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = "import {module}, sys; print([m for m in {banned!r} if m in sys.modules])"


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("sanawm.io.files", ["torch", "numpy", "av", "PIL", "imageio"]),
        ("sanawm.io.rates", ["torch", "numpy", "av"]),
        ("sanawm.io.video", ["torch", "PIL", "imageio", "safetensors"]),
        ("sanawm.io.reader", ["torch"]),
        ("sanawm.io.image", ["torch", "av"]),
        ("sanawm.io.latents", ["torch"]),
        ("sanawm.io.latent_writer", ["torch"]),
        ("sanawm.io.preview", ["torch"]),
        ("sanawm.io.frames_dir", ["torch"]),
    ],
)
def test_imports(module: str, banned: list[str]) -> None:
    code = CHECK.format(module=module, banned=banned)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
