"""Prompt to caption for stage 1: instruction, tokenizer, Gemma-2, choice of rows.

The instruction stands in front of the prompt, and of the tokens it gives only the first and the
last are kept, so that the caption has the same number of rows with and without it:

    tokens        [bos, instruction ..., last of instruction, prompt ..., padding ...]
    length        n + max_length - 2, where n counts the instruction's own tokens, bos included
    kept rows     0 and the last max_length - 1: bos, last of instruction, up to max_length - 2 more

When the instruction's last token joins with the prompt's first (the released one ends in a space,
which the tokenizer keeps at the front of a word), row 1 is that joint token. Padding stands on the
right. Source: the public SANA-WM code, which calls the instruction
`chi_prompt`. The text encoder (5 GB in the release) is gone when the caption is returned.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sanawm.errors import CheckpointError, InputError, UsageError
from sanawm.notes import Notes

from .embeddings import Stage1Caption
from .encode import check_finite, releasing
from .gemma import GEMMA2, GemmaInfo, check_ids, last_state, load_gemma, read_gemma_config
from .prompt import check_prompt
from .store import PromptStore, caption_key
from .tokenizer import Tokens, load_tokenizer, token_ids, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_caption(
    prompt: str,
    *,
    text_encoder: Path,
    instruction: str | None,
    max_length: int,
    width: int,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
    store: PromptStore | None = None,
) -> Stage1Caption:
    """Return the caption `(1, 1, max_length, width)` and its mask `(1, max_length)`, on `device`.

    The prompt is stripped, the instruction taken as it is; None, said in a line, stands for no
    instruction. `max_length` (300 in the release) and `width` (2304) are the caption's sizes in the
    DiT. A longer prompt is cut with a line in `notes`. With a `store`, known prompts come from
    there and new ones are kept.

    Raises `InputError` (nothing visible in the prompt, instruction too long), `UsageError`
    (max_length), `MissingFile`, `CheckpointError` (broken or unfitting text encoder),
    `MachineError` (transformers) and `NumericsError` (values that are not finite).
    """
    prompt, instruction = prompt.strip(), instruction or None
    check_prompt(prompt)
    if max_length < 2:
        raise UsageError(f"stage-1 caption of {max_length} tokens; expected 2 or more")
    info = read_gemma_config(text_encoder, family=GEMMA2)
    _check_width(info, width, where=text_encoder)
    if instruction is None:
        notes.info("stage 1: no instruction in front of the prompt")
    key = ""
    if store is not None:
        key = caption_key(
            prompt,
            text_encoder=text_encoder,
            instruction=instruction,
            max_length=max_length,
            device=device,
            dtype=dtype,
        )
        kept = store.get_caption(key, notes=notes)
        if kept is not None:
            notes.info(f"stage-1 caption taken from the store: {store.path(key)}")
            return kept.to(device, dtype)
    tokens = caption_tokens(
        load_tokenizer(text_encoder),
        prompt,
        instruction=instruction,
        max_length=max_length,
        notes=notes,
    )
    _check_positions(info, tokens, where=text_encoder)
    with releasing(device):
        rows = _last_rows(tokens, text_encoder, device=device, dtype=dtype, notes=notes)
    caption = select_rows(rows.unsqueeze(1), max_length, axis=2)  # (1, 1, max_length, width)
    result = Stage1Caption(caption, select_rows(tokens.mask, max_length, axis=1).to(device))
    if store is not None:
        store.put(key, result, notes=notes)
    return result


def caption_tokens(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    instruction: str | None,
    max_length: int,
    notes: Notes,
) -> Tokens:
    """Return the ids of `prompt` with `instruction` in front, padded on the right.

    Their number is `max_length`, or with an instruction of n tokens `n + max_length - 2`. Both
    texts are tokenised as one, so the instruction's last token and the prompt's first may join.
    """
    if instruction is None:
        return tokenize(tokenizer, prompt, max_length=max_length, side="right", notes=notes)
    n = len(token_ids(tokenizer, instruction))
    return tokenize(
        tokenizer,
        instruction + prompt,
        max_length=n + max_length - 2,
        side="right",
        what="the stage-1 prompt with its instruction",
        notes=notes,
    )


def select_rows(rows: Tensor, max_length: int, *, axis: int) -> Tensor:
    """Return row 0 and the last `max_length - 1` rows along `axis`, as a new tensor."""
    last = max_length - 1
    parts = [rows.narrow(axis, 0, 1), rows.narrow(axis, rows.shape[axis] - last, last)]
    return torch.cat(parts, dim=axis)


def _last_rows(
    tokens: Tokens,
    text_encoder: Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
) -> Tensor:
    """Return the last hidden state `(1, L, E)`; the text encoder is gone when this returns."""
    backbone = load_gemma(text_encoder, family=GEMMA2, device=device, dtype=dtype, notes=notes)
    check_ids(backbone, tokens, where=text_encoder)
    rows = last_state(backbone, tokens)
    check_finite(rows, "the stage-1 text encoder's hidden states")
    return rows


def _check_width(info: GemmaInfo, width: int, *, where: Path) -> None:
    if info.width != width:
        raise CheckpointError(
            f"{where}: the stage-1 text encoder's hidden size is {info.width}, the stage-1 model "
            f"expects captions of width {width}",
            fix="use the text encoder that the stage-1 model was trained with",
        )


def _check_positions(info: GemmaInfo, tokens: Tokens, *, where: Path) -> None:
    count, limit = tokens.ids.shape[1], info.settings.get("max_position_embeddings")
    if isinstance(limit, int) and count > limit:
        raise InputError(
            f"{where}: instruction and prompt need {count} token positions, the stage-1 text "
            f"encoder has {limit} (max_position_embeddings)",
            fix="use a shorter instruction ([stage1] instruction)",
        )
