"""Video writers that run in a process of their own, to be killed, limited or compared.

Usage: python -m tests.io.child COMMAND FILE [NUMBER]. Each prints one JSON line for what happened.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from fractions import Fraction
from pathlib import Path

from sanawm.errors import SanawmError
from sanawm.io.video import VideoSettings, VideoWriter

from .clips import moving_clip

SETTINGS = VideoSettings(width=320, height=192, fps=Fraction(16), frames_per_chunk=24)
SMALL = VideoSettings(
    width=64, height=32, fps=Fraction(16), frames_per_chunk=8, metadata={"sanawm": "{}"}
)


def say(**values: object) -> None:
    """Print one JSON line at once."""
    print(json.dumps(values), flush=True)


def grow(path: Path, chunks: int) -> None:
    """Write chunks of 24, one for each line on stdin; then wait to be killed."""
    writer = VideoWriter(path, SETTINGS)
    for k in range(chunks):
        sys.stdin.readline()
        writer.write(moving_clip(24, width=320, height=192, start=24 * k))
        while writer.frames_written < 24 * (k + 1):
            time.sleep(0.005)
        say(chunk=k, part=str(writer.part_path))
    time.sleep(60)


def stream(path: Path, chunks: int) -> None:
    """Write chunks of 8 as fast as it goes; say each one that is in the file."""
    with VideoWriter(path, SMALL, on_chunk=lambda k, *_: say(chunk=k)) as writer:
        for k in range(chunks):
            writer.write(moving_clip(8, start=8 * k))


def one_chunk(path: Path, number: int) -> None:
    """Write chunk `number` of 8 frames alone."""
    with VideoWriter(path, SMALL) as writer:
        writer.write(moving_clip(8, start=8 * number))
    say(done=True)


def limited(folder: Path, step: int) -> None:
    """Write the same clip under file size limits from small to just too small."""
    whole = folder / "whole.mp4"
    _write_all(whole)
    full = whole.stat().st_size
    for limit in [*range(step, full, step), full - 600, full - 40, full - 1]:
        path = folder / f"at_{limit}.mp4"
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            _write_all(path)
            outcome: dict[str, object] = {"ok": True}
        except SanawmError as error:
            outcome = {"ok": False, "code": error.exit_code, "message": str(error)}
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        say(limit=limit, full=full, path=str(path), **outcome)


def _write_all(path: Path) -> None:
    with VideoWriter(path, SMALL) as writer:
        for k in range(4):
            writer.write(moving_clip(8, start=8 * k))


def hold(path: Path, _: int) -> None:
    """Hold the part file until stdin ends."""
    writer = VideoWriter(path, SMALL)
    say(part=str(writer.part_path))
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    commands = {
        "grow": grow,
        "stream": stream,
        "one": one_chunk,
        "limited": limited,
        "hold": hold,
    }
    command = commands[sys.argv[1]]
    command(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
