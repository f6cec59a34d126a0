"""How large a run's files will get, from sizes alone, and whether the disks have room for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from .components import stage1_config
from .estimate import MemoryEstimate
from .io.files import free_space
from .notes import Notes
from .outputs import default_state
from .plan import Plan
from .resume import why_not_resumable

#: Bits a pixel of H.264 at crf 18, from above: pictures of these models take 0.1 to 1.
BITS_AT_18 = 1.0
#: Size of a PNG as a share of its raw pixels, from above.
PNG_SHARE = 0.7


def state_path(plan: Plan) -> Path | None:
    """Return where this run keeps its state, None when it keeps none."""
    if why_not_resumable(plan) is not None:
        return None
    return default_state(plan.outputs, plan.settings.settings.output.state)


def state_bytes(plan: Plan, estimate: MemoryEstimate, dtype: torch.dtype) -> int:
    """Return about how large the run state gets; `estimate` is that of the same run."""
    size, window = dtype.itemsize, plan.window
    tokens = plan.shape.batch * plan.shape.tokens_per_frame
    cache = 2 * window.kv_max * tokens * plan.refiner.width * plan.refiner.num_layers * size
    total = cache + estimate.parts.get("decoder_state", 0)
    if plan.outputs.video is not None:
        total += 3 * plan.window.block * plan.ratios.time * plan.pixels.height * plan.pixels.width
    if plan.has_stage1:
        total += _stage1_bytes(plan, size)
    if plan.settings.settings.input.video:
        total += _encoder_values(plan) * size
    return total


def _stage1_bytes(plan: Plan, size: int) -> int:
    """Bytes of stage 1's memories (float32), tails, and the keys and values of its window."""
    config = stage1_config(plan.settings, download=False, notes=Notes())
    options = plan.settings.settings.stage1
    row = plan.shape.tokens_per_frame * config.width * size  # one latent frame of one tensor
    softmax = sum(config.is_softmax(i) for i in range(config.depth))
    memories = 4 * config.heads * config.head_size * (2 * config.head_size + 1)
    kept = options.num_cached_blocks * options.num_frame_per_block + 1
    if options.num_cached_blocks <= 0:
        kept = plan.shape.frames
    gated = memories + 2 * (config.conv_taps - 1) * row
    return (config.depth - softmax) * gated + softmax * 4 * kept * row + config.depth * row


def _encoder_values(plan: Plan) -> int:
    from .vae import EncoderState, VAEEncoder

    assert plan.vae is not None
    frames = plan.window.block * plan.ratios.time + 1
    with torch.device("meta"):
        encoder = VAEEncoder(plan.vae)
        clip = torch.empty(1, 3, frames, plan.pixels.height, plan.pixels.width)
    state = EncoderState()
    encoder.moments(clip, state)
    return state.nbytes // clip.element_size()


def check_space(plan: Plan, estimate: MemoryEstimate, dtype: torch.dtype, *, notes: Notes) -> None:
    """Warn when the machine has less memory than `estimate` says, or a disk less room than files.

    The run's files are counted with its state.
    """
    estimate.check_capacity(notes=notes)
    state = state_bytes(plan, estimate, dtype)
    wanted: dict[int, list[tuple[Path, int]]] = {}
    for path, size in _files(plan, state):
        if path.parent.is_dir():
            wanted.setdefault(path.parent.stat().st_dev, []).append((path, size))
    for files in wanted.values():
        total, folder = sum(size for _, size in files), files[0][0].absolute().parent
        free = free_space(folder)
        if free < total:
            notes.warn(
                f"{folder}: about {in_words(total)} will be written there, "
                f"{in_words(free)} are free"
            )


def _files(plan: Plan, state: int) -> Iterator[tuple[Path, int]]:
    """Yield every large file of the run and about how many bytes it takes at most."""
    outputs, pixels, video = plan.outputs, plan.pixels, plan.settings.settings.video
    raw = plan.frames.written * pixels.height * pixels.width
    if outputs.video is not None:
        encoded = int(raw * BITS_AT_18 / 8 * 2 ** ((18 - video.crf) / 6))
        yield outputs.video, encoded * (2 if video.faststart else 1)
    if outputs.frames_dir is not None:
        yield outputs.frames_dir, int(3 * raw * PNG_SHARE)
    latents = 4 * plan.shape.batch * plan.shape.channels * plan.shape.frames
    latents *= plan.shape.tokens_per_frame
    for path in (outputs.save_latents, outputs.save_stage1, outputs.save_noise):
        if path is not None:
            yield path, latents
    path = state_path(plan)
    if path is not None:
        yield path, 2 * state  # the next one is written beside it


def in_words(size: int) -> str:
    """Return a number of bytes for people: 4.4 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
