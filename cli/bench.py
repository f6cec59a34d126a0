"""`sanawm bench`: how fast the stages are here, and how close to the machine's own limit."""

from __future__ import annotations

import json
from typing import Any

from .console import Console
from .params import BENCH
from .session import settings_of


def run(values: dict[str, Any], console: Console) -> None:
    """Measure and print a table, or the report as JSON."""
    settings = settings_of(values, BENCH, console)
    from sanawm.benchmark import run_bench
    from sanawm.components import use_threads
    from sanawm.pipeline import Pipeline

    use_threads(settings.settings.runtime.threads)
    pipe = Pipeline(settings, notes=console.notes)
    report = run_bench(pipe, blocks=values.get("blocks") or 5, repeat=values.get("repeat") or 1)
    text = json.dumps(report, indent=2) if values.get("json") else "\n".join(_lines(report))
    console.result(text, report)


def _lines(report: dict[str, Any]) -> list[str]:
    """Return the report as a table."""
    size = "x".join(str(n) for n in report["latents"][3:])
    compiled = report["compile"]
    lines = [
        f"{report['device']}, {report['dtype']}, {report['threads']} threads, latents {size}, "
        f"a block is {report['block_video_seconds']:.2f} s of video",
        f"{'stage':<14}{'s a block':>10}{'slowest':>9}{'GFLOP':>9}{'GFLOP/s':>9}{'of limit':>10}"
        f"{'x real time':>13}",
        *(_row(s) for s in report["stages"]),
        f"{'all in a row':<14}{report['seconds_per_block']:>10.3f}{'':>37}"
        f"{report['realtime_factor']:>13.2f}",
        f"first chunk on disk after {report['first_chunk_seconds']:.2f} s "
        f"(the first time {report['first_chunk_cold_seconds']:.2f} s); models loaded in "
        f"{sum(report['load_seconds'].values()):.2f} s; "
        f"peak memory {report['peak_memory_bytes'] / 1e9:.2f} GB",
    ]
    if compiled["enabled"]:
        lines.append(
            f"compiled {compiled['graphs']} graphs in {compiled['seconds']:.1f} s; "
            f"{compiled['calls']} calls saved {compiled['saved_seconds']:.2f} s"
        )
    return lines


def _row(stage: dict[str, Any]) -> str:
    share = stage["share_of_limit"]
    return (
        f"{stage['stage']:<14}{stage['seconds_per_block']:>10.3f}"
        f"{stage['slowest_over_median']:>8.2f}x{stage['gflop_per_block']:>9.1f}"
        f"{stage['gflops']:>9.1f}{f'{share:.0%}' if share else '-':>10}"
        f"{stage['realtime_factor']:>13.2f}"
    )
