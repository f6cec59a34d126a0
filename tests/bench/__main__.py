"""Run every bench, or those that are named: `python -m tests.bench [NAME ...]`.

A bench is a module of this package with a `main`; each runs in a process of its own, prints a table
and exits with 1 when it found its limit broken.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def benches() -> list[str]:
    """Return the names of the benches."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return [f.stem for f in files if "\ndef main(" in f.read_text(encoding="utf-8")]


def main(names: list[str]) -> int:
    """Run benches; return the worst exit code, 2 for an unknown name."""
    found = benches()
    unknown = [n for n in names if n not in found]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are {', '.join(found)}", file=sys.stderr)
        return 2
    worst = 0
    for name in names or found:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False)
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
