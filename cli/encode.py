"""`sanawm encode`: an image or a video becomes latents."""

from __future__ import annotations

from typing import Any

from sanawm.paths import check_path

from .console import Console
from .params import ENCODE
from .session import settings_of


def run(values: dict[str, Any], console: Console) -> None:
    """Encode an image or a video file."""
    settings = settings_of(values, ENCODE, console)
    check_path(values["source"], where="encode")
    from sanawm.convert import encode_file

    path, shape = encode_file(values["source"], settings, notes=console.notes, listener=console)
    data = {"schema": 1, "status": "done", "output": str(path), "shape": list(shape)}
    console.result(str(path), data)
