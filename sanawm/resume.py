"""Continue a run: what must be equal, where its state lies, and what of its outputs is kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from . import __version__
from .errors import InputError
from .io.files import part_path
from .io.preview import ContactSheet
from .io.reader import VideoReader
from .notes import Notes
from .outputs import default_state
from .plan import Plan
from .report import Record, versions
from .states import NO_STATES, RunStates, StageStates, State, read_saved

#: Sections and keys that do not change what is computed or how it is encoded.
FREE_SECTIONS = ("output", "model")
FREE_KEYS = (
    "runtime.schedule",
    "runtime.offload",
    "runtime.device",
    "runtime.precision",
    "runtime.threads",
    "text.store",
    "video.faststart",
    "input.image",
    "input.latents",
    "input.video",
    "input.prompt",
    "input.prompt_file",
    "input.prompt_embeds",
    "input.camera",
    "input.noise",
    "stage1.instruction",
)


@dataclass(frozen=True)
class Kept:
    """What a continued run takes over from its outputs: all but the last saved block's frames.

    The last frame of a chunk reaches the file with the next chunk, so the frames of the saved
    block are kept in the state and encoded again (to the same bytes).
    """

    blocks: int = 0
    video_chunks: int = 0
    video_frames: int = 0
    latent_frames: int = 0
    frames: torch.Tensor | None = None
    first: int = 0


def why_not_resumable(plan: Plan) -> str | None:
    """Return why this run cannot keep a state, if so."""
    if plan.single_shot:
        return "single-shot mode works on the whole clip at once"
    if plan.has_stage1 and plan.window.sink != 1:
        return f"with a sink of {plan.window.sink} stage 1's chunks do not end where blocks end"
    return None


def recipe_of(
    plan: Plan, record: Record, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Return everything that fixes the result of a run, as a flat JSON-able table."""
    settings = {
        key: row["value"]
        for key, row in plan.settings.table().items()
        if key.split(".")[0] not in FREE_SECTIONS and key not in FREE_KEYS
    }
    inputs = {f"input {r['input']} (sha256)": r["sha256"] for r in record.inputs}
    weights = {f"weights {r['component']} (hash)": r["header_sha256"] for r in record.weights}
    found = versions()
    return {
        **settings,
        **inputs,
        **weights,
        "prompt (sha256)": plan.prompt.sha256,
        "camera (sha256)": None if plan.camera is None else _array_sha256(plan.camera.poses),
        "latent shape": list(plan.shape),
        "precision": str(dtype),
        "device": device.type,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "sanawm": __version__,
        "torch": found["torch"],
        "av": found["av"],
        "outputs": [
            name
            for name in ("video", "save_latents", "save_stage1", "frames_dir")
            if getattr(plan.outputs, name) is not None
        ],
    }


def open_states(
    plan: Plan, recipe: State, *, notes: Notes, on_saved: Any
) -> tuple[StageStates, Kept]:
    """Return the states of a run and what it takes over, reading a saved state with `resume`.

    Raises `InputError` when the saved run differs from this one, naming the difference.
    """
    output = plan.settings.settings.output
    path, reason = default_state(plan.outputs, output.state), why_not_resumable(plan)
    if reason is not None or path is None:
        if output.resume:
            raise InputError(
                f"--resume: this run keeps no state ({reason or '--state none'})",
                fix="run without --resume",
            )
        if reason is not None:
            notes.info(f"no run state is kept: {reason}")
        return NO_STATES, Kept()
    saved = read_saved(path, recipe, notes=notes) if output.resume else None
    if saved is None and path.exists():
        notes.change(f"{path} of an earlier run is replaced (--resume would have continued it)")
    stages = ["refine"]
    if plan.has_stage1:
        stages.insert(0, "stage1")
    elif plan.settings.settings.input.video:
        stages.insert(0, "encode")
    if plan.outputs.video is not None:
        stages.append("decode")
    states = RunStates(
        path,
        every=output.state_every,
        recipe=recipe,
        expected=tuple(stages),
        notes=notes,
        saved=saved,
        on_saved=on_saved,
    )
    return states, _kept(plan, saved)


def _kept(plan: Plan, saved: State | None) -> Kept:
    if saved is None:
        return Kept()
    block = int(saved["block"])
    latent_frames = plan.blocks[block].stop
    frames = saved.get("frames")
    if frames is None:
        return Kept(block + 1, latent_frames=latent_frames)
    first = int(saved["first"])
    return Kept(
        block + 1,
        video_chunks=block,
        video_frames=first - plan.frames.dropped,
        latent_frames=latent_frames,
        frames=frames,
        first=first,
    )


def refill_sheet(sheet: ContactSheet, plan: Plan, kept: Kept) -> None:
    """Give the contact sheet the blocks that are in the part file already."""
    if plan.outputs.video is None or not kept.video_chunks:
        return
    frames = VideoReader(part_path(plan.outputs.video)).frames(count=kept.video_frames)
    first = plan.frames.dropped
    for span in plan.blocks[: kept.video_chunks]:
        count = plan.chunk_frames(span)
        if span.number == 0:
            count = plan.ratios.frames_of(span.stop) - plan.frames.dropped
        block = [frame for _, frame in zip(range(count), frames, strict=False)]
        sheet.add_block(span.number, first, np.stack(block))
        first += count


def _array_sha256(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
