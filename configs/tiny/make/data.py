"""Clips on disk: rendered once, read by every training step.

Clip `i` of a split follows from `(split, i)` alone, so rendering can stop and go on, and two
processes can share the work. A file `clips.npy` holds all frames, `done.npy` which clips are there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from .paths import random_path
from .scenes import HEIGHT, WIDTH, Poses, Scene, make_scene, render

#: Seeds of the splits: held-out scenes share none with the training.
SPLITS = {"train": 1, "test": 2}
FRAMES = 97


class Clip(NamedTuple):
    """A rendered clip: its world, its camera path in metres and its frames `(F, 64, 96, 3)`."""

    scene: Scene
    poses: Poses
    frames: np.ndarray


def make_clip(split: str, number: int, *, frames: int = FRAMES) -> Clip:
    """Render clip `number` of a split."""
    rng = np.random.default_rng((SPLITS[split], number))
    poses = random_path(rng, frames)
    scene = make_scene(rng, poses)
    return Clip(scene, poses, render(scene, poses))


def clip_info(split: str, number: int, *, frames: int = FRAMES) -> tuple[Scene, Poses]:
    """Return world and path of a clip without rendering it."""
    rng = np.random.default_rng((SPLITS[split], number))
    poses = random_path(rng, frames)
    return make_scene(rng, poses), poses


def render_clips(folder: Path, *, count: int, rank: int = 0, ranks: int = 1) -> None:
    """Render the training clips `rank, rank + ranks, ...` that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    clips = _open(folder / "clips.npy", (count, FRAMES, HEIGHT, WIDTH, 3))
    done = _open(folder / "done.npy", (count,))
    for number in range(rank, count, ranks):
        if not done[number]:
            clips[number] = make_clip("train", number).frames
            done[number] = 1
    print(json.dumps({"rendered": int(done.sum()), "of": count}), flush=True)


def load_clips(folder: Path) -> np.ndarray:
    """Return the rendered clips `(n, F, 64, 96, 3)`, uint8, from the file as they are needed."""
    return np.load(folder / "clips.npy", mmap_mode="r")


def _open(path: Path, shape: tuple[int, ...]) -> np.memmap:
    try:
        return open_memmap(path, mode="r+")
    except FileNotFoundError:
        return open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
