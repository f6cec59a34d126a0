"""Damage 12,000 files of every kind that sanawm reads: `python -m tests.bench.fuzz [COUNT] [SEED]`.

Prints a row a kind and returns 1 when a reader broke its promise (see `tests.fuzzing`). One input
in forty is given to the command as well.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.cli.command import sanawm
from tests.fuzzing import KINDS, Outcome, attempt, damage, judge, random_edits

COUNT = 12_000
COMMAND_EVERY = 40
#: How the command is given a file of a kind.
OPTIONS = {
    "camera": ("--camera",),
    "intrinsics": ("--intrinsics",),
    "latents": ("--latents",),
    "noise": ("--noise",),
    "weights": ("--set", "model.refiner="),
    "pt": ("--set", "model.stage1="),
    "embeddings": ("--prompt-embeds",),
    "state": ("--resume", "--state"),
    "toml": ("-c",),
    "yaml": ("--set", "model.stage1_config="),
    "prompt": ("--prompt-file",),
    "image": ("--image",),
    "video": ("--video",),
}


def through_command(kind: str, path: Path) -> Outcome:
    """Plan a run with the file: it ends with a code of bad input, in words, and leaves nothing."""
    *flags, last = OPTIONS[kind]
    words = [*flags, f"{last}{path}"] if last.endswith("=") else [*flags, last, path]
    codes: list[int] = []
    said: list[str] = []

    def plan() -> None:
        done = sanawm("refine", *words, "-o", path.parent / "o.mp4", "--dry-run")
        codes.append(done.code)
        said.append(done.err)

    outcome = judge(plan, path.parent)
    if not outcome.fault and codes[0] not in (0, 2, 3, 5):
        outcome.fault = f"the command ends with {codes[0]}: {said[0][-300:]}"
    return outcome


def main(count: int = COUNT, seed: int = 0) -> int:
    """Run the bench; `count` inputs in all, spread over the kinds."""
    rng = random.Random(seed)
    samples = {name: kind.samples() for name, kind in KINDS.items()}
    everything = [sample.data for row in samples.values() for sample in row]
    faults: list[str] = []
    total = commands = 0
    print(f"{'kind':<12} {'inputs':>7} {'refused':>8} {'read':>6} {'faults':>7} {'seconds':>8}")
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["SANAWM_CACHE"] = str(Path(name, "cache"))
        for kind in KINDS.values():
            folder = Path(name, kind.name)
            folder.mkdir()
            began, refused, before = time.monotonic(), 0, len(faults)
            inputs = -(-count // len(KINDS))
            for number in range(inputs):
                sample = rng.choice(samples[kind.name])
                other = rng.choice(everything)
                data = damage(sample.data, random_edits(rng, other))
                outcome = attempt(kind, sample, data, folder)
                refused += outcome.refused
                if kind.name in OPTIONS and number % COMMAND_EVERY == 0 and not outcome.fault:
                    commands += 1
                    outcome = _command(kind.name, sample.name, dict(sample.beside), data, folder)
                if outcome.fault:
                    faults.append(outcome.fault)
                    keep(kind.name, sample.name, data, len(faults), outcome.fault)
            total += inputs
            seconds, bad = time.monotonic() - began, len(faults) - before
            read = inputs - refused
            print(f"{kind.name:<12} {inputs:>7} {refused:>8} {read:>6} {bad:>7} {seconds:>8.1f}")
            sys.stdout.flush()
        os.chdir(Path(__file__).parents[2])
    print(f"{total} inputs, {commands} of them through the command too, {len(faults)} faults")
    return 1 if faults else 0


def _command(kind: str, name: str, beside: dict[str, bytes], data: bytes, folder: Path) -> Outcome:
    for other, content in (*beside.items(), (name, data)):
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).write_bytes(content)
    outcome = through_command(kind, folder / name)
    left = {p.name for p in folder.iterdir()} - {Path(n).parts[0] for n in (*beside, name)}
    if left:
        outcome.fault = outcome.fault or f"the command left {sorted(left)}"
    for path in folder.iterdir():
        path.unlink()
    return outcome


def keep(kind: str, name: str, data: bytes, number: int, fault: str) -> None:
    """Keep an input that found a fault, and print it."""
    folder = Path(tempfile.gettempdir(), "sanawm-fuzz")
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:03d}-{kind}-{Path(name).name}"
    path.write_bytes(data)
    print(f"  {kind}: {fault}\n    input kept as {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))
