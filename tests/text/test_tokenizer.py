"""Prompt to ids: special tokens, cutting, padding on either side."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sanawm.errors import CheckpointError, MissingFile
from sanawm.notes import Notes
from sanawm.text.tokenizer import load_tokenizer, tokenize, tokenizer_folder

PROMPT = "a red tower on green ground"


@pytest.fixture(scope="module")
def tokenizer(gemma_folder: Path) -> Any:
    return load_tokenizer(gemma_folder)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(tokenizer: Any, side: Any) -> None:
    notes = Notes()
    tokens = tokenize(tokenizer, PROMPT, max_length=16, side=side, notes=notes)
    n = int(tokens.mask.sum())
    words = tokens.ids[0, -n:] if side == "left" else tokens.ids[0, :n]
    assert tokens.ids.shape == tokens.mask.shape == (1, 16)
    assert tokens.ids.dtype == tokens.mask.dtype == torch.int64
    assert 6 < n < 16
    assert words[0] == 2  # <bos>
    assert tokenizer.decode(words[1:]) == PROMPT
    padding = tokens.ids[0][tokens.mask[0] == 0]
    assert not padding.any()  # <pad> is 0
    assert tokens.mask[0].tolist() == sorted(tokens.mask[0].tolist(), reverse=side == "right")
    assert notes.changes == notes.warnings == []


@pytest.mark.oracle
def test_same_as_the_padding_of_transformers(tokenizer: Any) -> None:
    for length in (8, 16):
        ours = tokenize(tokenizer, PROMPT, max_length=length, notes=Notes())
        tokenizer.padding_side = "left"
        theirs = tokenizer(
            [PROMPT], padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        )
        assert torch.equal(ours.ids, theirs["input_ids"])
        assert torch.equal(ours.mask, theirs["attention_mask"])


def test_a_long_prompt_loses_its_end_with_a_line(tokenizer: Any) -> None:
    notes = Notes()
    whole = tokenize(tokenizer, PROMPT, max_length=64, notes=notes)
    n = int(whole.mask.sum())
    cut = tokenize(tokenizer, PROMPT, max_length=8, notes=notes)
    assert torch.equal(cut.ids[0], whole.ids[0, -n : -n + 8])
    assert bool(cut.mask.all())
    assert notes.changes == [
        f"the prompt has {n} tokens, the text encoder takes 8: the last {n - 8} were cut off"
    ]


def test_exactly_full_is_not_cut(tokenizer: Any) -> None:
    n = int(tokenize(tokenizer, PROMPT, max_length=64, notes=Notes()).mask.sum())
    notes = Notes()
    assert bool(tokenize(tokenizer, PROMPT, max_length=n, notes=notes).mask.all())
    assert notes.changes == []


def test_any_character_has_a_token(tokenizer: Any) -> None:
    text = "Zürich 🏰 e\u0301\n日本"
    tokens = tokenize(tokenizer, text, max_length=64, notes=Notes())
    words = tokens.ids[0][tokens.mask[0] == 1]
    assert tokenizer.unk_token_id not in words.tolist()
    assert tokenizer.decode(words[1:]) == text


class Fake:
    """A tokenizer of one id per character; attributes say which special tokens it has."""

    def __init__(self, *, pad: int | None, eos: int | None, bos: int | None) -> None:
        self.pad_token_id, self.eos_token_id, self.bos_token_id = pad, eos, bos
        self.truncation_side = "left"

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}


def test_pad_token_falls_back_to_end_of_sequence() -> None:
    tokens = tokenize(Fake(pad=None, eos=9, bos=None), "ab", max_length=4, notes=Notes())  # type: ignore[arg-type]
    assert tokens.ids.tolist() == [[9, 9, 97, 98]]
    with pytest.raises(CheckpointError, match="neither a pad nor an end-of-sequence"):
        tokenize(Fake(pad=None, eos=None, bos=None), "ab", max_length=4, notes=Notes())  # type: ignore[arg-type]


def test_a_missing_begin_token_is_said() -> None:
    notes = Notes()
    tokenize(Fake(pad=0, eos=None, bos=2), "ab", max_length=4, notes=notes)  # type: ignore[arg-type]
    assert notes.warnings == [
        "the tokenizer puts no begin-of-sequence token in front of the prompt"
    ]


def test_tokenizer_beside_the_text_encoder(gemma_folder: Path, tmp_path: Path) -> None:
    """Conversions to diffusers keep `text_encoder/` and `tokenizer/` side by side."""
    encoder = tmp_path / "text_encoder"
    encoder.mkdir()
    with pytest.raises(MissingFile, match=r"no tokenizer\.json or tokenizer\.model"):
        tokenizer_folder(encoder)
    (tmp_path / "tokenizer").mkdir()
    for file in gemma_folder.glob("*token*"):
        shutil.copy(file, tmp_path / "tokenizer")
    assert tokenizer_folder(encoder) == tmp_path / "tokenizer"
    assert load_tokenizer(encoder).bos_token_id == 2


def test_a_broken_tokenizer_file(gemma_folder: Path, tmp_path: Path) -> None:
    for file in gemma_folder.glob("*token*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CheckpointError, match=r"tokenizer.json: damaged, or of a newer format"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not valid JSON"):
        load_tokenizer(tmp_path)


def test_long_prompts_do_not_make_transformers_talk(
    tokenizer: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenize(tokenizer, "tower " * 3000, max_length=16, notes=Notes())
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")
