"""The store of prompt embeddings: what belongs to the key, and broken entries."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles
from sanawm.text.embeddings import (
    PromptEmbeds,
    Stage1Caption,
    save_caption,
    save_prompt_embeds,
)
from sanawm.text.store import PromptStore, caption_key, store_key
from tests.text.tiny_connectors import make_tiny_connectors

PROMPT = PromptEmbeds(torch.arange(12.0).view(1, 3, 4), None)
CAPTION = Stage1Caption(torch.arange(20.0).view(1, 1, 4, 5), torch.tensor([[1, 1, 0, 0]]))


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


def key_of_caption(gemma2: Path, prompt: str = "a red tower", **changes: Any) -> str:
    settings: dict[str, Any] = {
        "instruction": "Look: ", "max_length": 64, "device": "cpu", "dtype": torch.float32
    } | changes  # fmt: skip
    return caption_key(prompt, text_encoder=gemma2, **settings)


def test_key_of_a_caption(gemma2_folder: Path, gemma_folder: Path, connectors_folder: Path) -> None:
    keys = {
        key(gemma_folder, connectors_folder),
        key_of_caption(gemma2_folder),
        key_of_caption(gemma_folder),
        key_of_caption(gemma2_folder, "a red tower."),
        key_of_caption(gemma2_folder, instruction="Look:"),
        key_of_caption(gemma2_folder, instruction=None),
        key_of_caption(gemma2_folder, max_length=65),
        key_of_caption(gemma2_folder, dtype=torch.bfloat16),
        key_of_caption(gemma2_folder, device="cuda:1"),
        key_of_caption(gemma2_folder, "Look: a red tower", instruction=""),
    }
    assert len(keys) == 10
    assert key_of_caption(gemma2_folder) in keys


@pytest.mark.parametrize(
    "change",
    [
        lambda g: flip_last_byte(g / "model-00002-of-00002.safetensors"),
        lambda g: (g / "config.json").write_text((g / "config.json").read_text() + " "),
        lambda g: flip_last_byte(g / "tokenizer.json"),
    ],
    ids=["weights", "config", "tokenizer"],
)
def test_another_stage1_encoder_is_a_miss(
    gemma2_folder: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = Path(shutil.copytree(gemma2_folder, tmp_path / "g"))
    assert key_of_caption(folder) == key_of_caption(gemma2_folder)
    change(folder)
    assert key_of_caption(folder) != key_of_caption(gemma2_folder)


def test_both_kinds_live_in_one_store(tmp_path: Path) -> None:
    store, notes = PromptStore(tmp_path), Notes()
    assert store.get_caption("c", notes=notes) is None
    store.put("k", PROMPT, notes=notes)
    store.put("c", CAPTION, notes=notes)
    assert sorted(p.name for p in store.folder.iterdir()) == ["c.safetensors", "k.safetensors"]
    prompt, caption = store.get("k", notes=notes), store.get_caption("c", notes=notes)
    assert prompt is not None
    assert torch.equal(prompt.embeds, PROMPT.embeds)
    assert caption is not None
    assert torch.equal(caption.caption, CAPTION.caption)
    assert torch.equal(caption.mask, CAPTION.mask)
    assert notes == Notes()
    assert store.get("c", notes=notes) is None  # each kind only through its own door
    assert store.get_caption("k", notes=notes) is None
    assert len(notes.warnings) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        flip_in_data,
        lambda path: save_caption(path, CAPTION, overwrite=True),
        lambda path: save_caption(
            path, CAPTION._replace(mask=torch.ones(1, 4)), metadata=metadata(path), overwrite=True
        ),
    ],
    ids=["cut", "bit-flip", "foreign", "other-mask"],
)
def test_a_broken_caption_counts_as_missing(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    store, notes = PromptStore(tmp_path), Notes()
    store.put("c", CAPTION, notes=notes)
    damage(store.path("c"))
    assert store.get_caption("c", notes=notes) is None
    assert len(notes.warnings) == 1
    assert str(store.path("c")) in notes.warnings[0]
    store.put("c", CAPTION, notes=notes)
    assert store.get_caption("c", notes=notes) is not None


def metadata(path: Path) -> dict[str, str]:
    return TensorFiles(path).metadata
