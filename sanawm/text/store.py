"""A folder that keeps prompt embeddings, so that a known prompt needs no text encoder run.

The key is a SHA-256 over everything that decides the result: the exact prompt, its length limit,
dtype and kind of device, the settings and tokenizer files byte by byte, and fingerprints of the
content of both weight files. Where the files lie plays no part.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from sanawm.errors import InputError, MissingFile, OutputError
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles

from .embeddings import PromptEmbeds, load_prompt_embeds, save_prompt_embeds
from .prompt import prompt_sha256
from .tokenizer import TOKENIZER_FILES, tokenizer_folder

#: Raised by one when the encoding changes its result, so that older entries are not found.
RECIPE = 1


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
    tokenizer = tokenizer_folder(text_encoder)
    parts = {
        "recipe": RECIPE,
        "prompt": prompt_sha256(prompt),
        "max_length": max_length,
        "device": torch.device(device).type,
        "dtype": str(dtype),
        "tokenizer": {name: _file_sha256(tokenizer / name) for name in TOKENIZER_FILES},
    }
    for name, folder in (("text encoder", text_encoder), ("connectors", connectors)):
        weights = TensorFiles(folder).fingerprint(component=name)["header_sha256"]
        parts[name] = [_file_sha256(folder / "config.json"), weights]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _file_sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


class PromptStore:
    """Prompt embeddings in the folder `prompt_embeds` of a cache folder, one file a key."""

    def __init__(self, cache: Path) -> None:
        self.folder = cache / "prompt_embeds"

    def path(self, key: str) -> Path:
        """Return the file of an entry, whether it exists or not."""
        return self.folder / f"{key}.safetensors"

    def get(self, key: str, *, notes: Notes) -> PromptEmbeds | None:
        """Return the entry `key` on the CPU, or None.

        An entry that is damaged counts as missing, with a warning.
        """
        path = self.path(key)
        if not path.exists():
            return None
        try:
            prompt, _, metadata = load_prompt_embeds(path)
        except (InputError, MissingFile) as e:
            notes.warn(f"broken entry in the store of prompt embeddings, encoding again: {e}")
            return None
        if metadata.get("key") != key or metadata.get("sha256") != _digest(prompt.embeds):
            notes.warn(f"broken entry in the store of prompt embeddings, encoding again: {path}")
            return None
        return prompt

    def put(self, key: str, prompt: PromptEmbeds, *, notes: Notes) -> None:
        """Write the entry `key`, replacing a broken one; when the disk refuses, only warn."""
        metadata = {"key": key, "sha256": _digest(prompt.embeds)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_prompt_embeds(self.path(key), prompt, metadata=metadata, overwrite=True)
        except OutputError as e:
            notes.warn(f"prompt embeddings were not stored: {e.message}")
        except OSError as e:
            notes.warn(f"prompt embeddings were not stored: {self.folder} ({e.strerror})")


def _digest(embeds: Tensor) -> str:
    raw = embeds.detach().cpu().contiguous().view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()
