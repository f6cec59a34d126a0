"""Encode the training clips once the VAE is done, and put its statistics beside them.

Two sequences a clip: all of it (25 latent frames), and the second half encoded from its own first
frame (13), because a stream always begins with a single-frame latent. One of the two is mirrored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .data import FRAMES, clip_info, load_clips
from .paths import to_units
from .ranks import Rank
from .train_vae import LATENT_CHANNELS, VAE, load_vae

GRID = (8, 12)
LONG, SHORT = 25, 13  # latent frames
HALF = 48  # frame at which the short sequence begins
BATCH = 4


class Statistics(NamedTuple):
    """Mean and standard deviation of the raw latents, `(C,)` each."""

    mean: Tensor
    std: Tensor


def encode_clips(work: Path, *, rank: Rank) -> None:
    """Write `long<rank>.npy` and `short<rank>.npy`: raw latents of every `rank.count`-th clip."""
    clips, vae = load_clips(work / "data"), load_vae(work)
    numbers = np.arange(rank.number, len(clips), rank.count)
    for name, start in (("long", 0), ("short", HALF)):
        parts = []
        for at in range(0, len(numbers), BATCH):
            chosen = numbers[at : at + BATCH]
            frames = clips[chosen, start:]
            flipped = np.array([is_mirrored(int(n), name) for n in chosen])
            frames[flipped] = frames[flipped][:, :, :, ::-1]
            parts.append(encode(vae, frames).half().numpy())
            rank.log(at, every=100)
        np.save(work / f"{name}{rank.number}of{rank.count}.npy", np.concatenate(parts))


def is_mirrored(number: int, name: str) -> bool:
    """Return whether the sequence `name` of clip `number` is seen in a mirror."""
    return (number % 2 == 1) == (name == "long")


@torch.no_grad()
def encode(vae: VAE, frames: np.ndarray) -> Tensor:
    """Return raw latents `(B, C, T, 8, 12)`, float32, of frames `(B, F, 64, 96, 3)`, uint8."""
    pixels = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 4, 1, 2, 3))).float()
    with torch.autocast("cpu", torch.bfloat16):
        return vae.moments(pixels / 127.5 - 1)[0].float()


def load_latents(work: Path, name: str) -> Tensor:
    """Return the normalised latents `(n, C, T, 8, 12)`, float16, of all training clips in order."""
    files = sorted(work.glob(f"{name}*of*.npy"))
    parts = [np.load(f) for f in files]
    joined = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.float16)
    for i, part in enumerate(parts):
        joined[i :: len(parts)] = part
    stats = statistics(work)
    raw = torch.from_numpy(joined)
    shape = (1, LATENT_CHANNELS, 1, 1, 1)
    for i in range(0, len(raw), 100):
        raw[i : i + 100] = (raw[i : i + 100].float() - stats.mean.view(shape)) / stats.std.view(
            shape
        )
    return raw


def write_statistics(work: Path) -> None:
    """Measure the raw latents of all clips and write `statistics.json`, unless it is there."""
    if (work / "statistics.json").is_file():  # of the models that the work began from
        return
    parts = [np.load(f)[::5].astype(np.float32) for f in sorted(work.glob("long*of*.npy"))]
    raw = torch.from_numpy(np.concatenate(parts))
    # Stored as the VAE file stores them, so that training and use agree to the bit.
    mean = raw.mean((0, 2, 3, 4)).bfloat16().float()
    std = raw.std((0, 2, 3, 4)).bfloat16().float()
    text = json.dumps({"mean": mean.tolist(), "std": std.tolist()}, indent=1)
    (work / "statistics.json").write_text(text + "\n", encoding="utf-8")


def statistics(work: Path) -> Statistics:
    """Return what `write_statistics` wrote."""
    data = json.loads((work / "statistics.json").read_text(encoding="utf-8"))
    return Statistics(torch.tensor(data["mean"]), torch.tensor(data["std"]))


def camera_of(number: int, name: str) -> np.ndarray:
    """Return the poses `(F, 4, 4)` of a training sequence, relative to its frame 0, in units."""
    _, poses = clip_info("train", number)
    camera = to_units(poses[(HALF if name == "short" else 0) : FRAMES])
    if is_mirrored(number, name):
        mirror = np.diag([-1.0, 1.0, 1.0, 1.0]).astype(np.float32)
        camera = mirror @ camera @ mirror
    return camera
