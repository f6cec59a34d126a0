"""Continue a run: what must be equal, and where its state lies."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .components import use_threads
from .errors import InputError, OutputError, SanawmError
from .io.files import part_path
from .io.run_state import read_recipe
from .locations import local_path
from .notes import Notes
from .outputs import GROWING, SIDE_FILES, default_state, is_finished
from .placement import choose_places
from .plan import Plan
from .report import Record, describe_inputs, describe_weights, file_sha256, versions
from .states import (
    BAD_CONTENT,
    NO_STATES,
    RunStates,
    StageStates,
    State,
    incomplete,
    read_saved,
)
from .takeover import Kept, check_parts, kept_of, recipe_of_video
from .tensorfile import short

#: Sections and keys that do not change what is computed or how it is encoded.
FREE_SECTIONS = ("output", "model")
FREE_KEYS = (
    "runtime.schedule",
    "runtime.offload",
    "runtime.device",
    "runtime.precision",
    "runtime.threads",
    "runtime.place",
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
#: Endings of the small files beside weights that change what a model computes.
SETTINGS_FILES = (".json", ".yaml", ".yml", ".model", ".txt")


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
    found = versions()
    places = choose_places(plan.settings.settings.runtime.place, device)
    return {
        **_asked(plan, record),
        "precision": str(dtype),
        "device": device.type,
        "places": [place.type for place in places.values()],
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "sanawm": __version__,
        "torch": found["torch"],
        "av": found["av"],
        "outputs": [
            name for name in (*GROWING, "frames_dir") if getattr(plan.outputs, name) is not None
        ],
    }


def recipe_sha256(plan: Plan, record: Record) -> str:
    """Return a hash of everything asked of a run that decides what its files hold.

    Unlike `recipe_of` it does not depend on the machine, so that a finished run is known again
    elsewhere; `record` holds the run's inputs and weights.
    """
    settings = plan.settings.settings
    outputs = [k for k in ("video", "frames_dir", *SIDE_FILES) if getattr(plan.outputs, k)]
    recipe = {
        **_asked(plan, record),
        "precision": settings.runtime.precision,
        "faststart": settings.video.faststart,
        "outputs": outputs,
    }
    text = json.dumps(recipe, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _asked(plan: Plan, record: Record) -> dict[str, Any]:
    """Return what was asked and decides the pictures and their encoding, without the machine."""
    # A file is known by its content; where it lies does not count.
    free = {*FREE_KEYS, *(f"input.{row['input']}" for row in record.inputs)}
    settings = {
        key: row["value"]
        for key, row in plan.settings.table().items()
        if key.split(".")[0] not in FREE_SECTIONS and key not in free
    }
    inputs = {f"input {r['input']} (sha256)": r["sha256"] for r in record.inputs}
    weights = {f"weights {r['component']} (hash)": r["header_sha256"] for r in record.weights}
    return {
        **settings,
        **inputs,
        **weights,
        **_models(plan),
        "prompt (sha256)": plan.prompt.sha256,
        "camera (sha256)": None if plan.camera is None else _array_sha256(plan.camera.poses),
        "lens (sha256)": _lens_sha256(plan),
        "latent shape": list(plan.shape),
    }


def _models(plan: Plan) -> dict[str, str | None]:
    """Return hashes of the small files that change what the weights compute, by component."""
    found: dict[str, str | None] = {}
    for name, component in plan.components.items():
        folder = component.path
        if folder is None or not folder.is_dir():
            continue
        digest = hashlib.sha256()
        for path in sorted(p for p in folder.rglob("*") if p.suffix in SETTINGS_FILES):
            digest.update(f"{path.relative_to(folder)} {file_sha256(path)}".encode())
        found[f"config of {name} (sha256)"] = digest.hexdigest()
    settings = plan.settings.settings
    if plan.has_stage1:
        found["instruction (sha256)"] = _location_sha256(settings.stage1.instruction)
        found["stage1_config (sha256)"] = _location_sha256(settings.model.stage1_config)
    return found


def _lens_sha256(plan: Plan) -> str | None:
    """Return a hash of the intrinsics that stage 1 sees, if it runs."""
    rays = getattr(plan.source, "rays", None)
    return None if rays is None else _array_sha256(rays.grid_intrinsics)


def _location_sha256(location: str | None) -> str | None:
    """Return the hash of a small file that a setting names, if it is on this disk."""
    path = local_path(location, what="file", download=False) if location else None
    if path is None or not path.is_file():
        return None
    return file_sha256(path)


def saved_run(plan: Plan, recipe: State) -> tuple[Path, State | None, Kept]:
    """Return where the state of the run to continue lies, what it holds, and what is kept of it.

    Raises `InputError` when the run keeps no state, or the saved run differs from this one, and
    `OutputError` when it is finished.
    """
    _check_unfinished(plan)
    path = default_state(plan.outputs, plan.settings.settings.output.state)
    reason = why_not_resumable(plan)
    if path is None or reason is not None:
        raise InputError(
            f"--resume: this run keeps no state ({reason or '--state none'})",
            fix="run without --resume",
        )
    saved = read_saved(path, recipe, prompt=plan.prompt.text)
    try:
        return path, saved, kept_of(plan, saved)
    except BAD_CONTENT as e:
        raise incomplete(path, short(e)) from None


def _check_unfinished(plan: Plan) -> None:
    """Raise `OutputError` when the output is there and no run is left to continue."""
    main = plan.outputs.main
    if not is_finished(plan.outputs, plan.settings.settings.output.state):
        return
    fix = "add --overwrite, or choose another name"
    if plan.outputs.video is not None:
        record = Record(inputs=describe_inputs(plan), weights=describe_weights(plan.components))
        if recipe_of_video(main) == recipe_sha256(plan, record):
            raise OutputError(
                f"{main} exists: this run is finished already, there is nothing to resume",
                fix="use the file as it is; add --overwrite to make it again",
            )
    raise OutputError(f"{main} exists", fix=fix)


def resume_line(plan: Plan, *, device: torch.device, dtype: torch.dtype) -> str:
    """Return what `--resume` would continue, for `--dry-run`. Raises what the run would raise."""
    record = Record(inputs=describe_inputs(plan), weights=describe_weights(plan.components))
    use_threads(plan.settings.settings.runtime.threads)
    recipe = recipe_of(plan, record, device=device, dtype=dtype)
    path, saved, kept = saved_run(plan, recipe)
    blocks = len(plan.blocks)
    if saved is None:
        return f"resume nothing: there is no {path}; all {blocks} blocks are made"
    check_parts(plan, kept)
    what = [f"{kept.latent_frames} latent frames"]
    if plan.outputs.video is not None:
        frames = plan.ratios.frames_of(kept.latent_frames) - plan.frames.dropped
        what.insert(0, f"{frames} frames")
    left = blocks - kept.blocks
    return (
        f"resume after block {kept.blocks} of {blocks}, from {path}: {' and '.join(what)} are "
        f"kept, {left} {'block is' if left == 1 else 'blocks are'} made"
    )


def open_states(
    plan: Plan, recipe: State, *, notes: Notes, on_saved: Any
) -> tuple[StageStates, Kept]:
    """Return the states of a run and what it takes over, reading a saved state with `resume`.

    What is to be said of it is in the second, for when the outputs are held. Raises `InputError`
    when the saved run differs from this one, naming the difference.
    """
    output = plan.settings.settings.output
    path, reason = default_state(plan.outputs, output.state), why_not_resumable(plan)
    if not output.resume and (reason is not None or path is None):
        if reason is not None:
            notes.info(f"no run state is kept: {reason}")
        return NO_STATES, Kept()
    if output.resume:
        path, saved, kept = saved_run(plan, recipe)
        if saved is None:
            line = f"nothing to resume: there is no {path}; the run starts at the beginning"
        else:
            line = f"resuming after block {kept.blocks} from {path}"
        kept = replace(kept, line=line)
    else:
        assert path is not None
        saved, kept = None, _replaced(plan, path, recipe)
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
    return states, kept


def _replaced(plan: Plan, state: Path, recipe: State) -> Kept:
    """Return what a run that starts at the beginning takes over: nothing but a line about it."""
    if not state.exists():
        return Kept()
    part = part_path(plan.outputs.main)
    lost = f"{state} of an earlier run is replaced"
    try:
        usable = dict(read_recipe(state)["recipe"]) == dict(recipe) and part.exists()
    except (SanawmError, *BAD_CONTENT):
        usable = False
    if not usable:
        return Kept(line=lost, replaces=True)
    line = f"{lost} (--resume would have continued it), and with it {part}"
    return Kept(line=line, replaces=True)


def _array_sha256(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
