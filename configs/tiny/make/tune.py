"""The refiner's last lessons: its own roll-outs over whole clips, errors as they are seen.

A roll-out goes through the real stream and its cache. Then a window of five blocks is trained on
the history that came out, at both sigmas of the schedule. What counts is above all the picture: the
decoder, frozen, shows the window and what it should be. Latent channels count by how much it shows
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.refiner.model import RefinerModel
from sanawm.refiner.noise import GivenNoise
from sanawm.refiner.stream import RefinerStream
from sanawm.shapes import LatentShape

from .latents import statistics
from .scenes import FPS
from .train_refiner import BLOCKS, WINDOW, Clips, WindowPass
from .train_vae import load_vae

#: Of the squared error of latents, of pixels, and of the pictures' sharpness.
LATENT_WEIGHT, PIXEL_WEIGHT, EDGE_WEIGHT = 1.0, 100.0, 1.0
#: Lower than the ones learned first: they keep more of what stage 1 made.
SIGMAS = (0.08, 0.04, 0.0)
#: Side of the windows in which sharpness is compared, pixels, and the step between them.
PATCH, STEP = 16, 8
Show = Callable[[Tensor], Tensor]


def show(work: Path) -> Show:
    """Return the frozen decoder: latents `(B, C, T, H, W)` to pixels, with gradients."""
    vae, stats = load_vae(work), statistics(work)
    vae.requires_grad_(False)
    std, mean = (x.view(1, -1, 1, 1, 1) for x in (stats.std, stats.mean))
    return lambda z: vae.pixels(z * std + mean)


@torch.no_grad()
def channel_weights(pixels: Show, latents: Tensor, *, size: float = 0.2) -> Tensor:
    """Return how much an error in each channel shows in the pixels, `(1, C, 1, 1, 1)`, mean 1."""
    z = latents[:40:10, :, :7].float()
    generator = torch.Generator().manual_seed(0)
    clean, shown = pixels(z), []
    for channel in range(z.shape[1]):
        worse = z.clone()
        worse[:, channel] += size * torch.randn(z[:, channel].shape, generator=generator)
        shown.append((pixels(worse) - clean).square().mean())
    weights = torch.stack(shown)
    weights = (weights / weights.mean()).clamp(0.15, 4)
    return (weights / weights.mean()).view(1, -1, 1, 1, 1)


def tuning_loss(
    model: RefinerModel, clips: Clips, weights: Tensor, pixels: Show, *, seed: int
) -> Tensor:
    """Return the loss of a window of five blocks on the history of the model's own roll-out."""
    g = torch.Generator().manual_seed(seed)
    text = model.prepare_text(clips.text)
    eps = torch.randn(clips.truth[:, :, 1:].shape, generator=g)
    history, guess = _roll_out(model, clips, eps)
    block, sink = WINDOW.block, WINDOW.sink
    at = block * int(torch.randint(0, 8 - BLOCKS + 1, (1,), generator=g))
    span = slice(at, at + block * BLOCKS)
    z, given = (x[:, :, sink:][:, :, span] for x in (clips.truth, clips.given))
    eps, history, guess = (x[:, :, span] for x in (eps, history, guess))
    B, _, T, _, _ = z.shape
    first = SIGMAS[0]
    noisy = (1 - first) * given + first * eps
    late = torch.rand(B, 1, T // block, 1, 1, generator=g) < 0.5
    ratio = torch.where(late, SIGMAS[1] / first, 1.0).repeat_interleave(block, dim=2)
    x, sigma = ratio * noisy + (1 - ratio) * guess, first * ratio
    run = WindowPass(blocks=BLOCKS, offset=0, config=model.config)
    v = run(
        model,
        text,
        sink=clips.truth[:, :, :sink],
        clean=history,
        noisy=x,
        sigmas=sigma.view(B, T),
    )
    clean = x - sigma * v.float()
    loss = LATENT_WEIGHT * ((clean - z).square() * weights).mean()
    with torch.no_grad():
        best = pixels(z)
    seen = pixels(clean)
    loss = loss + PIXEL_WEIGHT * (seen - best).square().mean()
    return loss + EDGE_WEIGHT * edge_error(seen, best) if clips.made else loss


def edge_error(pixels: Tensor, truth: Tensor) -> Tensor:
    """Return how far the gradients of `pixels` `(B, C, F, H, W)` are from the truth's, as a share.

    Of every clip as a whole and of its windows: the sharpness is to return where it was lost, but
    need not lie on the same pixel. Errors that nothing can mend, such as those of stage 1, else
    make soft pictures.
    """
    found, wanted = _steepness(pixels), _steepness(truth)
    near = (found - wanted).abs().mean() / wanted.mean()
    whole = (found.mean((1, 2, 3)) / wanted.mean((1, 2, 3)) - 1).abs().mean()
    return near + whole


def _steepness(pixels: Tensor) -> Tensor:
    """Return the mean gradient of every window, `(B, F, H', W')`."""
    across, down = pixels.diff(dim=-1).abs(), pixels.diff(dim=-2).abs()
    sum_ = (across[..., 1:, :] + down[..., :, 1:]).mean(1)
    return F.avg_pool2d(sum_, PATCH, STEP)


@torch.no_grad()
def _roll_out(model: RefinerModel, clips: Clips, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the refined clips and the first step's guesses, both without the sink."""
    sink = WINDOW.sink
    stream = RefinerStream(
        model,
        model.prepare_text(clips.text.float()),
        shape=LatentShape(*clips.truth.shape),
        fps=FPS,
        window=WINDOW,
        sigmas=SIGMAS,
        noise=GivenNoise.of(eps, sink=sink),
    )
    stream.start(clips.truth[:, :, :sink])
    refined, guesses = [], []
    height, width = clips.truth.shape[-2:]

    def keep(step: int, x0: Tensor, _: Tensor) -> None:
        if step == 0:
            guesses.append(x0.transpose(1, 2).unflatten(2, (-1, height, width)).float())

    for span in WINDOW.blocks(clips.given.shape[2]):
        part = clips.given[:, :, span.start : span.stop]
        refined.append(stream.refine(part, observe=keep).latents.float())
    return torch.cat(refined, dim=2), torch.cat(guesses, dim=2)
