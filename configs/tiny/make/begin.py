"""Begin a work folder from models that were exported, such as those of the preset itself.

What an export does not hold is lost: optimisers start anew, the average of the weights from them.
Data and latents are made again by their own steps; the latents keep the export's statistics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from .judge import load_model_set
from .judge_stage1 import load_stage1_of
from .optim import save_atomically
from .train_vae import new_vae


def begin_from(folder: Path, work: Path, *, steps: dict[str, int]) -> None:
    """Write the checkpoints of `work` as if `steps` steps of each model had been made there."""
    models = load_model_set(folder)
    vae = new_vae(work)  # its latents are raw: it takes the weights, not the statistics
    for part, found in ((vae.encoder, models.encoder), (vae.decoder, models.decoder)):
        part.load_state_dict(dict(found.named_parameters()), strict=False)
    _save(vae, work / "vae.pt", steps["vae"])
    _save(models.refiner, work / "refiner.pt", steps["refiner"])
    if (folder / "sana_dit" / "model.pt").is_file():
        _save(load_stage1_of(folder), work / "stage1.pt", steps["stage1"])
    mean, std = (
        getattr(models.decoder, name).flatten().tolist() for name in ("latents_mean", "latents_std")
    )
    text = json.dumps({"mean": mean, "std": std}, indent=1)
    (work / "statistics.json").write_text(text + "\n", encoding="utf-8")


def _save(model: nn.Module, path: Path, step: int) -> None:
    average = {n: p.detach().clone() for n, p in model.named_parameters()}
    state: dict[str, Any] = {"model": model.state_dict(), "average": average, "step": step}
    save_atomically(state, path)
