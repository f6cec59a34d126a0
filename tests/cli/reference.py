"""What a run must give, computed from the parts of the library without the command's machinery."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sanawm.refiner.noise import SeededNoise
from sanawm.refiner.single_shot import refine_single_shot
from sanawm.refiner.stream import RefinerStream
from sanawm.refiner.weights import load_refiner
from sanawm.shapes import LatentShape, Window
from sanawm.text.embeddings import PromptEmbeds
from sanawm.vae.decoder import VAEDecoder
from sanawm.vae.pixels import pixels_to_uint8
from sanawm.vae.state import DecoderState
from sanawm.vae.weights import load_decoder

from .command import TINY

SIGMAS = (0.07, 0.0)
RELEASED = Window(1, 3, 11)
CPU = torch.device("cpu")


@torch.no_grad()
def refine(
    latents: Tensor,
    prompt: PromptEmbeds,
    *,
    window: Window = RELEASED,
    sigmas: Sequence[float] = SIGMAS,
    fps: float = 16,
    seed: int = 42,
    dtype: torch.dtype = torch.float32,
    single_shot: bool = False,
) -> Tensor:
    """Return the refined clip with its sink, float32."""
    model = load_refiner(TINY / "refiner_diffusers", device=CPU, dtype=dtype)
    text = model.prepare_text(prompt.embeds, prompt.mask)
    noise = SeededNoise(seed)
    if single_shot:
        return refine_single_shot(
            model, text, latents, sink=window.sink, fps=fps, sigmas=sigmas, noise=noise
        )
    shape = LatentShape(*latents.shape)
    stream = RefinerStream(
        model, text, shape=shape, fps=fps, window=window, sigmas=sigmas, noise=noise
    )
    done = []
    if window.sink:
        stream.start(latents[:, :, : window.sink])
        done.append(latents[:, :, : window.sink])
    for span in window.blocks(shape.frames):
        done.append(stream.refine(latents[:, :, span.start : span.stop]).latents.float())
    return torch.cat(done, dim=2)


def decode(latents: Tensor, *, sink: int = 1, block: int = 3) -> np.ndarray:
    """Return the frames of a refined clip `(T, H, W, 3)` uint8, decoded block by block."""
    decoder: VAEDecoder = load_decoder(TINY / "ltx2_causal_vae", device=CPU, dtype=torch.float32)
    state = DecoderState()
    cuts = [0, *range(sink + block, latents.shape[2], block), latents.shape[2]]
    frames = [
        pixels_to_uint8(decoder.decode(latents[:, :, a:b], state))[0].numpy()
        for a, b in pairwise(cuts)
    ]
    return np.concatenate(frames)
