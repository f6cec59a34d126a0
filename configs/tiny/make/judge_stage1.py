"""Measure stage 1 on held-out scenes: likeness to the re-rendered truth, and motion shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.notes import Notes
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.weights import load_stage1

from .data import SPLITS, Clip
from .judge import ModelSet, RefinerCase, as_pixels, caption_keys, decode, encode, psnr
from .paths import Speeds, constant_path, random_path, to_units
from .scenes import make_scene, render
from .stage1_data import Batch, caption_rows, clip_rays
from .train_stage1 import roll_out

FRAMES = 49  # 4 chunks
CHUNK_FRAMES = 12
COMMANDS = {
    "still": Speeds(),
    "yaw right": Speeds(yaw=0.4),
    "yaw left": Speeds(yaw=-0.4),
    "forward": Speeds(forward=1.4),
    "back": Speeds(forward=-0.8),
    "strafe right": Speeds(right=0.8),
    "forward + yaw right": Speeds(forward=1.2, yaw=0.3),
}


class Motion(NamedTuple):
    """Mean over pairs of frames four apart: shift to the right in pixels, and zoom."""

    shift: float
    zoom: float


def load_stage1_of(folder: Path) -> Stage1Model:
    """Load stage 1 of an exported folder, float32."""
    config = Stage1Config.from_file(folder / "sana_dit" / "config.yaml", notes=Notes())
    return load_stage1(
        folder / "sana_dit", config=config, device="cpu", dtype=torch.float32, notes=Notes()
    ).eval()


def command_clips(speeds: Speeds, *, count: int, frames: int = FRAMES) -> list[Clip]:
    """Render `count` held-out scenes under one command."""
    clips = []
    for number in range(count):
        rng = np.random.default_rng((SPLITS["test"], 1000 + number))
        poses = constant_path(rng, frames, speeds)
        scene = make_scene(rng, poses)
        clips.append(Clip(scene, poses, render(scene, poses)))
    return clips


def free_clips(*, count: int, frames: int = FRAMES) -> list[Clip]:
    """Render `count` held-out scenes with paths of their own."""
    clips = []
    for number in range(count):
        rng = np.random.default_rng((SPLITS["test"], 2000 + number))
        poses = random_path(rng, frames)
        scene = make_scene(rng, poses)
        clips.append(Clip(scene, poses, render(scene, poses)))
    return clips


def generate(
    models: ModelSet, stage1: Stage1Model, clips: Sequence[Clip], *, mirrored: bool = False
) -> Tensor:
    """Return stage-1 latents from the first frames and cameras of `clips`.

    With `mirrored` the camera is told to go the other way, as a check that it matters.
    """
    pixels = as_pixels(clips)[:, :, :1]
    cameras = [to_units(c.poses) for c in clips]
    if mirrored:
        flip = np.diag([-1.0, 1.0, 1.0, 1.0]).astype(np.float32)
        cameras = [flip @ c @ flip for c in cameras]
    raymaps, pluckers = zip(*(clip_rays(c) for c in cameras), strict=True)
    captions = [c.scene.caption for c in clips]
    rows, masks = caption_rows(captions)
    first = encode(models, pixels)
    batch = Batch(first, torch.stack(raymaps), torch.stack(pluckers), rows, masks)
    return roll_out(stage1, batch, seed=42)


def generated_case(models: ModelSet, clips: Sequence[Clip], latents: Tensor) -> RefinerCase:
    """Return what the refiner is to make of stage-1 latents of `clips`, beside the truth."""
    pixels = as_pixels(clips)
    return RefinerCase(pixels, encode(models, pixels), latents, caption_keys(models, clips))


def chunk_psnr(a: Tensor, b: Tensor) -> list[float]:
    """Return the PSNR of every chunk of 12 frames, the first frame left out."""
    count = (a.shape[2] - 1) // CHUNK_FRAMES
    spans = [slice(1 + CHUNK_FRAMES * i, 1 + CHUNK_FRAMES * (i + 1)) for i in range(count)]
    return [psnr(a[:, :, s], b[:, :, s]) for s in spans]


def motion_of(pixels: Tensor, *, frames: int = 25, apart: int = 4) -> Motion:
    """Return the motion shown in the first `frames` frames of one clip `(3, F, H, W)`."""
    found = [_match(pixels[:, t], pixels[:, t + apart]) for t in range(1, frames - apart, 2)]
    shift, zoom = (sum(x) / len(found) for x in zip(*found, strict=True))
    return Motion(shift, zoom)


def _match(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return shift and zoom that bring picture `a` `(3, H, W)` closest to `b` in its middle."""
    shift, zoom = 0.0, 1.0
    for _ in range(2):
        shifts = torch.arange(-9, 9.01, 0.25)
        shift = float(shifts[_errors(a, b, shifts, torch.full_like(shifts, zoom)).argmin()])
        zooms = torch.arange(0.9, 1.121, 0.005)
        zoom = float(zooms[_errors(a, b, torch.full_like(zooms, shift), zooms).argmin()])
    return shift, zoom


def _errors(a: Tensor, b: Tensor, shifts: Tensor, zooms: Tensor) -> Tensor:
    height, width = a.shape[1:]
    n = len(shifts)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1 / zooms
    theta[:, 0, 2] = -shifts * 2 / width / zooms
    grid = F.affine_grid(theta, [n, 3, height, width], align_corners=False)
    moved = F.grid_sample(a.expand(n, -1, -1, -1), grid, align_corners=False)
    rows, columns = slice(height // 8, -height // 8), slice(width // 5, -width // 5)
    return (moved - b)[:, :, rows, columns].square().mean((1, 2, 3))


def measure_commands(
    models: ModelSet, stage1: Stage1Model, *, count: int = 4
) -> dict[str, dict[str, list[float]]]:
    """Return, for every command, motion in truth and video, and PSNR by chunk.

    Also the PSNR with the camera mirrored, of commands that go sideways: others have no mirror.
    """
    table = {}
    for name, speeds in COMMANDS.items():
        clips = command_clips(speeds, count=count)
        truth = as_pixels(clips)
        made = decode(models, generate(models, stage1, clips))
        wrong = (
            decode(models, generate(models, stage1, clips, mirrored=True))
            if _turns(speeds)
            else None
        )
        motions = [
            [sum(x) / count for x in zip(*(motion_of(p) for p in v), strict=True)]
            for v in (truth, made)
        ]
        table[name] = {
            "truth": motions[0],
            "made": motions[1],
            "psnr": chunk_psnr(made, truth),
            "mirrored": [] if wrong is None else chunk_psnr(wrong, truth),
        }
    return table


def _turns(speeds: Speeds) -> bool:
    return speeds.yaw != 0 or speeds.right != 0
