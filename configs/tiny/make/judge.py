"""Measure a model set in the preset's layout on held-out scenes, through the project's own loaders.

Used by the picture tests and by `figures`, which writes the figures of the README.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sanawm.notes import Notes
from sanawm.refiner.model import RefinerModel, TextContext
from sanawm.refiner.noise import SeededNoise
from sanawm.refiner.sampler import to_tokens
from sanawm.refiner.stream import RefinerStream
from sanawm.refiner.weights import load_refiner
from sanawm.shapes import BlockSpan, LatentShape, Window
from sanawm.vae import (
    DecoderState,
    EncoderState,
    VAEDecoder,
    VAEEncoder,
    load_decoder,
    load_encoder,
)

from .captions import refiner_captions
from .data import Clip, make_clip
from .degrade import degrade
from .scenes import FPS

BLOCK_FRAMES = 12  # pixel frames a block
BLOCKS = 12
LONG_CLIP = 1 + BLOCK_FRAMES * BLOCKS  # frames of 12 blocks
SEED = 42


class ModelSet(NamedTuple):
    """The models of one folder, float32 on the CPU."""

    folder: Path
    encoder: VAEEncoder
    decoder: VAEDecoder
    refiner: RefinerModel


class RefinerCase(NamedTuple):
    """Held-out clips of 12 blocks: truth and degraded latents, pixels, captions' keys."""

    pixels: Tensor  # (B, 3, F, 64, 96)
    truth: Tensor  # (B, C, T, H, W)
    given: Tensor
    text: TextContext


def load_model_set(folder: Path) -> ModelSet:
    """Load VAE and refiner of `folder`."""
    notes = Notes()
    options: dict[str, Any] = {"device": "cpu", "dtype": torch.float32, "notes": notes}
    return ModelSet(
        folder,
        load_encoder(folder / "ltx2_causal_vae", **options),
        load_decoder(folder / "ltx2_causal_vae", **options),
        load_refiner(folder / "refiner_diffusers", **options),
    )


def as_pixels(clips: Sequence[Clip]) -> Tensor:
    """Return the frames of clips as pixels `(B, 3, F, 64, 96)` in [-1, 1]."""
    frames = np.stack([c.frames for c in clips])
    return torch.from_numpy(frames).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def encode(models: ModelSet, pixels: Tensor) -> Tensor:
    """Return normalised latents `(B, C, T, H, W)`."""
    return models.encoder.encode(pixels, EncoderState())


def decode(models: ModelSet, latents: Tensor) -> Tensor:
    """Return pixels `(B, 3, F, 64, 96)`, clamped to [-1, 1]."""
    return models.decoder.decode(latents, DecoderState()).clamp(-1, 1)


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the mean over the batch of the PSNR in dB of pixels in [-1, 1]."""
    errors = (a - b).square().flatten(1).mean(1).tolist()
    return sum(10 * math.log10(4 / e) for e in errors) / len(errors)


def sharpness(a: Tensor, b: Tensor) -> float:
    """Return the mean gradient of `a` over that of `b`."""

    def gradient(x: Tensor) -> float:
        return float(x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean())

    return gradient(a) / gradient(b)


def refiner_case(models: ModelSet, numbers: Sequence[int], *, seed: int = 5) -> RefinerCase:
    """Render held-out clips of 12 blocks, encode them, and degrade the latents."""
    clips = [make_clip("test", n, frames=LONG_CLIP) for n in numbers]
    pixels = as_pixels(clips)
    truth = encode(models, pixels)
    given = degrade(truth, torch.Generator().manual_seed(seed))
    return RefinerCase(pixels, truth, given, caption_keys(models, clips))


def caption_keys(models: ModelSet, clips: Sequence[Clip]) -> TextContext:
    """Return the captions of clips as the refiner reads them."""
    embeds = refiner_captions(
        [c.scene.caption for c in clips],
        text_encoder=models.folder / "gemma3_12b",
        connectors=models.folder / "refiner_diffusers" / "connectors",
    )
    with torch.no_grad():
        return models.refiner.prepare_text(embeds)


class TrueHistoryStream(RefinerStream):
    """A stream whose history is the truth instead of its own output: for comparison."""

    truth: Tensor

    def _run(self, clean: Tensor, span: BlockSpan, sink_position: int, observe: Any) -> Tensor:
        before = self.cache.state_dict()
        latents = super()._run(clean, span, sink_position, observe)
        if not self._is_last(span):
            self.cache.load_state_dict(before)
            if self.window.sink:
                place = range(sink_position, sink_position + self.window.sink)
                self.cache.place_sink(self._rope.build(place))
            running = self.cache.begin(span, capture="post_rope")
            tokens = to_tokens(self.truth[:, :, span.start : span.stop])
            rope = self._rope.build(range(span.start, span.stop))
            self.model.capture(tokens, self.text, self._modulation(0.0), rope, running)
            self.cache.commit("post_rope")
        return latents


def refine(
    models: ModelSet,
    case: RefinerCase,
    *,
    window: Window,
    sigmas: Sequence[float],
    true_history: bool = False,
) -> Tensor:
    """Return the refined latents `(B, C, T, H, W)`; the first frame is the sink, as given."""
    kind = TrueHistoryStream if true_history else RefinerStream
    stream = kind(
        models.refiner,
        case.text,
        shape=LatentShape(*case.given.shape),
        fps=FPS,
        window=window,
        sigmas=sigmas,
        noise=SeededNoise(SEED),
    )
    if isinstance(stream, TrueHistoryStream):
        stream.truth = case.truth
    stream.start(case.given[:, :, : window.sink])
    parts = [case.given[:, :, : window.sink]]
    for span in window.blocks(case.given.shape[2]):
        parts.append(stream.refine(case.given[:, :, span.start : span.stop]).latents)
    return torch.cat(parts, dim=2)


def latent_error(a: Tensor, b: Tensor, block: int) -> float:
    """Return the mean squared error of block `block`, counted from 1."""
    span = slice(1 + 3 * (block - 1), 1 + 3 * block)
    return float((a[:, :, span] - b[:, :, span]).square().mean())


def block_psnr(a: Tensor, b: Tensor, block: int) -> float:
    """Return the PSNR of the pixel frames of block `block`, counted from 1."""
    span = slice(1 + BLOCK_FRAMES * (block - 1), 1 + BLOCK_FRAMES * block)
    return psnr(a[:, :, span], b[:, :, span])


def border_flicker(pixels: Tensor) -> float:
    """Return the median frame difference across block borders over that inside blocks."""
    steps = pixels.diff(dim=2).abs().mean((1, 3, 4))  # (B, F-1); step t leads to frame t + 1
    steps = steps[:, 1:]  # leave out the first frame, which is the image
    at = torch.arange(steps.shape[1]) + 2  # the frame a step leads to
    border = (at - 1) % BLOCK_FRAMES == 0
    ratio = steps[:, border].median(1).values / steps[:, ~border].median(1).values
    return float(ratio.median())


def vae_psnr(models: ModelSet, numbers: Sequence[int], *, frames: int = 25) -> list[float]:
    """Return the PSNR of every held-out clip's first frames after encoding and decoding."""
    found = []
    for number in numbers:
        pixels = as_pixels([make_clip("test", number)])[:, :, :frames]
        found.append(psnr(decode(models, encode(models, pixels)), pixels))
    return found
