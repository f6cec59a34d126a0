"""Run every bench, or those that are named: `python -m tests.bench [NAME ...]`.

A bench is a module of this package with a function `main()` that prints a table and returns an exit
code.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module

import tests.bench


def benches() -> dict[str, Callable[[], int]]:
    """Return the benches by name."""
    names = [m.name for m in pkgutil.iter_modules(tests.bench.__path__) if m.name != "__main__"]
    modules = {name: import_module(f"tests.bench.{name}") for name in names}
    return {name: m.main for name, m in modules.items() if hasattr(m, "main")}


def main(names: list[str]) -> int:
    """Run benches; return 1 when one of them found its limit broken, 2 for an unknown name."""
    found = benches()
    unknown = [n for n in names if n not in found]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are {', '.join(found)}", file=sys.stderr)
        return 2
    worst = 0
    for name in names or found:
        print(f"== {name}", flush=True)
        worst = max(worst, found[name]())
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
