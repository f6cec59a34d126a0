"""What a run of the settings takes, by the estimates that the plan of a run is made with."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sanawm.components import choose_device, choose_dtype
from sanawm.config import Resolved
from sanawm.downloads import download_bytes
from sanawm.errors import SanawmError
from sanawm.estimate import MemoryEstimate, estimate_memory
from sanawm.notes import Notes
from sanawm.plan import make_plan
from sanawm.settings import EXCLUSIVE


@dataclass(frozen=True)
class Needs:
    """Memory of a run, and the bytes that the first one fetches from the hub."""

    memory: MemoryEstimate
    download: int


def needs_of(resolved: Resolved) -> Needs | None:
    """Return what a run takes; None when the settings allow none, which other checks explain.

    Inputs that the settings do not name are made up: their content changes no size.
    """
    runtime = resolved.settings.runtime
    with tempfile.TemporaryDirectory(prefix="sanawm-doctor-") as folder:
        try:
            device = choose_device(runtime.device)
            dtype = choose_dtype(runtime.precision, device)
            settings = _with_inputs(resolved, Path(folder))
            plan = make_plan(settings, notes=Notes(), download=False)
            memory = estimate_memory(plan, device=device, dtype=dtype)
        except SanawmError:
            return None
    return Needs(memory, sum(download_bytes(c) for c in plan.components.values()))


def _with_inputs(resolved: Resolved, folder: Path) -> Resolved:
    """Return settings in which every kind of input that a run needs is there."""
    from PIL import Image

    video = resolved.settings.video
    picture = folder / "first.png"
    Image.new("RGB", (video.width, video.height)).save(picture)
    made_up = {
        "input.image": str(picture),
        "input.prompt": "a street",
        "input.action": f"none-{max(1, video.num_frames - 1)}",
        "output.output": str(folder / "out.mp4"),
    }
    named = {
        key for key in made_up for group in EXCLUSIVE if key in group and _any(resolved, group)
    }
    values = {key: value for key, value in made_up.items() if key not in named}
    return resolved.with_input(values, where="doctor")


def _any(resolved: Resolved, keys: tuple[str, ...]) -> bool:
    return any(resolved.get(key) is not None for key in keys)
