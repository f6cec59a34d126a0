"""Embeddings of the scenes' captions, made by the preset's own text path (frozen, random).

The refiner's through the tiny Gemma-3 and its connectors, stage 1's through the tiny Gemma-2. Same
numbers as `encode_prompt` and `encode_caption`; the models are loaded once for all captions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sanawm.notes import Notes
from sanawm.text.caption import caption_tokens, select_rows
from sanawm.text.connectors import load_connectors
from sanawm.text.gemma import GEMMA2, last_state, load_gemma, prompt_states
from sanawm.text.packing import pack_states
from sanawm.text.tokenizer import load_tokenizer, tokenize

MAX_LENGTH = 64


@torch.no_grad()
def refiner_captions(captions: list[str], *, text_encoder: Path, connectors: Path) -> Tensor:
    """Return `(n, 64, E)` float32, one row a caption."""
    notes = Notes()
    options = {"device": "cpu", "dtype": torch.float32, "notes": notes}
    backbone = load_gemma(text_encoder, **options)
    joiner = load_connectors(connectors, **options)
    tokenizer = load_tokenizer(text_encoder)
    rows = []
    for caption in captions:
        tokens = tokenize(tokenizer, caption, max_length=MAX_LENGTH, notes=notes)
        packed = pack_states(prompt_states(backbone, tokens), tokens.mask)
        rows.append(joiner(packed, tokens.mask)[0])
    return torch.stack(rows)


@torch.no_grad()
def stage1_captions(
    captions: list[str], *, text_encoder: Path, instruction: str | None, max_length: int
) -> tuple[Tensor, Tensor]:
    """Return stage 1's captions `(n, 1, L, E)` float32 and masks `(n, L)`: frozen Gemma-2 rows."""
    notes = Notes()
    backbone = load_gemma(
        text_encoder, family=GEMMA2, device="cpu", dtype=torch.float32, notes=notes
    )
    tokenizer = load_tokenizer(text_encoder)
    rows, masks = [], []
    for caption in captions:
        tokens = caption_tokens(
            tokenizer, caption, instruction=instruction, max_length=max_length, notes=notes
        )
        rows.append(select_rows(last_state(backbone, tokens), max_length, axis=1))
        masks.append(select_rows(tokens.mask, max_length, axis=1)[0])
    return torch.stack(rows), torch.stack(masks)
