"""The store of prompt embeddings: what belongs to the key, and broken entries."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sanawm.notes import Notes
from sanawm.text.embeddings import PromptEmbeds, save_prompt_embeds
from sanawm.text.store import PromptStore, store_key
from tests.text.tiny_connectors import make_tiny_connectors

PROMPT = PromptEmbeds(torch.arange(12.0).view(1, 3, 4), None)


def key(gemma: Path, connectors: Path, prompt: str = "a red tower", **changes: Any) -> str:
    settings: dict[str, Any] = {
        "max_length": 64, "device": "cpu", "dtype": torch.float32
    } | changes  # fmt: skip
    return store_key(prompt, text_encoder=gemma, connectors=connectors, **settings)


def test_key_depends_on_text_and_settings(gemma_folder: Path, connectors_folder: Path) -> None:
    keys = {
        key(gemma_folder, connectors_folder),
        key(gemma_folder, connectors_folder, "a red tower."),
        key(gemma_folder, connectors_folder, max_length=128),
        key(gemma_folder, connectors_folder, dtype=torch.bfloat16),
        key(gemma_folder, connectors_folder, device="cuda:1"),
    }
    assert len(keys) == 5
    assert key(gemma_folder, connectors_folder) in keys


def flip_last_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "change",
    [
        lambda g, c: flip_last_byte(g / "model-00002-of-00002.safetensors"),
        lambda g, c: flip_last_byte(c / "diffusion_pytorch_model.safetensors"),
        lambda g, c: (g / "config.json").write_text((g / "config.json").read_text() + " "),
        lambda g, c: (c / "config.json").write_text((c / "config.json").read_text() + " "),
        lambda g, c: flip_last_byte(g / "tokenizer.json"),
        lambda g, c: (g / "added_tokens.json").write_text("{}"),
    ],
    ids=["encoder", "connectors", "encoder-config", "connectors-config", "tokenizer", "added"],
)
def test_other_weights_are_a_miss(
    gemma_folder: Path,
    connectors_folder: Path,
    tmp_path: Path,
    change: Callable[[Path, Path], object],
) -> None:
    gemma = Path(shutil.copytree(gemma_folder, tmp_path / "g"))
    connectors = Path(shutil.copytree(connectors_folder, tmp_path / "c"))
    before = key(gemma, connectors)
    assert before == key(gemma_folder, connectors_folder)  # where the files lie plays no part
    change(gemma, connectors)
    after = key(gemma, connectors)
    assert after != before
    store = PromptStore(tmp_path / "cache")
    store.put(before, PROMPT, notes=Notes())
    assert store.get(before, notes=Notes()) is not None
    assert store.get(after, notes=Notes()) is None


def test_hit(tmp_path: Path) -> None:
    store, notes = PromptStore(tmp_path / "new" / "cache"), Notes()
    assert store.get("k", notes=notes) is None
    store.put("k", PROMPT, notes=notes)
    kept = store.get("k", notes=notes)
    assert kept is not None
    assert torch.equal(kept.embeds, PROMPT.embeds)
    assert kept.mask is None
    assert [p.name for p in store.folder.iterdir()] == ["k.safetensors"]
    assert notes == Notes()


def flip_in_data(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-30] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(b"rubbish" * 20),
        flip_in_data,
        lambda path: save_prompt_embeds(path, PROMPT, overwrite=True),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["empty", "cut", "rubbish", "bit-flip", "foreign", "folder"],
)
def test_a_broken_entry_counts_as_missing(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    store, notes = PromptStore(tmp_path), Notes()
    store.put("k", PROMPT, notes=notes)
    damage(store.path("k"))
    assert store.get("k", notes=notes) is None
    assert len(notes.warnings) == 1
    assert str(store.path("k")) in notes.warnings[0]
    store.put("k", PROMPT, notes=notes)
    if not store.path("k").is_dir():
        assert store.get("k", notes=notes) is not None
        assert len(notes.warnings) == 1


def test_an_unwritable_folder_is_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    notes = Notes()
    PromptStore(tmp_path / "file").put("k", PROMPT, notes=notes)
    assert len(notes.warnings) == 1
    assert "not stored" in notes.warnings[0]


def test_entries_of_connectors_with_other_seeds_differ(gemma_folder: Path, tmp_path: Path) -> None:
    a = make_tiny_connectors(tmp_path / "a", seed=1)
    b = make_tiny_connectors(tmp_path / "b", seed=2)
    assert key(gemma_folder, a) != key(gemma_folder, b)
