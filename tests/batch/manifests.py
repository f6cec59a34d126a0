"""Manifests, batches of them, and the same jobs by `sanawm refine`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av

from tests.cli.command import Done, sanawm

Job = Mapping[str, Any]

#: Good jobs: two prompts, two ways of sampling, a stage-1 run, and twins of recipe.
MIXED: tuple[Job, ...] = (
    {"id": "first", "prompt": "a red tower", "seed": 1},
    {"id": "sea", "prompt": "blue sea", "seed": 1},
    {"id": "port", "prompt": "a red tower", "seed": 2},
    {"id": "twin", "prompt": "a red tower", "seed": 1},
    {"id": "pace 24", "prompt": "blue sea", "fps": 24, "keep-first-frame": True},
    {"id": "港", "prompt": "blue sea", "sigmas": [0.9, 0.5, 0], "crf": 30},
    {"id": "walk", "image": True, "prompt": "a red tower", "num-frames": 25, "action": "w-24"},
    {"id": "wide", "prompt": "a red tower", "refiner-kv-max-frames": 5, "set": "video.crf=25"},
    {"id": "whole", "prompt": "a red tower", "refiner-mode": "single-shot"},
)
#: What else is in the manifest, and a word of why it is bad.
BROKEN: tuple[tuple[str, str], ...] = (
    ('{"id": "sea", "prompt": "again"}', "already"),
    ('{"id": "../climb", "prompt": "x"}', "separator"),
    ('{"id": "nan", "prompt": "x", "camera": "nan.npy"}', "nan"),
    ('{"id": "cut", "prompt": ', "not JSON"),
)


class Batched(NamedTuple):
    """A batch that ran: what it said, its output folder, its manifest."""

    done: Done
    folder: Path
    manifest: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the report."""
        return rows_of(self.folder / "report.jsonl")

    def row(self, id_: str) -> dict[str, Any]:
        """The row of a job that has one."""
        (row,) = (row for row in self.rows if row["id"] == id_ and row["status"] != "failed")
        return row


def batch(manifest: Path, folder: Path, *more: object) -> Done:
    """Run a batch in this process; its workers are processes of their own."""
    return sanawm("batch", manifest, "-c", "tiny", "--output-dir", folder, *more)


def write_lines(path: Path, lines: Sequence[Job | str]) -> Path:
    """Write a manifest of JSON Lines; a text is written as it is."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def with_source(job: Job, latents: Path) -> Job:
    """Return a job that refines `latents`, unless stage 1 makes its own."""
    if job.get("image"):
        return {k: v for k, v in job.items() if k != "image"}
    return {**job, "latents": str(latents)}


def write_mixed(folder: Path, latents: Path) -> Path:
    """Write the manifest of `MIXED` and `BROKEN`, good and bad in turn."""
    import numpy as np

    poses = np.tile(np.eye(4, dtype=np.float32), (30, 1, 1))
    poses[3, 0, 3] = np.nan
    np.save(folder / "nan.npy", poses)
    lines: list[Job | str] = [{"defaults": {"encoder_preset": "ultrafast", "num-frames": None}}]
    broken = [text for text, _ in BROKEN]
    for number, job in enumerate(MIXED):
        lines.append(with_source(job, latents))
        if number % 2:
            lines.append(broken[number // 2])
    return write_lines(folder / "jobs.jsonl", lines)


def flags_of(job: Job) -> list[object]:
    """Return the flags of `refine` that a job stands for."""
    flags: list[object] = []
    for name, value in job.items():
        if name == "id":
            continue
        if value is True:
            flags.append(f"--{name}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            flags += [f"--{name}", text]
    return flags


def single_runs(folder: Path, jobs: Sequence[Job], latents: Path) -> Path:
    """Make each job by a `refine` of its own."""
    for job in jobs:
        done = sanawm(
            "refine", "-c", "tiny", "--encoder-preset", "ultrafast",
            *flags_of(with_source(job, latents)),
            "--output-dir", folder, "--name", job["id"],
        )  # fmt: skip
        assert done.code == 0, done.err
    return folder


def rows_of(report: Path) -> list[dict[str, Any]]:
    """Return the rows of a report."""
    return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


def stream_of(video: Path) -> list[bytes]:
    """Return the packets of a video, which must decode to as many frames."""
    with av.open(str(video)) as container:
        packets = [bytes(p) for p in container.demux(video=0) if p.size]
    with av.open(str(video)) as container:
        frames = sum(1 for _ in container.decode(video=0))
    assert frames == len(packets) > 0
    return packets
