"""Tiny runs of eight chunks, and everything that two runs of one clip must have in common."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

#: A clip of 25 latent frames: the sink and eight blocks of three.
SIZE = ("--height", 32, "--width", 48)
BLOCKS = 8
FRAMES = 96
#: Names of what `full` writes.
STATE = "out.state"
FINISHED = {
    "out.mp4", "out.json", "out.safetensors", "noise.safetensors", "camera.npy", "frames",
    "preview.png", "log.jsonl",
}  # fmt: skip


def full(*more: object) -> tuple[object, ...]:
    """Return the command of a run that writes everything that grows, into the current folder."""
    return (
        "refine", *SIZE, "-o", "out.mp4", "--save-latents", "out.safetensors",
        "--frames-dir", "frames", "--save-noise", "noise.safetensors", "--preview", "preview.png",
        "--save-camera", "camera.npy", "--log-file", "log.jsonl", *more,
    )  # fmt: skip


class Decoded(NamedTuple):
    """Frames of a video as hashes of their RGB bytes, and their times in seconds."""

    frames: list[str]
    times: list[Fraction]


def decode(path: Path) -> Decoded:
    """Decode a whole video."""
    import av

    frames, times = [], []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        for frame in container.decode(stream):
            pixels = frame.to_ndarray(format="rgb24")
            frames.append(hashlib.sha256(pixels.tobytes()).hexdigest())
            assert frame.pts is not None
            times.append(frame.pts * stream.time_base)
    return Decoded(frames, times)


def events(log: Path, name: str) -> list[dict[str, Any]]:
    """Return the events of one kind in a log file of JSON lines; a torn last line is left out."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["event"] == name:
            found.append(event)
    return found


def report_of(path: Path) -> dict[str, Any]:
    """Return the report beside an MP4 or latents file."""
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def same_rows(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    """Tell whether two reports have the same blocks; times and memory may differ."""
    free = ("seconds", "memory_bytes")
    plain = [[{k: v for k, v in r.items() if k not in free} for r in rows] for rows in (a, b)]
    return plain[0] == plain[1]
