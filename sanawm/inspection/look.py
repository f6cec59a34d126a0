"""Recognise a file or folder and describe it."""

from __future__ import annotations

from pathlib import Path

from sanawm.errors import InputError, MissingFile
from sanawm.io.image import PICTURE_ENDINGS
from sanawm.notes import Notes

from .documents import (
    look_at_config,
    look_at_json,
    look_at_text,
    look_at_trajectory,
    look_at_yaml,
)
from .finding import Finding, Look

TEXTS = (".txt", ".prompt", ".md", ".text")
#: First bytes of pictures under another name.
PICTURE_MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*")


def inspect_path(
    path: Path, *, stats: bool = False, keys: str | None = None, notes: Notes | None = None
) -> Finding:
    """Say what a file or folder is: by its name, then by its content.

    Only headers are read (of pictures and camera paths all) unless `stats`, which reads values.
    `keys` is a GLOB of tensor names to list. A broken file raises what `refine` would raise for it:
    `InputError` for malformed inputs, `MissingFile` and `CheckpointError` for the rest.
    """
    notes = notes or Notes()
    look = Look(stats, keys)
    if path.is_dir():
        return _folder(path, look, notes)
    head = _first_bytes(path)
    suffix = path.suffix.lower()
    if suffix in (".safetensors", ".state") or (len(head) > 8 and head[8:10] == b'{"'):
        from .tensors import look_at_safetensors

        return look_at_safetensors(path, look)
    if suffix in (".pt", ".pth"):
        from .tensors import look_at_pt

        return look_at_pt(path, look)
    if suffix in (".npy", ".npz"):
        from .tensors import look_at_array

        return look_at_array(path, look, lambda p, _: look_at_trajectory(p, notes))
    if suffix == ".toml":
        return look_at_config(path)
    if suffix in (".yaml", ".yml"):
        return look_at_yaml(path, notes)
    if suffix == ".json":
        return look_at_json(path, look, notes)
    if suffix in PICTURE_ENDINGS or head.startswith(PICTURE_MAGIC):
        from .media import look_at_image

        return look_at_image(path, look, notes)
    if suffix in TEXTS or (not suffix and _is_text(head)):
        return look_at_text(path, notes)
    return _video(path, head, look, notes)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            return f.read(4096)
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file or folder") from None
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        raise MissingFile(f"{path}: cannot be read ({reason})") from None


def _is_text(head: bytes) -> bool:
    return bool(head) and b"\0" not in head


def _video(path: Path, head: bytes, look: Look, notes: Notes) -> Finding:
    """Describe a video; say what a file is not when it is none."""
    from .media import look_at_video

    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise InputError(
            f"{path}: a pickle, which is never loaded",
            fix="tensors come as .safetensors, .npy, .npz or weights-only .pt",
        )
    return look_at_video(path, look, notes)


def _folder(folder: Path, look: Look, notes: Notes) -> Finding:
    """Describe a folder: a camera path, frames, a checkpoint or a set of them."""
    if any((folder / n).is_file() for n in ("images.txt", "images.bin", "transforms.json")):
        return look_at_trajectory(folder, notes)
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    if files and all(p.suffix.lower() in PICTURE_ENDINGS for p in files):
        from .media import look_at_frames

        return look_at_frames(folder, files, look, notes)
    from .checkpoints import look_at_checkpoint

    found = look_at_checkpoint(folder, look, notes)
    if found is None:
        raise MissingFile(
            f"{folder}: nothing in this folder is known",
            fix="expected a checkpoint (config.json and safetensors), a COLMAP model, "
            "transforms.json, or frames as pictures",
        )
    return found
