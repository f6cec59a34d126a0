"""What stage 1 is and what it learns from: its config, and the encoded clips with their cameras."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sanawm.camera.framing import ImageSize
from sanawm.camera.rays import camera_rays
from sanawm.shapes import VAERatios
from sanawm.text.instruction import read_instruction

from .captions import stage1_captions
from .data import clip_info
from .latents import LONG, camera_of, load_latents
from .optim import save_atomically
from .release import stage1_release
from .scenes import HEIGHT, INTRINSICS, WIDTH

PRESET = Path(__file__).parent.parent
#: The sections of a release YAML.
STAGE1_CONFIG = stage1_release(hidden_size=128, depth=6, softmax_every_n=2, flow_shift=2.0)


class Sequences(NamedTuple):
    """Encoded clips with their cameras and captions."""

    latents: Tensor  # (n, C, T, H, W)
    raymap: Tensor  # (n, T, 20)
    plucker: Tensor  # (n, 24, T, H, W)
    caption: Tensor  # (captions, 1, L, E)
    mask: Tensor  # (captions, L)
    which: Tensor  # (n,) caption of each

    def part(self, chosen: Tensor, *, frames: int = LONG) -> Batch:
        """Return the first `frames` latent frames of some sequences."""
        return Batch(
            self.latents[chosen, :, :frames].float(),
            self.raymap[chosen, :frames],
            self.plucker[chosen, :, :frames].float(),
            self.caption[self.which[chosen]],
            self.mask[self.which[chosen]],
        )


def load_sequences(work: Path, name: str) -> Sequences:
    """Return the sequences `long` or `short` of all training clips."""
    latents = load_latents(work, name)
    cached = work / f"cameras_{name}.pt"
    if not cached.is_file():
        rows = [clip_rays(camera_of(i, name)) for i in range(len(latents))]
        pair = tuple(torch.stack(x) for x in zip(*rows, strict=True))
        save_atomically({"raymap": pair[0], "plucker": pair[1].half()}, cached)
    state = torch.load(cached)
    names = [clip_info("train", i)[0].caption for i in range(len(latents))]
    unique = sorted(set(names))
    caption, mask = caption_rows(unique)
    which = torch.tensor([unique.index(n) for n in names])
    return Sequences(latents, state["raymap"], state["plucker"], caption, mask, which)


def caption_rows(captions: list[str]) -> tuple[Tensor, Tensor]:
    """Return stage 1's captions and masks through the preset's text path."""
    config = PRESET / "sana_dit" / "config.yaml"
    return stage1_captions(
        captions,
        text_encoder=PRESET / "gemma2",
        instruction=read_instruction(config),
        max_length=int(STAGE1_CONFIG["text_encoder"]["model_max_length"]),
    )


def clip_rays(camera: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return raymap `(T, 20)` and Plücker rays `(24, T, H, W)` of a camera file's poses."""
    rays = camera_rays(
        camera.astype(np.float32),
        np.tile(np.float32(INTRINSICS), (len(camera), 1)),
        size=ImageSize(WIDTH, HEIGHT),
        ratios=VAERatios(4, 8),
    )
    return torch.from_numpy(rays.raymap()), torch.from_numpy(rays.chunk_plucker())


class Batch(NamedTuple):
    """A part of `Sequences`."""

    latents: Tensor  # (B, C, T, H, W) float32
    raymap: Tensor
    plucker: Tensor
    caption: Tensor
    mask: Tensor


def batch_at(data: Sequences, step: int, *, count: int, frames: int, rank: int) -> Batch:
    """Return the first `frames` latent frames of random sequences."""
    rng = np.random.default_rng((13, step, rank))
    chosen = torch.from_numpy(rng.integers(len(data.latents), size=count))
    return data.part(chosen, frames=frames)
