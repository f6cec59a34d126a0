"""Prompt to embeddings: tokenizer, Gemma, packing, connectors, one after the other.

The text encoder is the largest model of all (24 GB in the release), so at no time is it in memory
together with the connectors, and neither of them outlives the call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from sanawm.errors import NumericsError
from sanawm.notes import Notes

from .connectors import ConnectorsConfig, check_connectors, load_connectors
from .embeddings import PromptEmbeds
from .gemma import check_ids, check_states, load_gemma, prompt_states, read_gemma_config
from .packing import pack_states
from .prompt import check_prompt
from .store import PromptStore, store_key
from .tokenizer import Tokens, load_tokenizer, tokenize


def encode_prompt(
    prompt: str,
    *,
    text_encoder: Path,
    connectors: Path,
    max_length: int,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
    store: PromptStore | None = None,
) -> PromptEmbeds:
    """Return the embeddings `(1, max_length, E)` of one prompt, on `device` in `dtype`.

    The prompt is stripped and otherwise taken as it is. `max_length` (1024 in the release) must be
    a multiple of the connectors' registers; a longer prompt is cut with a line in `notes`. With a
    `store`, known prompts come from there and new ones are kept.

    Raises `InputError` (nothing visible in the prompt), `UsageError` (max_length), `MissingFile`,
    `CheckpointError` (broken or unfitting components), `MachineError` (transformers) and
    `NumericsError` (values that are not finite).
    """
    prompt = prompt.strip()
    check_prompt(prompt)
    config = check_connectors(connectors)
    config.check_length(max_length)
    info = read_gemma_config(text_encoder)
    _check_fit(info.states, info.width, config, where=text_encoder)
    key = ""
    if store is not None:
        key = store_key(
            prompt,
            text_encoder=text_encoder,
            connectors=connectors,
            max_length=max_length,
            device=device,
            dtype=dtype,
        )
        kept = store.get(key, notes=notes)
        if kept is not None:
            notes.info(f"prompt embeddings taken from the store: {store.path(key)}")
            return kept.to(device, dtype)
    tokens = tokenize(load_tokenizer(text_encoder), prompt, max_length=max_length, notes=notes)
    with releasing(device):
        packed = _pack_prompt(
            tokens, config, text_encoder=text_encoder, device=device, dtype=dtype, notes=notes
        )
    with releasing(device):
        embeds = _connect(
            packed, tokens, connectors=connectors, device=device, dtype=dtype, notes=notes
        )
        del packed
    result = PromptEmbeds(embeds, None)
    if store is not None:
        store.put(key, result, notes=notes)
    return result


def _check_fit(count: int, width: int, config: ConnectorsConfig, *, where: Path) -> None:
    check_states(
        count=count,
        width=width,
        want_count=config.text_proj_in_factor,
        want_width=config.caption_channels,
        where=where,
    )


def _pack_prompt(
    tokens: Tokens,
    config: ConnectorsConfig,
    *,
    text_encoder: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
) -> Tensor:
    """Return the packed states `(1, L, E*M)`; the text encoder is gone when this returns."""
    backbone = load_gemma(text_encoder, device=device, dtype=dtype, notes=notes)
    check_ids(backbone, tokens, where=text_encoder)
    states = prompt_states(backbone, tokens)
    del backbone
    _check_fit(len(states), states[0].shape[-1], config, where=text_encoder)
    packed = pack_states(states, tokens.mask.to(states[0].device))
    check_finite(packed, "the text encoder's hidden states")
    return packed


def _connect(
    packed: Tensor,
    tokens: Tokens,
    *,
    connectors: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
) -> Tensor:
    """Return the embeddings `(1, L, E)`; the connectors are gone when this returns."""
    model = load_connectors(connectors, device=device, dtype=dtype, notes=notes)
    with torch.no_grad():
        embeds: Tensor = model(packed, tokens.mask.to(packed.device))
    check_finite(embeds, "the prompt embeddings")
    return embeds


def check_finite(tensor: Tensor, what: str) -> None:
    """Raise `NumericsError` when `tensor`, called `what`, holds NaN or infinity."""
    if not bool(torch.isfinite(tensor).all()):
        raise NumericsError(
            f"{what} hold NaN or infinity in {str(tensor.dtype).removeprefix('torch.')}",
            fix="use --precision bf16 or fp32 (Gemma overflows in fp16)",
        )


@contextmanager
def releasing(device: torch.device | str) -> Iterator[None]:
    """Release what the body has dropped, reference cycles and all, when it ends.

    What was there before is kept out of the collection: walking through all objects of torch and
    transformers takes longer than a small text encoder.
    """
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
        release_memory(device)
    finally:
        if ours:
            gc.unfreeze()


def release_memory(device: torch.device | str) -> None:
    """Collect modules that were dropped, and give cached GPU memory back."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
