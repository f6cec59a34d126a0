"""One training on several cores: a process a core, gradients averaged.

Two threads in one process are slower than one when anything else runs, so every process has one.
The allocator's settings keep large tensors from being mapped anew each step (10 s to 3.5 s a step).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "8000000000",
    "MALLOC_TRIM_THRESHOLD_": "16000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True)
class Rank:
    """Process `number` of `count`."""

    number: int
    count: int

    def log(self, step: int, *, every: int = 1, **values: float) -> None:
        """Print a line of figures from the first process."""
        if self.number == 0 and step % every == 0:
            text = " ".join(f"{k} {v:.4f}" for k, v in values.items())
            print(f"{time.strftime('%H:%M:%S')} step {step} {text}", flush=True)


def start_processes(arguments: list[str], *, count: int, meeting: Path) -> None:
    """Run `python -m configs.tiny.make.train ARGUMENTS` in `count` processes and wait."""
    meeting.unlink(missing_ok=True)
    started = []
    for number in range(count):
        place = {"RANK": str(number), "RANKS": str(count), "MEETING": str(meeting.absolute())}
        command = [sys.executable, "-m", "configs.tiny.make.train", *arguments]
        started.append(subprocess.Popen(command, env=os.environ | ENVIRONMENT | place))
    failed = [p.args for p in started if p.wait() != 0]
    if failed:
        raise SystemExit(f"training failed: {failed[0]}")


def this_rank() -> Rank:
    """Return the place of this process, having met the others."""
    torch.set_num_threads(1)
    rank = Rank(int(os.environ["RANK"]), int(os.environ["RANKS"]))
    if rank.count > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['MEETING']}",
            rank=rank.number,
            world_size=rank.count,
            timeout=timedelta(hours=2),
        )
    return rank
