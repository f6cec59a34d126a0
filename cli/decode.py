"""`sanawm decode`: latents become a video through the causal VAE."""

from __future__ import annotations

from typing import Any

from sanawm.paths import check_path

from .console import Console
from .params import DECODE
from .session import settings_of


def run(values: dict[str, Any], console: Console) -> None:
    """Decode a latents file."""
    settings = settings_of(values, DECODE, console)
    check_path(values["latents"], where="decode")
    from sanawm.convert import decode_file

    keep = values.get("drop_first_frame")
    made = decode_file(
        values["latents"],
        settings,
        drop_first=bool(keep),
        notes=console.notes,
        listener=console,
    )
    console.result(
        str(made.path),
        {"schema": 1, "status": "done", "output": str(made.path), "frames_written": made.frames},
    )
