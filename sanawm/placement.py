"""Several devices for one run: which stage works where. Chunks travel between them.

    --place stage1=cuda:0,refiner=cuda:1,vae=cuda:2

Stages that are not named, and the text encoders, work on `runtime.device`. With
`--schedule overlap` (the default on CUDA) the devices work at the same time, each on another chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from .components import choose_device
from .config import Resolved
from .errors import UsageError
from .notes import Notes

#: Stages that can be placed, with the models of each by their Pipeline name.
PLACES = MappingProxyType(
    {"stage1": ("stage1",), "refiner": ("refiner",), "vae": ("encoder", "decoder")}
)


def parse_places(text: str | None) -> dict[str, str]:
    """Return the device of each stage that `text` names; `UsageError` when it is malformed."""
    found: dict[str, str] = {}
    for part in text.split(",") if text is not None else ():
        stage, _, device = (word.strip() for word in part.partition("="))
        if stage not in PLACES:
            raise _malformed(text, f"{stage!r} is not one of {', '.join(PLACES)}")
        if stage in found:
            raise _malformed(text, f"{stage} is there twice")
        if not device:
            raise _malformed(text, f"{stage} has no device")
        found[stage] = device
    return found


def _malformed(text: str | None, why: str) -> UsageError:
    return UsageError(
        f"--place {text!r}: {why}", fix="write it like stage1=cuda:0,refiner=cuda:1,vae=cuda:2"
    )


def choose_places(text: str | None, default: torch.device) -> Mapping[str, torch.device]:
    """Return the device of every model by its Pipeline name; `default` for stages not in `text`.

    Raises `UsageError` for a malformed text, `MachineError` when a device is not here.
    """
    named = {stage: choose_device(name) for stage, name in parse_places(text).items()}
    return {
        model: named.get(stage, default) for stage, models in PLACES.items() for model in models
    }


def check_places(settings: Resolved, *, notes: Notes) -> None:
    """Check what `runtime.place` says, and say what of it changes nothing in this run."""
    named = parse_places(settings.settings.runtime.place)
    given, video = settings.settings.input, settings.settings.output.video
    if "stage1" in named and not given.image:
        notes.warn("--place stage1 changes nothing: stage 1 does not run without --image")
    if "vae" in named and not (video or given.image or given.video):
        notes.warn("--place vae changes nothing: nothing is encoded or decoded")
    if named:
        shown = ", ".join(f"{stage} on {device}" for stage, device in named.items())
        notes.info(f"placed: {shown}; the rest on {settings.settings.runtime.device}")
    used = {settings.settings.runtime.device, *named.values()}
    on_cpu = used <= {"cpu", "auto"} and ("auto" not in used or not torch.cuda.is_available())
    if settings.settings.runtime.offload == "all" and on_cpu:
        notes.change("--offload all: not used, on a CPU the models are in main memory already")
