"""Time of N tiny jobs through `sanawm batch` against N separate `sanawm refine` commands.

Limit: 0.35 of the time, at 24 jobs: with half as many the batch's own start weighs more (0.39 on
one machine). Both make the same clips one after the other, prompts in the store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 0.35
JOBS = 24
PROMPTS = 3
SIZE = {"num-frames": 25, "height": 32, "width": 48}


def jobs() -> list[dict[str, object]]:
    """Return the jobs: a few prompts, a seed each."""
    return [
        {"id": f"j{n}", "prompt": f"tower {n % PROMPTS}", "seed": n, **SIZE} for n in range(JOBS)
    ]


def seconds_of(*arguments: object, environment: dict[str, str]) -> float:
    """Return how long a command takes."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sanawm", "--quiet", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        check=True,
        env=environment,
    )
    return time.perf_counter() - start


def separate(folder: Path, environment: dict[str, str]) -> float:
    """Return the time of one `sanawm refine` a job."""
    total = 0.0
    for job in jobs():
        flags = [part for name, v in job.items() if name != "id" for part in (f"--{name}", v)]
        output = folder / f"{job['id']}.mp4"
        total += seconds_of("refine", "-c", "tiny", *flags, "-o", output, environment=environment)
    return total


def batched(folder: Path, environment: dict[str, str]) -> float:
    """Return the time of one batch of all jobs, with one process."""
    manifest = folder / "jobs.jsonl"
    manifest.write_text("\n".join(json.dumps(job) for job in jobs()) + "\n")
    return seconds_of(
        "batch", manifest, "-c", "tiny", "--output-dir", folder / "out", environment=environment
    )


def main() -> int:
    """Print the times; return 1 when the batch takes more than its share."""
    with tempfile.TemporaryDirectory(prefix="sanawm-bench-") as name:
        folder = Path(name)
        environment = {**os.environ, "SANAWM_CACHE": str(folder / "cache")}
        (folder / "warm").mkdir()
        batched(folder / "warm", environment)  # the store, and the disk's cache
        one_by_one = separate(folder, environment)
        together = batched(folder, environment)
    ratio = together / one_by_one
    print(f"{JOBS} commands{one_by_one:>10.1f} s")
    print(f"one batch{together:>13.1f} s")
    print(f"ratio {ratio:.3f}, limit {LIMIT}: {'kept' if ratio <= LIMIT else 'BROKEN'}")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
