"""Steer the camera live: each block's keys are chosen after its predecessor's frames were seen.

    .venv/bin/python examples/steer_live.py [OUT.mp4] [BLOCKS]

Runs on the embedded tiny preset in a few seconds. The cells (`# %%`) can be run one by one in an
editor or pasted into a notebook.
"""

# %% Load the models and open a clip that has no planned end.
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import sanawm
from sanawm.io.image import read_image

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "out/steer_live.mp4")
BLOCKS = int(sys.argv[2]) if len(sys.argv) > 2 else 8
PROMPT = "a red tower on green ground under a bright sky"

torch.set_num_threads(1)  # the tiny model gains nothing from more
pipe = sanawm.Pipeline.from_config("tiny")
picture = read_image(Path(pipe.settings.get("input.image")), notes=pipe.notes)  # (H, W, 3) uint8
live = sanawm.LiveSession(pipe, picture, PROMPT, fov_x_deg=90)
camera = sanawm.ActionWalk()  # w s forward and back, a d turn, i k look up and down, j l strafe


# %% The pilot: anything that looks at frames and names keys. This one follows the colour red.
def pilot(frames: np.ndarray) -> str:
    """Return the keys for the next block, given frames `(T, H, W, 3)` of the one before."""
    red, green, blue = np.moveaxis(frames[-1].astype(float), -1, 0)  # (H, W) each
    redness = np.maximum(red - (green + blue) / 2, 0).sum(axis=0)  # by column
    if redness.sum() < 1:
        return "d"  # nothing red in sight: turn and look for it
    columns = np.linspace(-1, 1, len(redness))
    offset = float((columns * redness).sum() / redness.sum())
    return "w" if abs(offset) < 0.1 else "wd" if offset > 0 else "wa"


# %% Fly: see the last frames, choose keys, make the next block.
def fly(blocks: int) -> Iterator[sanawm.FrameChunk]:
    """Yield the blocks of a flight as they are made."""
    seen = picture[None]
    for _ in range(blocks):
        keys = pilot(seen)
        chunk = live.step(camera.walk(f"{keys}-{live.block_frames}"))
        print(f"frames {chunk.first}-{chunk.first + len(chunk.frames) - 1}: keys {keys}")
        seen = chunk.frames
        yield chunk


# The file plays while it grows. The path is kept, so the flight can be made again as one run:
#     sanawm refine --camera OUT.npy --prompt "a red tower ..." -o again.mp4
OUT.parent.mkdir(parents=True, exist_ok=True)
made = sanawm.write_video(fly(BLOCKS), OUT, fps=16, overwrite=True)
np.save(OUT.with_suffix(".npy"), live.poses)
print(f"{made.frames} frames -> {made.path}, path -> {OUT.with_suffix('.npy')}")
