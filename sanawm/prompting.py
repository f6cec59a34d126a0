"""The prompt of a run as embeddings: from a file, the store, or the text encoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .errors import InputError
from .pipeline import Pipeline
from .plan import Plan
from .text.embeddings import (
    PromptEmbeds,
    Stage1Caption,
    load_prompt_embeds,
    save_prompt_embeds,
)


class Texts(NamedTuple):
    """Embeddings of the prompt for the refiner, and for stage 1 when it runs."""

    prompt: PromptEmbeds
    caption: Stage1Caption | None


def prompt_texts(
    plan: Plan,
    pipeline: Pipeline,
    *,
    cache: Path | None,
    loading: Callable[[str], None],
    known: Texts | None = None,
) -> Texts:
    """Return the embeddings that a run needs, and save them if it asks for that.

    `known` are those of an earlier run of the same prompt. `loading` is told the name of each text
    encoder before it is loaded; each is freed before the next one. Raises `InputError` for an
    embeddings file without the caption that stage 1 needs.
    """
    if known is not None:
        texts = known
    elif plan.prompt.embeds is not None:
        texts = _of_file(plan, plan.prompt.embeds)
    else:
        assert plan.prompt.text is not None
        loading("text_encoder")
        prompt = pipeline.encode_prompt(plan.prompt.text, cache=cache)
        caption = None
        if plan.has_stage1:
            loading("stage1_text_encoder")
            caption = pipeline.encode_caption(plan.prompt.text, cache=cache)
        texts = Texts(prompt, caption)
    target = plan.outputs.save_prompt_embeds
    if target is not None:
        overwrite = plan.outputs.replace_sides
        save_prompt_embeds(target, texts.prompt, stage1=texts.caption, overwrite=overwrite)
    return texts


def _of_file(plan: Plan, path: Path) -> Texts:
    file = load_prompt_embeds(path)
    if plan.has_stage1 and file.stage1 is None:
        raise InputError(
            f"{path}: no stage1_caption in this file, and stage 1 runs (--image)",
            fix="save the embeddings in a run with --image, or give --prompt",
        )
    return Texts(file.prompt, file.stage1)
