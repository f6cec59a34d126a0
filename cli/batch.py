"""`sanawm batch`: many jobs from one manifest, models loaded once a worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sanawm.batch.asked import Asked
from sanawm.batch.manifest import open_manifest
from sanawm.batch.request import BatchRequest
from sanawm.batch.shard import WHOLE, Shard
from sanawm.config import DEFAULT_PRESET
from sanawm.events import Event
from sanawm.notes import counted

from .batch_params import options
from .console import Console
from .session import cache_folder, stop_on_signals

if TYPE_CHECKING:
    from sanawm.batch.run import Summary

#: How a batch that was stopped is continued.
AGAIN = "run the same command again to go on: done jobs are skipped"


def run(values: dict[str, Any], console: Console) -> None:
    """Check the manifest, run its jobs, and print where the report is."""
    request = request_of(values, console)
    request.check()
    open_manifest(request.manifest)  # before anything heavy is imported
    from sanawm.batch.run import Batch

    from .batch_view import BatchView

    kept = "the jobs that were done are kept"
    with stop_on_signals(console, kept=kept, fix=AGAIN) as stop:
        batch = Batch(request, notes=console.notes, listener=console, stop=stop)
        with BatchView(batch.progress, console):
            summary = batch.run()
    _say_end(summary, console)
    if summary.exit_code:
        raise typer.Exit(summary.exit_code)


def request_of(values: dict[str, Any], console: Console) -> BatchRequest:
    """Return what the command's flags ask for."""
    configs = values["config"] or []
    if not configs:
        configs = [DEFAULT_PRESET]
        console.notes.info(
            f"no -c given: jobs that name no config use the embedded preset {DEFAULT_PRESET!r}"
        )
    shard = values["shard"]
    return BatchRequest(
        manifest=Path(values["manifest"]),
        options=options(),
        base=Asked(tuple(_absolute(name) for name in configs), tuple(values["set_"] or ())),
        output_dir=_path(values["output_dir"]),
        report=_path(values["report"]),
        shard=WHOLE if shard is None else Shard.parse(shard),
        overwrite=bool(values["overwrite"]),
        strict=bool(values["strict"]),
        fail_fast=bool(values["fail_fast"]),
        dry_run=bool(values["dry_run"]),
        limit=values["limit"],
        engine=values["engine"] or "local",
        jobs=values["jobs"],
        cpus_per_job=values["cpus_per_job"],
        gpus_per_job=values["gpus_per_job"],
        ray_address=values["ray_address"],
        cache=cache_folder(),
        command=tuple(sys.argv),
    )


def _absolute(config: str) -> str:
    """Make the path of a config file absolute: workers may have another current folder."""
    return str(Path(config).absolute()) if Path(config).is_file() else config


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _say_end(summary: Summary, console: Console) -> None:
    counts = {
        "jobs": summary.total,
        "done": summary.done,
        "shared": summary.shared,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "bad_lines": summary.bad,
        "not_run": summary.not_run,
    }
    dry = summary.report is None
    status = "dry-run" if dry else "interrupted" if summary.stopped else _status(summary)
    if not dry:
        console(Event("run_done", data={"summary": _line(summary), "status": status, **counts}))
    if summary.stopped:
        console.notes.info(AGAIN)
    console.close()
    data = {
        "schema": 1,
        "status": status,
        "report": None if dry else str(summary.report),
        "output_dir": str(summary.output_dir),
        **counts,
        "seconds": round(summary.seconds, 3),
    }
    text = f"{counted(summary.total, 'job')}, {summary.bad} bad" if dry else str(summary.report)
    console.result(text, data)


def _status(summary: Summary) -> str:
    if summary.failed:
        return "failed"
    return "done" if summary.done or summary.not_run else "nothing-to-do"


def _line(summary: Summary) -> str:
    parts = [f"{summary.done} done"]
    if summary.shared:
        parts[0] += f" ({summary.shared} shared another's result)"
    parts += [f"{summary.skipped} skipped", f"{summary.failed} failed"]
    if summary.bad:
        parts[2] += f" ({counted(summary.bad, 'bad line')})"
    if summary.not_run:
        parts.append(f"{summary.not_run} not run")
    return f"batch: {', '.join(parts)} in {summary.seconds:.1f} s"
