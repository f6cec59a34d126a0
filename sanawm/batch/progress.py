"""How far a batch is: counts, time left and real-time factor. Imports nothing heavy."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Running:
    """A job that a worker is making; `block` of `blocks` are finished."""

    id: str
    worker: str
    since: float
    block: int = 0
    blocks: int = 0


@dataclass
class Progress:
    """Counts of a batch; `work` is measured in latent values of the clips."""

    total: int = 0
    bad: int = 0
    skipped: int = 0
    done: int = 0
    failed: int = 0
    left: int = 0
    workers: int = 0
    work_left: int = 0
    work_done: int = 0
    video_seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)
    running: dict[str, Running] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time since the first job was handed out."""
        return time.monotonic() - self.began

    @property
    def realtime_factor(self) -> float | None:
        """Seconds of video made in a second by all workers together; None before the first."""
        return self.video_seconds / self.seconds if self.video_seconds and self.seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the time left, from the work done so far; None before the first job."""
        begun = sum(r.block / r.blocks for r in self.running.values() if r.blocks)
        share = self.work_left / max(self.left, 1)  # what a job costs, on average
        done = self.work_done + begun * share
        if not self.work_done and begun < 1:
            return None
        return self.seconds * max(self.work_left - begun * share, 0) / done


def clock(seconds: float | None) -> str:
    """Return a duration as `1:02:03`, `2:03` or `?`."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
