"""Tables of the benches in one file: `python -m tests.bench.tables [NAME ...]`.

It writes BENCHMARKS.md in the root of the repository.

Without names it runs those that are about speed and memory (`SPEED`). Every bench runs in a process
of its own and its output goes into a section of its own, so a part of
them can be run again later without losing the others. A section says when it was made and how busy
the machine was. A bench may also write its section itself (`--write`).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "BENCHMARKS.md"
LIBRARIES = ("torch", "diffusers", "transformers", "av", "numpy")
#: Instruction sets that decide how fast products are.
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
#: Benches that run without names, with their options.
SPEED = {
    "refiner": (),
    "vae": (),
    "whole_job": ("--growth",),
    "memory": (),
    "startup": (),
}
HEAD = """# Benchmarks

Made by `python -m tests.bench.tables`, which runs `tests/bench/*.py` and replaces the sections of
the benches it ran. What each bench compares, and how, stands at the top of its file.
"""
_SECTION = re.compile(r"<!-- bench (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Describe this machine and its libraries in Markdown."""
    cpu, flags = _cpu()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    rows = [
        (
            "processor",
            f"{cpu}, {os.cpu_count()} cores" + (f" ({', '.join(flags)})" if flags else ""),
        ),
        ("memory", f"{memory:.1f} GiB"),
        ("system", f"{platform.system()} {platform.release()}, Python {platform.python_version()}"),
        ("libraries", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)),
    ]
    return table(("machine", ""), rows)


def write_section(name: str, text: str, *, file: Path = FILE) -> None:
    """Put the output of a bench into its section of `file`, beside the other benches'."""
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    sections = dict(_SECTION.findall(old))
    load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
    made = time.strftime("%Y-%m-%d %H:%M")
    body = text.strip() if text.lstrip().startswith(("|", "#")) else f"```\n{text.strip()}\n```"
    sections[name] = f"## {name}\n\n{made}, load average {load}\n\n{body}\n"
    parts = [HEAD, machine() + "\n"]
    parts += [f"<!-- bench {n} -->\n{sections[n]}<!-- end -->\n" for n in sorted(sections)]
    file.write_text("\n".join(parts), encoding="utf-8")


def report(name: str, text: str, *, write: bool) -> None:
    """Print what a bench found, and write its section if asked."""
    print(text, flush=True)
    if write:
        write_section(name, text)


def run_bench(name: str, options: Sequence[str] = ()) -> tuple[int, str]:
    """Run a bench in a process of its own; return its exit code and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.{name}", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return process.wait(), "".join(lines)


def collect(arguments: Sequence[str]) -> int:
    """Run benches and write their tables; return the worst exit code."""
    from .__main__ import benches

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(benches())}")
    parser.add_argument("--file", type=Path, default=FILE)
    args = parser.parse_args(arguments)
    unknown = [n for n in args.names if n not in benches()]
    if unknown:
        parser.error(f"no bench {', '.join(unknown)}; there are {', '.join(benches())}")
    worst = 0
    for name in args.names or SPEED:
        print(f"== {name}", flush=True)
        code, text = run_bench(name, SPEED.get(name, ()))
        worst = max(worst, code)
        write_section(name, text if code == 0 else f"{text}\nexit code {code}", file=args.file)
    return worst


def _cpu() -> tuple[str, list[str]]:
    """Return the processor's name and those of FLAGS that it has."""
    name, found = platform.processor() or platform.machine(), []
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return name, []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() == "flags":
            words = set(value.split())
            found = [flag for flag in FLAGS if flag in words]
    return name, found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(collect(sys.argv[1:]))
