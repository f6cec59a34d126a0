"""What the batch asks of an engine, whatever runs the workers. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from .jobs import Job, Outcome

#: How often a job is tried again after its worker died.
RETRIES = 3


class Ended(NamedTuple):
    """A job that ended; `lost` when its worker died and no further try is left."""

    slot: int
    job: Job
    outcome: Outcome
    lost: bool = False


#: Told the slot and the numbers of finished blocks and of all.
OnBlock = Callable[[int, int, int], None]


class Engine(Protocol):
    """Workers in `slots` numbered slots, each with one job at a time."""

    slots: int

    def name(self, slot: int) -> str:
        """Return a short name of a slot's worker for people."""
        ...

    def submit(self, slot: int, job: Job) -> None:
        """Hand a job to a free slot."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended, waiting `seconds` for the first one at most."""
        ...

    def stop(self, code: int) -> None:
        """Ask every worker to end its job after the block in hand."""
        ...

    def close(self) -> None:
        """End all workers, at once."""
        ...


def lost_outcome(job: Job, reason: str) -> Outcome:
    """Return the outcome of a job whose worker died too often."""
    return Outcome(
        job.id,
        job.line,
        "failed",
        error_code=4,
        error=f"its worker died {RETRIES + 1} times ({reason}); a kill by the system mostly means "
        "that memory ran out",
        error_type="WorkerDied",
    )
