"""What a continued run takes over from its outputs: the blocks before the last saved one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import OutputError, SanawmError
from .io.files import part_path
from .io.latents import WRITTEN_KEY
from .io.preview import ContactSheet
from .io.reader import VideoReader
from .io.remux import read_metadata
from .notes import Notes
from .plan import Plan
from .states import State
from .tensorfile import read_header


@dataclass(frozen=True)
class Kept:
    """What a continued run takes over: all but the last saved block's frames.

    The last frame of a chunk reaches the file with the next chunk, so the frames of the saved
    block are kept in the state and encoded again (to the same bytes).
    """

    blocks: int = 0
    rows: tuple[Mapping[str, Any], ...] = ()
    video_chunks: int = 0
    video_frames: int = 0
    latent_frames: int = 0
    frames: torch.Tensor | None = None
    first: int = 0
    #: What to say once the outputs are held, and whether an earlier run is lost thereby.
    line: str = ""
    replaces: bool = False


def kept_of(plan: Plan, saved: State | None) -> Kept:
    """Return what the run that left the state `saved` has finished.

    Raises `ValueError`, or what the wrong types raise, when the state is not that of this plan.
    """
    if saved is None:
        return Kept()
    block = int(saved["block"])
    latent_frames = plan.blocks[block].stop
    rows = tuple(dict(row) for row in saved["rows"])
    if block < 0 or [row["index"] for row in rows] != list(range(block + 1)):
        raise ValueError(f"{len(rows)} rows for {block + 1} blocks")
    if plan.outputs.video is None:
        return Kept(block + 1, rows, latent_frames=latent_frames)
    frames, first = saved["frames"], int(saved["first"])
    stop = plan.ratios.frames_of(latent_frames)
    wanted = (stop - first, plan.pixels.height, plan.pixels.width, 3)
    if frames.dtype != torch.uint8 or tuple(frames.shape) != wanted:
        raise ValueError(f"frames {frames.dtype} {tuple(frames.shape)}, expected uint8 {wanted}")
    return Kept(
        block + 1,
        rows,
        video_chunks=block,
        video_frames=first - plan.frames.dropped,
        latent_frames=latent_frames,
        frames=frames,
        first=first,
    )


def check_parts(plan: Plan, kept: Kept) -> None:
    """Raise `OutputError` when a file is gone that a continued run would take over."""
    for target, frames in grown_files(plan, kept).items():
        part = part_path(target)
        if frames and not part.exists() and not target.exists():
            raise OutputError(
                f"cannot continue {target}: {part} is gone", fix="run again without --resume"
            )


def grown_files(plan: Plan, kept: Kept) -> dict[Path, int]:
    """Return the files that grow, and how many frames of each a continued run takes over."""
    outputs, found = plan.outputs, {}
    if outputs.video is not None:
        found[outputs.video] = kept.video_frames
    for path in (outputs.save_latents, outputs.save_stage1, outputs.save_noise):
        if path is not None:
            noise = path == outputs.save_noise
            found[path] = max(0, kept.latent_frames - (plan.window.sink if noise else 0))
    return found


def take_back(
    plan: Plan,
    *,
    video_metadata: Mapping[str, str],
    latents_metadata: Mapping[str, str],
    notes: Notes,
) -> None:
    """Give files their part names again that a run had finished when it was killed while closing.

    Nothing is touched unless all of them are of this very run: their recipes must be the same.
    """
    outputs, recipe = plan.outputs, json.loads(video_metadata["sanawm"])["recipe_sha256"]
    ours: dict[Path, bool] = {}
    for target in grown_files(plan, Kept()):
        if part_path(target).exists() or not target.exists():
            continue
        if target == outputs.video:
            ours[target] = recipe_of_video(target) == recipe
        else:
            ours[target] = _metadata_of_latents(target) == dict(latents_metadata)
    for target in ours if all(ours.values()) else ():
        target.replace(part_path(target))
        notes.info(f"{target}: finished by the stopped run, and taken up again")


def recipe_of_video(path: Path) -> object:
    """Return the hash of the recipe that a video holds, None when it holds none."""
    try:
        return json.loads(read_metadata(path)["sanawm"])["recipe_sha256"]
    except (SanawmError, KeyError, TypeError, ValueError):
        return None


def _metadata_of_latents(path: Path) -> dict[str, str] | None:
    try:
        metadata = read_header(path)[1]
    except SanawmError:
        return None
    return {k: v for k, v in metadata.items() if k != WRITTEN_KEY}


def refill_sheet(sheet: ContactSheet, plan: Plan, kept: Kept, *, notes: Notes) -> None:
    """Give the contact sheet the blocks that are in the part file already."""
    if plan.outputs.video is None or not kept.video_chunks:
        return
    first = plan.frames.dropped
    try:
        frames = VideoReader(part_path(plan.outputs.video)).frames(count=kept.video_frames)
        for span in plan.blocks[: kept.video_chunks]:
            count = plan.chunk_frames(span)
            if span.number == 0:
                count = plan.ratios.frames_of(span.stop) - plan.frames.dropped
            block = [frame for _, frame in zip(range(count), frames, strict=False)]
            if len(block) == count:
                sheet.add_block(span.number, first, np.stack(block))
            first += count
    except SanawmError as error:  # the video writer judges the part itself
        notes.info(f"the preview lacks finished blocks: {error.message}")
