"""What keeping a run state costs: `python -m tests.bench state`.

A tiny run whose blocks take about half a second (a larger picture, more steps), with the state kept
after every block and without. The cost is the report's `state_cost_seconds` over its
`total_seconds`: waits for snapshots in the run's own thread, and the processor time of flushing and
writing in the others. `wall s` is how long all of that took from begin to end, other programs'
share of the machine included. Prints a table; returns 1 when the cost is 5 % or more.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.cli.command import report_of, sanawm

LIMIT = 0.05
SIZE = ("--height", 128, "--width", 192)


def run(folder: Path, name: str, *more: object) -> dict[str, Any]:
    """Return the report of a run of eight blocks."""
    done = sanawm("refine", *SIZE, "-o", folder / f"{name}.mp4", "--threads", 1, *more)
    assert done.code == 0, done.err
    return report_of(folder / f"{name}.mp4")


def main() -> int:
    """Print the cost of the state, in a row and overlapped."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SANAWM_CACHE"] = str(folder / "cache")
        run(folder, "warm")
        print(f"{'run':<12} {'s/block':>8} {'total s':>8} {'wall s':>8} {'cost s':>8} {'cost':>7}")
        for label, flags in (
            ("none", ("--state", "none")),
            ("every block", ()),
            ("every 2", ("--state-every", 2)),
            ("overlap", ("--schedule", "overlap")),
        ):
            report = run(folder, label.replace(" ", "_"), *flags)
            block, total = report["steady_seconds_per_block"], report["total_seconds"]
            wall, paid = report["state_seconds"], report["state_cost_seconds"]
            worst = max(worst, paid / total)
            row = f"{label:<12} {block:>8.3f} {total:>8.2f} {wall:>8.3f} {paid:>8.3f}"
            print(f"{row} {paid / total:>7.2%}")
    print(f"limit {LIMIT:.0%} for blocks of 0.5 s or more")
    return 1 if worst >= LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
