"""Whether the file that a source names can be of its kind, told from its name. No torch here."""

from __future__ import annotations

from pathlib import Path

from .config import Resolved
from .errors import InputError, MissingFile
from .io.image import PICTURE_ENDINGS

#: A GIF may be either.
PICTURES = tuple(ending for ending in PICTURE_ENDINGS if ending != ".gif")
VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v")
LATENTS = (".safetensors", ".npy", ".npz", ".pt", ".pth")
#: What the endings of a kind are called, and the option that reads it.
KINDS = {
    "image": (PICTURES, "a picture"),
    "video": (VIDEOS, "a video"),
    "latents": (LATENTS, "a file of tensors (.safetensors, .npy, .npz, .pt)"),
}


def check_kind(settings: Resolved, kind: str) -> Path:
    """Return the file of source `kind` (image, video or latents).

    Raises `MissingFile` for a folder, and `InputError` for a file of another kind, whose option is
    named.
    """
    key = f"input.{kind}"
    path, name = Path(settings.get(key)), settings.named(key)
    wanted = KINDS[kind][1]
    if path.is_dir():
        raise MissingFile(f"{name}: a folder, expected {wanted}", fix="name the file in it")
    for other, (endings, found) in KINDS.items():
        if other != kind and path.suffix.lower() in endings and path.is_file():
            raise InputError(
                f"{name}: {found} by its ending {path.suffix!r}, expected {wanted}",
                fix=f"use --{other} {path.name} instead",
            )
    return path
