"""A folder that keeps prompt embeddings, so that a known prompt needs no text encoder run.

It holds two kinds of entries: the refiner's embeddings (`store_key`) and stage 1's captions
(`caption_key`). The key is a SHA-256 over everything that decides the result: the exact prompt (and
instruction), its length limit, dtype and kind of device, the settings and tokenizer files byte by
byte, and fingerprints of the content of the weight files. Where the files lie plays no part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from sanawm.errors import InputError, MissingFile, OutputError
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles

from .embeddings import (
    PromptEmbeds,
    Stage1Caption,
    load_caption,
    load_prompt_embeds,
    save_caption,
    save_prompt_embeds,
)
from .prompt import prompt_sha256
from .tokenizer import TOKENIZER_FILES, tokenizer_folder

#: Raised by one when the encoding changes its result, so that older entries are not found.
RECIPE = 1

Entry = TypeVar("Entry", PromptEmbeds, Stage1Caption)


def store_key(
    prompt: str,
    *,
    text_encoder: Path,
    connectors: Path,
    max_length: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> str:
    """Return the hex key of a prompt's embeddings. Reads settings, headers and samples of weights.

    Raises `MissingFile` or `CheckpointError` when a component is not there or is broken.
    """
    parts = _parts(prompt, text_encoder, max_length=max_length, device=device, dtype=dtype)
    return _hash(parts | {"connectors": _weights(connectors, "connectors")})


def caption_key(
    prompt: str,
    *,
    text_encoder: Path,
    instruction: str | None,
    max_length: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> str:
    """Return the hex key of a prompt's stage-1 caption; reads and raises as `store_key`."""
    parts = _parts(prompt, text_encoder, max_length=max_length, device=device, dtype=dtype)
    words = None if instruction is None else prompt_sha256(instruction)
    return _hash(parts | {"kind": "stage-1 caption", "instruction": words})


def _parts(
    prompt: str,
    text_encoder: Path,
    *,
    max_length: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, object]:
    """Return what both kinds of keys are made of."""
    tokenizer = tokenizer_folder(text_encoder)
    return {
        "recipe": RECIPE,
        "prompt": prompt_sha256(prompt),
        "max_length": max_length,
        "device": torch.device(device).type,
        "dtype": str(dtype),
        "tokenizer": {name: _file_sha256(tokenizer / name) for name in TOKENIZER_FILES},
        "text encoder": _weights(text_encoder, "text encoder"),
    }


def _weights(folder: Path, name: str) -> list[object]:
    """Return hashes of a component's settings and weights."""
    weights = TensorFiles(folder).fingerprint(component=name)["header_sha256"]
    return [_file_sha256(folder / "config.json"), weights]


def _hash(parts: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _file_sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


class PromptStore:
    """Embeddings in the folder `prompt_embeds` of a cache folder, one file a key."""

    def __init__(self, cache: Path) -> None:
        self.folder = cache / "prompt_embeds"

    def path(self, key: str) -> Path:
        """Return the file of an entry, whether it exists or not."""
        return self.folder / f"{key}.safetensors"

    def get(self, key: str, *, notes: Notes) -> PromptEmbeds | None:
        """Return the refiner's entry `key` on the CPU, or None.

        An entry that is damaged counts as missing, with a warning.
        """
        return self._get(key, _load_prompt, notes=notes)

    def get_caption(self, key: str, *, notes: Notes) -> Stage1Caption | None:
        """Return stage 1's entry `key` on the CPU, or None; as `get`."""
        return self._get(key, load_caption, notes=notes)

    def _get(
        self, key: str, load: Callable[[Path], tuple[Entry, dict[str, str]]], *, notes: Notes
    ) -> Entry | None:
        path = self.path(key)
        if not path.exists():
            return None
        try:
            entry, metadata = load(path)
        except (InputError, MissingFile) as e:
            notes.warn(f"broken entry in the store of prompt embeddings, encoding again: {e}")
            return None
        if metadata.get("key") != key or metadata.get("sha256") != _digest(entry):
            notes.warn(f"broken entry in the store of prompt embeddings, encoding again: {path}")
            return None
        return entry

    def put(self, key: str, entry: PromptEmbeds | Stage1Caption, *, notes: Notes) -> None:
        """Write the entry `key`, replacing a broken one; when the disk refuses, only warn."""
        path, metadata = self.path(key), {"key": key, "sha256": _digest(entry)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if isinstance(entry, Stage1Caption):
                save_caption(path, entry, metadata=metadata, overwrite=True)
            else:
                save_prompt_embeds(path, entry, metadata=metadata, overwrite=True)
        except OutputError as e:
            notes.warn(f"prompt embeddings were not stored: {e.message}")
        except OSError as e:
            notes.warn(f"prompt embeddings were not stored: {self.folder} ({e.strerror})")


def _load_prompt(path: Path) -> tuple[PromptEmbeds, dict[str, str]]:
    prompt, _, metadata = load_prompt_embeds(path)
    return prompt, metadata


def _digest(entry: PromptEmbeds | Stage1Caption) -> str:
    digest = hashlib.sha256()
    for tensor in entry:
        if tensor is not None:
            raw = tensor.detach().cpu().contiguous().view(torch.uint8)
            digest.update(raw.numpy().tobytes())
    return digest.hexdigest()
