"""`sanawm refine`: clean latents, a prompt and a camera become an MP4."""

from __future__ import annotations

from typing import Any

from .console import Console
from .refine_params import REFINE
from .session import cache_folder, settings_of, stop_on_signals


def run(values: dict[str, Any], console: Console) -> None:
    """Plan the run, then do it, or print the plan with `--dry-run`."""
    settings = settings_of(values, REFINE, console)
    from sanawm.plan import make_plan

    dry = bool(values["dry_run"])
    plan = make_plan(settings, notes=console.notes, download=not dry)
    if dry:
        _dry_run(plan, console)
        return
    from sanawm.job import RefineJob

    with stop_on_signals(console) as stop:
        result = RefineJob(
            plan, notes=console.notes, listener=console, cache=cache_folder(), stop=stop
        ).run()
    console.close()
    console.result(
        str(result.output),
        {
            "schema": 1,
            "status": "done",
            "output": str(result.output),
            "report": None if result.report is None else str(result.report),
            "frames_written": result.frames_written,
            "seconds": round(result.seconds, 3),
        },
    )


def _dry_run(plan: Any, console: Console) -> None:
    from sanawm.components import choose_device, choose_dtype
    from sanawm.describe import dry_run_lines
    from sanawm.estimate import estimate_memory
    from sanawm.matching import match_components
    from sanawm.notes import Notes
    from sanawm.placement import choose_places
    from sanawm.report import describe_weights
    from sanawm.resume import resume_line
    from sanawm.space import check_space, state_bytes, state_path

    runtime = plan.settings.settings.runtime
    device = choose_device(runtime.device)
    choose_places(runtime.place, device)
    dtype = choose_dtype(runtime.precision, device)
    estimate = estimate_memory(plan, device=device, dtype=dtype)
    check_space(plan, estimate, dtype, notes=console.notes)
    match_components(plan, notes=Notes())  # what is ignored in them is said by a run
    asked = plan.settings.settings.output.resume
    resume = resume_line(plan, device=device, dtype=dtype) if asked else None
    lines = dry_run_lines(plan, device=device, dtype=dtype, estimate=estimate, resume=resume)
    weights = describe_weights(plan.components)
    for row in weights:
        lines.append(f"hash   {row['component']}: {row['header_sha256']}")
    data = {
        "schema": 1,
        "status": "dry-run",
        "output": str(plan.outputs.main),
        "frames": {"decoded": plan.frames.decoded, "written": plan.frames.written},
        "blocks": len(plan.blocks),
        "memory": estimate.rows(),
        "memory_for": estimate.where,
        "state_bytes": state_bytes(plan, estimate, dtype) if state_path(plan) else 0,
        "resume": resume,
        "prompt_sha256": plan.prompt.sha256,
        "weights": weights,
        "settings": plan.settings.table(),
    }
    console.result("\n".join(lines), data)
