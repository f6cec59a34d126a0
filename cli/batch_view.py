"""The live table of a batch on a terminal; elsewhere there is one line a job."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sanawm.batch.progress import Progress, clock

from .console import QUIET, Console

if TYPE_CHECKING:
    from rich.table import Table

#: Running jobs that the table has room for.
ROWS = 16


class BatchView:
    """Show `progress` while the block runs, below the lines of the console."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress = progress
        self._live: Any = None
        terminal = console.terminal
        if terminal is not None and console.verbosity > QUIET:
            from rich.live import Live

            self._live = Live(
                get_renderable=lambda: table_of(progress),
                console=terminal,
                refresh_per_second=4,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()


def table_of(progress: Progress) -> Table:
    """Return the table: running jobs, and a line of counts."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for running in list(progress.running.values())[:ROWS]:
        block = f"block {running.block}/{running.blocks}" if running.blocks else "starting"
        spent = clock(time.monotonic() - running.since)
        table.add_row(running.worker, running.id, block, spent)
    more = len(progress.running) - ROWS
    if more > 0:
        table.add_row("", f"and {more} more", "", "")
    table.caption = counts_line(progress)
    table.caption_justify = "left"
    return table


def counts_line(progress: Progress) -> str:
    """Return the counts, the time left and the real-time factor in a line."""
    rate = progress.realtime_factor
    parts = [
        f"{len(progress.running)} running",
        f"{progress.done} done",
        f"{progress.skipped} skipped",
        f"{progress.failed} failed",
        f"{max(progress.left - len(progress.running), 0)} waiting",
        f"{clock(progress.seconds_left)} left",
    ]
    if rate is not None:
        parts.append(f"{rate:.2f}x real time")
    return " · ".join(parts)
