"""What a user asks of a batch. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sanawm.errors import UsageError

from .asked import Asked, Option
from .shard import WHOLE, Shard


@dataclass(frozen=True)
class BatchRequest:
    """A batch: the manifest, `base` settings of all its jobs, and how to run it.

    options: the long options of `refine`. cache: where prompt embeddings are kept. command: what
    the jobs' reports record.
    """

    manifest: Path
    options: tuple[Option, ...]
    base: Asked = field(default_factory=Asked)
    output_dir: Path | None = None
    report: Path | None = None
    shard: Shard = WHOLE
    overwrite: bool = False
    strict: bool = False
    fail_fast: bool = False
    dry_run: bool = False
    limit: int | None = None
    engine: Literal["local", "ray"] = "local"
    jobs: int | None = None
    cpus_per_job: int | None = None
    gpus_per_job: float | None = None
    ray_address: str | None = None
    cache: Path | None = None
    command: tuple[str, ...] = ("sanawm", "batch")

    def check(self) -> None:
        """Raise `UsageError` for numbers out of range and options that do not go together."""
        for flag, least in (("jobs", 1), ("limit", 1), ("cpus_per_job", 1), ("gpus_per_job", 0)):
            value = getattr(self, flag)
            if value is not None and not value >= least:
                name = f"--{flag.replace('_', '-')}"
                raise UsageError(
                    f"{name} {value}: expected at least {least}",
                    fix=f"use {name} {least} or more, or leave it out",
                )
        if self.engine == "ray":
            return
        if self.engine != "local":
            raise UsageError(
                f"--engine {self.engine!r} is unknown; expected local or ray",
                fix="use --engine local, or leave it out",
            )
        if self.ray_address is not None:
            raise UsageError("--ray-address goes with --engine ray", fix="add --engine ray")
        if self.gpus_per_job is not None and self.gpus_per_job != int(self.gpus_per_job):
            raise UsageError(
                f"--gpus-per-job {self.gpus_per_job}: a share of a device needs --engine ray",
                fix="give a whole number, or --jobs for several processes on a device",
            )
