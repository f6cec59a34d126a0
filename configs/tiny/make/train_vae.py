"""Train the VAE "P4": 4 frames, 8 x 8 pixels and 3 colours become 16 numbers.

First encoder and decoder together, at a constant rate; then the averaged encoder is frozen, so that
the models that work on its latents can begin, while the decoder goes on alone at a falling rate.
Batches of 4 x 17 frames, in the decoder's second half 2 x 33, shared by the processes. The decoder
sees a little noise on its latents, so that it forgives the errors of the models before it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.io.files import atomic_write
from sanawm.vae import DecoderState, EncoderState, VAEConfig, VAEDecoder, VAEEncoder

from .data import load_clips, make_clip
from .optim import Average, Optimisers, average_gradients, rate_at, save_atomically
from .ranks import Rank
from .release import LATENT_CHANNELS

#: `config.json` of the VAE.
VAE_CONFIG: dict[str, Any] = {
    "_class_name": "AutoencoderKLCausalLTX2Video",
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": LATENT_CHANNELS,
    "block_out_channels": [32, 64],
    "down_block_types": ["LTX2VideoDownBlock3D"] * 2,
    "layers_per_block": [2, 1, 1],
    "spatio_temporal_scaling": [True, True],
    "downsample_type": ["temporal", "spatiotemporal"],
    "decoder_block_out_channels": [64, 64],
    "decoder_layers_per_block": [2, 1, 1],
    "decoder_spatio_temporal_scaling": [True, True],
    "decoder_inject_noise": [False, False, False],
    "upsample_residual": [True, True],
    "upsample_factor": [1, 1],
    "decoder_upsample_type": ["spatiotemporal", "temporal"],
    "timestep_conditioning": False,
    "patch_size": 4,
    "patch_size_t": 1,
    "resnet_norm_eps": 1e-6,
    "scaling_factor": 1.0,
    "encoder_causal": True,
    "decoder_causal": True,
    "encoder_spatial_padding_mode": "zeros",
    "decoder_spatial_padding_mode": "zeros",
    "spatial_compression_ratio": 8,
    "temporal_compression_ratio": 4,
}
MUON_RATE = 0.02
KL_WEIGHT = 2e-5
PACE_WEIGHT = 4.0  # of the decoder alone
LATENT_NOISE = 0.12  # at most, in standard deviations


class VAE(nn.Module):
    """Encoder and decoder side by side."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = VAEEncoder(config), VAEDecoder(config)

    def moments(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return raw mean `(B, C, T, H, W)` and log-variance `(B, 1, T, H, W)` of pixels."""
        raw = self.encoder.encoder(frames, EncoderState()).float()
        mean, logvar = raw.split((LATENT_CHANNELS, 1), dim=1)
        return mean, logvar

    def pixels(self, raw: Tensor) -> Tensor:
        """Return the pixels of raw latents, gradients and all."""
        pixels: Tensor = self.decoder.decoder(raw, DecoderState()).float()
        return pixels


def vae_config(folder: Path) -> VAEConfig:
    """Write `config.json` to `folder` and read it as the loader does."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    with atomic_write(path) as new:  # the other steps may be reading it
        new.write_text(json.dumps(VAE_CONFIG, indent=2) + "\n", encoding="utf-8")
    return VAEConfig.from_json(path)


def new_vae(work: Path) -> VAE:
    """Return an untrained VAE; its posterior starts narrow, or its noise would stall learning."""
    torch.manual_seed(3)
    vae = VAE(vae_config(work / "vae"))
    last = vae.encoder.encoder.conv_out.conv
    with torch.no_grad():
        last.weight[-1] *= 0.1
        last.bias[-1] = -5
    return vae


def pace_error(out: Tensor, target: Tensor) -> Tensor:
    """Return how far the mean change from frame to frame is from that of the target.

    Without it a latent's frames hurry at its start and rest at its end, which shows as a pulse.
    """
    paces = [x.diff(dim=2).abs().mean((1, 3, 4)) for x in (out, target)]
    return (paces[0] - paces[1]).abs().mean()


def loss_of(out: Tensor, target: Tensor, mean: Tensor, logvar: Tensor) -> Tensor:
    """Return the training loss on pixels in [-1, 1]."""
    d = out - target
    red, green, blue = d.unbind(1)
    chroma = (red - green).abs().mean() + (blue - (red + green) / 2).abs().mean()
    edges = d.diff(dim=-1).abs().mean() + d.diff(dim=-2).abs().mean()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    return (
        d.abs().mean()
        + 0.5 * edges
        + 0.75 * d.diff(dim=2).abs().mean()
        + 4 * d.square().mean()
        + 0.5 * chroma
        + KL_WEIGHT * kl
    )


def batch_at(clips: np.ndarray, step: int, *, count: int, frames: int, rank: int) -> Tensor:
    """Return pixels `(count, 3, frames, 64, 96)` of a step, mirrored and reversed at random."""
    rng = np.random.default_rng((11, step, rank))
    items = []
    for _ in range(count):
        clip, start = rng.integers(len(clips)), rng.integers(clips.shape[1] - frames + 1)
        item = clips[clip, start : start + frames]
        item = item[:, :, ::-1] if rng.random() < 0.5 else item
        items.append(item[::-1] if rng.random() < 0.2 else item)
    pixels = torch.from_numpy(np.stack(items).transpose(0, 4, 1, 2, 3).copy())
    return pixels.float() / 127.5 - 1


def train_vae(work: Path, *, steps: int, rank: Rank) -> None:
    """Train both halves up to step `steps`, from the last checkpoint if there is one."""
    _train(new_vae(work), work, work / "vae.pt", steps=steps, rank=rank, decoder_only=False)


def train_decoder(work: Path, *, steps: int, rank: Rank) -> None:
    """Train the decoder on for `steps` steps behind the averaged, frozen encoder."""
    vae = new_vae(work)
    _average_of(vae, work / "vae.pt").copy_to(vae)
    vae.encoder.requires_grad_(False)
    _train(vae, work, work / "decoder.pt", steps=steps, rank=rank, decoder_only=True)


def _train(vae: VAE, work: Path, path: Path, *, steps: int, rank: Rank, decoder_only: bool) -> None:
    clips = load_clips(work / "data")
    learned = [(n, p) for n, p in vae.named_parameters() if p.requires_grad]
    optimisers = Optimisers.of(learned, matrix=_is_matrix, rate=MUON_RATE)
    average, first = Average(vae), 0
    if path.is_file():
        state = torch.load(path)
        vae.load_state_dict(state["model"])
        if "optimisers" in state:
            optimisers.load_state_dict(state["optimisers"])
        average.weights, average.count, first = state["average"], state["step"], state["step"]
    for step in range(first, steps):
        total, frames = (2, 33) if decoder_only and step >= steps / 2 else (4, 17)
        seed = step + 100_000 * decoder_only
        pixels = batch_at(clips, seed, count=total // rank.count, frames=frames, rank=rank.number)
        loss = _loss_at(vae, pixels, seed=1000 * seed + rank.number, decoder_only=decoder_only)
        loss.backward()
        average_gradients(vae)
        share = rate_at(step, steps, decay_from=0.4) if decoder_only else rate_at(step, 10**9)
        optimisers.step(share)
        average.update(vae, 0.9975 if decoder_only else 0.995)
        rank.log(step, loss=loss.item(), every=25)
        done = step + 1
        if rank.number == 0 and (done % 100 == 0 or done == steps):
            save_atomically(
                {
                    "model": vae.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "average": average.weights,
                    "step": done,
                },
                path,
            )
        if rank.number == 0 and (done % 300 == 0 or done == steps):
            rank.log(step, psnr=evaluate(average, work, clips=4))


def _loss_at(vae: VAE, pixels: Tensor, *, seed: int, decoder_only: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.set_grad_enabled(not decoder_only):
            mean, logvar = vae.moments(pixels)
        z = mean + (0.5 * logvar).exp() * torch.randn(mean.shape, generator=generator)
        if decoder_only:
            size = torch.rand(len(mean), 1, 1, 1, 1, generator=generator) * LATENT_NOISE
            std = mean.std((0, 2, 3, 4), keepdim=True)
            z = z + size * std * torch.randn(mean.shape, generator=generator)
        out = vae.pixels(z)
    loss = loss_of(out, pixels, mean, logvar)
    return loss + PACE_WEIGHT * pace_error(out, pixels) if decoder_only else loss


def _is_matrix(name: str, p: Tensor) -> bool:
    return p.ndim == 5 and "er.conv_in" not in name and "er.conv_out" not in name


def load_vae(work: Path) -> VAE:
    """Return the averaged weights: the decoder trained on alone, if there is one."""
    vae, later = new_vae(work), work / "decoder.pt"
    _average_of(vae, later if later.is_file() else work / "vae.pt").copy_to(vae)
    return vae.eval()


def _average_of(vae: VAE, path: Path) -> Average:
    average = Average(vae)
    average.weights = torch.load(path)["average"]
    return average


@torch.no_grad()
def evaluate(average: Average, work: Path, *, clips: int, frames: int = 25) -> float:
    """Return the mean PSNR of held-out clips, averaged weights, posterior mean."""
    vae = new_vae(work)
    average.copy_to(vae)
    return float(np.mean([psnr_of_clip(vae, i, frames=frames) for i in range(clips)]))


@torch.no_grad()
def psnr_of_clip(vae: VAE, number: int, *, frames: int) -> float:
    """Return the PSNR in dB of the first frames of held-out clip `number`."""
    clip = torch.from_numpy(make_clip("test", number, frames=97).frames[:frames])
    pixels = clip.permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    with torch.autocast("cpu", torch.bfloat16):
        out = vae.pixels(vae.moments(pixels)[0])
    error = F.mse_loss(out.clamp(-1, 1), pixels).item()
    return 10 * math.log10(4 / error)
