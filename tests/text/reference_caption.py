"""Stage 1's prompt path written down a second time, with transformers and nothing of ours.

Source: section 3 of the stage-1 description, number by number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Reference(NamedTuple):
    """Tokenizer and whole model (with output head) as transformers loads them."""

    tokenizer: Any
    model: Any

    def caption(self, prompt: str, chi: str, length: int) -> tuple[Tensor, Tensor]:
        """Return the caption `(1, 1, length, E)` and its mask `(1, length)`."""
        text, total = prompt, length
        if chi:
            text = chi + prompt
            total = len(self.tokenizer.encode(chi)) + length - 2
        self.tokenizer.padding_side = "right"
        batch = self.tokenizer(
            [text], max_length=total, padding="max_length", truncation=True, return_tensors="pt"
        )
        assert batch["input_ids"].shape == (1, total)
        decoder = self.model.get_decoder()
        with torch.no_grad():
            rows = decoder(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
        select = [0, *range(-(length - 1), 0)]
        return rows[:, None][:, :, select], batch["attention_mask"][:, select]


def load_reference(folder: Path, dtype: torch.dtype) -> Reference:
    """Return what `from_pretrained` gives for a local Gemma-2 folder."""
    from transformers import AutoTokenizer, Gemma2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = Gemma2ForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return Reference(tokenizer, model.eval())
