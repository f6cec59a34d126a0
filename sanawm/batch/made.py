"""What of a job is on the disk already: made by this recipe, made by another one, or half done."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from sanawm.errors import OutputError, SanawmError
from sanawm.io.begun import check_part
from sanawm.io.files import part_path
from sanawm.io.remux import read_metadata
from sanawm.outputs import SIDE_FILES, Outputs, default_state
from sanawm.plan import Plan


def made_recipe(plan: Plan) -> str | None:
    """Return the hash of the recipe that made the outputs of a plan, None when they are not there.

    A video holds the hash itself. Outputs with a run state beside them are not complete: the state
    goes last of all.
    """
    outputs = plan.outputs
    state = state_of(plan)
    if state is not None and state.exists():
        return None
    if not outputs.main.is_file() or not all(path.exists() for path in _sides(outputs).values()):
        return None
    return _recipe_in(outputs)


def check_free(plan: Plan, recipe: str, *, tried: bool) -> None:
    """Raise `OutputError` when a job would replace files that are not its own.

    Its own are what this recipe made, and what an unfinished run left: there is a part file or a
    state, or a batch has `tried` the job before.
    """
    outputs = plan.outputs
    for path in outputs.growing():
        check_part(path, overwrite=False)
    half = half_done(plan)
    # Latents do not tell their recipe, so those of an unfinished run count as its own.
    known = outputs.video is not None or not half
    if outputs.main.exists() and known and _recipe_in(outputs) != recipe:
        raise OutputError(
            f"{outputs.main} exists, and it was made with other settings or inputs",
            fix="add --overwrite, or give the job another id",
        )
    if _is_foreign(outputs.report):
        raise OutputError(f"{outputs.report} exists, and it is no report", fix="move it away")
    if outputs.main.exists() or tried or half:
        return
    for name, path in _sides(outputs).items():
        full = path.is_dir() and any(path.iterdir())
        if path.exists() and (not path.is_dir() or full):
            raise OutputError(
                f"{name.replace('_', '-')}: {path} exists", fix="add --overwrite, or move it away"
            )


def state_of(plan: Plan) -> Path | None:
    """Return where the run state of a job lies, None when it keeps none."""
    return default_state(plan.outputs, plan.settings.settings.output.state)


def half_done(plan: Plan) -> bool:
    """Tell whether an unfinished run left its growing file or its state."""
    state = state_of(plan)
    return part_path(plan.outputs.main).exists() or (state is not None and state.exists())


def files_of(plan: Plan) -> list[Path]:
    """Return every path that a job writes to, also those with names for the meantime."""
    outputs, state = plan.outputs, state_of(plan)
    files = [*outputs.files(), *(p for p in (outputs.frames_dir, state) if p is not None)]
    return [*files, *(part_path(p) for p in outputs.growing())]


def _sides(outputs: Outputs) -> dict[str, Path]:
    """Return the outputs beside the main one by name, without the report."""
    names = [name for name in (*SIDE_FILES, "frames_dir") if name != "report"]
    paths = {name: getattr(outputs, name) for name in names}
    return {n: p for n, p in paths.items() if p is not None and p != outputs.main}


def pairs(made: Outputs, wanted: Outputs) -> list[tuple[Path, Path]]:
    """Return what to link for a job with the recipe of another: from, to; the main file last."""
    sides = _sides(wanted)
    return [
        *((path, sides[name]) for name, path in _sides(made).items()),
        (made.main, wanted.main),
    ]


def _recipe_in(outputs: Outputs) -> str | None:
    """Return the hash that the video holds, or without one the report of a finished run."""
    found: object = None
    if outputs.video is None:
        report = read_report(outputs.report)
        found = report.get("recipe_sha256") if report.get("status") == "done" else None
    else:
        with suppress(SanawmError, ValueError, KeyError, AttributeError):
            found = json.loads(read_metadata(outputs.video)["sanawm"]).get("recipe_sha256")
    return found if isinstance(found, str) else None


def read_report(path: Path | None) -> dict[str, object]:
    """Return the report of a run; empty when there is none, or something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _is_foreign(path: Path | None) -> bool:
    exists = path is not None and path.exists()
    return exists and not str(read_report(path).get("tool")).startswith("sanawm")
