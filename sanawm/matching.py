"""Compare checkpoints with the models that are to read them, by names and shapes alone.

The models are built on torch's meta device, of files the headers are read, a pickle is mapped: a
plan can be told to be complete before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint import match_names
from .notes import Notes
from .tensorfile import TensorFiles

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .plan import Plan
    from .refiner.config import RefinerConfig
    from .stage1.config import Stage1Config
    from .vae.config import VAEConfig

#: Sources that go through the VAE's encoder.
ENCODED = ("image", "video")


def match_components(plan: Plan, *, notes: Notes) -> None:
    """Check the refiner, VAE and stage 1 of a plan, as far as they are on this disk.

    Raises `CheckpointError` naming missing, misshapen and unexpected tensors, or why a file cannot
    be read, as loading them would.
    """
    from .components import stage1_config
    from .refiner.weights import transformer_folder

    paths = {name: c.path for name, c in plan.components.items() if c.path is not None}
    if "refiner" in paths:
        match_transformer(transformer_folder(paths["refiner"]), plan.refiner, notes=notes)
    if "vae" in paths and plan.vae is not None:
        match_vae(
            paths["vae"],
            plan.vae,
            encoder=plan.source.kind in ENCODED,
            decoder=plan.outputs.video is not None,
            notes=notes,
        )
    if "stage1" in paths:
        from .stage1.weights import weights_file

        config = stage1_config(plan.settings, download=False, notes=notes)
        match_stage1(weights_file(paths["stage1"]), config, notes=notes)


def match_transformer(
    folder: Path, config: RefinerConfig, *, notes: Notes
) -> tuple[TensorFiles, Mapping[str, str]]:
    """Return the opened files of a refiner's transformer, and the stored name of each tensor used.

    Raises `CheckpointError`.
    """
    from .refiner.model import RefinerModel
    from .refiner.weights import IGNORED

    files = TensorFiles(folder)
    model = _on_meta(lambda: RefinerModel(config))
    used = match_names(model, files, ignore=IGNORED, label=str(folder), note=notes.info)
    return files, used


def match_vae(
    folder: Path, config: VAEConfig, *, encoder: bool = True, decoder: bool = True, notes: Notes
) -> TensorFiles:
    """Return the opened files of a VAE that must hold the halves asked for.

    Raises `CheckpointError`.
    """
    from .vae import VAEDecoder, VAEEncoder
    from .vae.weights import WEIGHT_FILE

    usual = folder / WEIGHT_FILE
    files = TensorFiles(usual if usual.is_file() else folder)
    halves = ((encoder, VAEEncoder, "decoder.*"), (decoder, VAEDecoder, "encoder.*"))
    for wanted, half, other in halves:
        if not wanted:
            continue
        model = _on_meta(lambda half=half: half(config))  # type: ignore[misc]
        match_names(model, files, ignore=(other,), label=str(folder), note=notes.info)
    return files


def match_stage1(
    file: Path, config: Stage1Config, *, notes: Notes
) -> TensorFiles | Mapping[str, torch.Tensor]:
    """Return the opened stage-1 weights in `file`. Raises `CheckpointError`."""
    from .stage1.model import Stage1Model
    from .stage1.weights import ignored, open_stage1

    source = open_stage1(file)
    model = _on_meta(lambda: Stage1Model(config))
    label = f"stage 1 ({file})"
    match_names(model, source, ignore=ignored(config), label=label, note=notes.info)
    return source


def _on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    import torch

    with torch.device("meta"):
        return build()
