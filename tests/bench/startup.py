"""How long `sanawm --help`, `--version` and usage errors take, warm. Limit: 0.4 s each.

Judged by CPU seconds, which are those of an idle machine; the wall clock of a busy one is printed
beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import NamedTuple

LIMIT = 0.4
REPEAT = 5
COMMANDS = (
    ("--version",),
    ("--help",),
    ("refine", "--help"),
    ("refine", "--nosuch"),
    ("refine", "--set", "video.crff=3"),
)


class Taken(NamedTuple):
    """Seconds of one command."""

    cpu: float
    wall: float


def measure(arguments: tuple[str, ...]) -> Taken:
    """Return the shortest times of some runs, after one that warms the file cache."""
    runs = []
    for _ in range(REPEAT + 1):
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "sanawm", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        runs.append(Taken(usage.ru_utime + usage.ru_stime, time.perf_counter() - start))
    return Taken(min(r.cpu for r in runs[1:]), min(r.wall for r in runs[1:]))


def main() -> int:
    """Print the table; return 1 when a command takes too long."""
    print(f"{'command':<39}    CPU s   wall s")
    worst = 0.0
    for command in COMMANDS:
        taken = measure(command)
        worst = max(worst, taken.cpu)
        print(f"sanawm {' '.join(command):<32}{taken.cpu:>9.3f}{taken.wall:>9.3f}", flush=True)
    print(f"limit {LIMIT} s: {'kept' if worst <= LIMIT else 'BROKEN'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
