"""Prompt to token ids, through the tokenizer files of the released text encoder.

Left padding serves the refiner's Gemma-3, right padding the stage-1 encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from sanawm.errors import CheckpointError, MissingFile
from sanawm.notes import Notes
from sanawm.tensorfile import read_json, short

from .library import cannot, import_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Files that decide how text becomes ids; those present are part of the store's key.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


class Tokens(NamedTuple):
    """Ids of one prompt and their 0/1 mask, each `(1, L)` int64."""

    ids: Tensor
    mask: Tensor


def tokenizer_folder(text_encoder: Path) -> Path:
    """Return where the tokenizer files are: in `text_encoder`, or in `tokenizer/` beside it."""
    for folder in (text_encoder, text_encoder.parent / "tokenizer"):
        if any((folder / name).is_file() for name in TOKENIZER_FILES[:2]):
            return folder
    raise MissingFile(
        f"{text_encoder}: no tokenizer.json or tokenizer.model",
        fix="fetch the tokenizer files of the text encoder too",
    )


def load_tokenizer(text_encoder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer that belongs to the folder `text_encoder`. Never uses the network.

    Raises `MissingFile`, `CheckpointError` (damaged), or `MachineError` when transformers cannot
    read it.
    """
    folder = tokenizer_folder(text_encoder)
    transformers = import_transformers()
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as e:  # the Rust tokenizers raise plain `Exception` for a broken file
        file = folder / "tokenizer.json"
        if file.is_file():
            read_json(file)
            if type(e) is Exception or isinstance(e, (KeyError, TypeError, ValueError)):
                raise CheckpointError(
                    f"{file}: damaged, or of a newer format than is read here ({short(e)})",
                    fix="fetch the tokenizer files again",
                ) from None
        raise cannot(f"read the tokenizer in {folder}", e) from None


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    max_length: int,
    side: Literal["left", "right"] = "left",
    what: str = "the prompt",
    notes: Notes,
) -> Tokens:
    """Return the ids of `prompt` with special tokens, padded on `side` to `max_length`.

    A longer prompt loses its end, with a line in `notes` that calls it `what`. Padding uses the
    tokenizer's pad token, else its end-of-sequence token. Raises `CheckpointError` when it has
    neither.
    """
    pad = tokenizer.pad_token_id
    if pad is None:
        pad = tokenizer.eos_token_id
    if pad is None:
        raise CheckpointError("the tokenizer has neither a pad nor an end-of-sequence token")
    tokenizer.truncation_side = "right"
    whole = token_ids(tokenizer, prompt)
    ids = whole
    if len(whole) > max_length:
        notes.change(
            f"{what} has {len(whole)} tokens, the text encoder takes {max_length}: "
            f"the last {len(whole) - max_length} were cut off"
        )
        ids = _ids(tokenizer, prompt, max_length=max_length)
    if tokenizer.bos_token_id is not None and ids[:1] != [tokenizer.bos_token_id]:
        notes.warn("the tokenizer puts no begin-of-sequence token in front of the prompt")
    padding = [pad] * (max_length - len(ids))
    ones, zeros = [1] * len(ids), [0] * len(padding)
    row, mask = (padding + ids, zeros + ones) if side == "left" else (ids + padding, ones + zeros)
    return Tokens(torch.tensor([row]), torch.tensor([mask]))


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of the whole `text` with special tokens, without padding."""
    return _ids(tokenizer, text, max_length=None)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, max_length: int | None) -> list[int]:
    try:
        found = tokenizer(
            text,
            truncation=max_length is not None,
            max_length=max_length,
            padding=False,
            verbose=False,
        )
    except BaseException as e:  # a panic of the Rust tokenizers is no `Exception`
        if type(e).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"{tokenizer.name_or_path}: the tokenizer files do not fit each other ({short(e)})",
            fix="fetch the tokenizer files again",
        ) from None
    return list(found["input_ids"])
