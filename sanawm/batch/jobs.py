"""What travels between a batch and its workers: jobs one way, outcomes the other. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from .asked import Asked

#: How a job ended; `not-run` and `skipped` jobs were never handed to a worker.
Status = Literal["done", "skipped", "failed", "interrupted", "not-run"]


@dataclass(frozen=True)
class Job:
    """One job to make: its place in the manifest, and its settings with the output's name."""

    position: int
    id: str
    line: int
    asked: Asked
    #: Hashes of the settings that decide which models it loads, and of its prompt.
    model: str
    prompt: str
    #: Size of the clip in latent values: how much work it is.
    work: int
    #: The file that is there when the job is done.
    output: str
    #: What else is known of it then: its report, its frames, the hash of its recipe.
    report: str | None = None
    frames: int = 0
    recipe: str | None = None

    def made_before(self, status: Status) -> Outcome:
        """Return the row of a job that an earlier run has finished."""
        report = self.report if self.report is not None and Path(self.report).exists() else None
        return Outcome(
            self.id,
            self.line,
            status,
            output=self.output,
            report=report,
            frames=self.frames,
            recipe_sha256=self.recipe,
        )


@dataclass(frozen=True)
class Outcome:
    """How a job ended: one row of the report."""

    id: str | None
    line: int
    status: Status
    seconds: float = 0.0
    output: str | None = None
    report: str | None = None
    error_code: int | None = None
    error: str | None = None
    error_type: str | None = None
    frames: int = 0
    video_seconds: float = 0.0
    shared_with: str | None = None
    resumed_after_blocks: int = 0
    recipe_sha256: str | None = None
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    worker: str | None = None
    traceback: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the report's row; the traceback is there only when there is one."""
        row = asdict(self)
        if self.traceback is None:
            del row["traceback"]
        return row


@dataclass(frozen=True)
class WorkerSetup:
    """What every worker is told: where embeddings are kept, its threads, the command to record."""

    cache: Path | None
    threads: int | None
    command: tuple[str, ...]
