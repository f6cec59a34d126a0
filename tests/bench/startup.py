"""How long `sanawm --help`, `--version` and usage errors take, warm. Limit: 0.4 s each."""

from __future__ import annotations

import subprocess
import sys
import time

LIMIT = 0.4
REPEAT = 5
COMMANDS = (
    ("--version",),
    ("--help",),
    ("refine", "--help"),
    ("refine", "--nosuch"),
    ("refine", "--set", "video.crff=3"),
)


def seconds(arguments: tuple[str, ...]) -> float:
    """Return the shortest of some runs, after one that warms the file cache."""
    taken = []
    for _ in range(REPEAT + 1):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "sanawm", *arguments], capture_output=True, check=False
        )
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def main() -> int:
    """Print the table; return 1 when a command takes too long."""
    worst = 0.0
    for command in COMMANDS:
        took = seconds(command)
        worst = max(worst, took)
        print(f"sanawm {' '.join(command):<32}{took:>7.3f} s", flush=True)
    print(f"limit {LIMIT} s: {'kept' if worst <= LIMIT else 'BROKEN'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
