"""Train the VAE "P4": 4 frames, 8 x 8 pixels and 3 colours become 16 numbers.

Batches of 4 x 17 frames, in the last third 2 x 33, shared by the processes. From half way on the
latents get a little noise, so that the decoder forgives the errors of the models before it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanawm.vae import DecoderState, EncoderState, VAEConfig, VAEDecoder, VAEEncoder

from .data import load_clips, make_clip
from .optim import Average, Optimisers, average_gradients, rate_at, save_atomically
from .ranks import Rank

LATENT_CHANNELS = 16
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
LATENT_NOISE = 0.15  # at most, in standard deviations


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
    path.write_text(json.dumps(VAE_CONFIG, indent=2) + "\n", encoding="utf-8")
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
    """Train up to step `steps`, from the last checkpoint if there is one."""
    clips = load_clips(work / "data")
    vae = new_vae(work)
    optimisers = Optimisers.of(vae.named_parameters(), matrix=_is_matrix, rate=MUON_RATE)
    average, first, path = Average(vae), 0, work / "vae.pt"
    if path.is_file():
        state = torch.load(path)
        vae.load_state_dict(state["model"])
        optimisers.load_state_dict(state["optimisers"])
        average.weights, average.count, first = state["average"], state["step"], state["step"]
    for step in range(first, steps):
        late = step >= 0.67 * steps
        total, frames = (2, 33) if late else (4, 17)
        pixels = batch_at(clips, step, count=total // rank.count, frames=frames, rank=rank.number)
        noisy = step >= 0.5 * steps
        loss = _loss_at(vae, pixels, step=step, rank=rank, noise=LATENT_NOISE if noisy else 0.0)
        loss.backward()
        average_gradients(vae)
        optimisers.step(rate_at(step, steps))
        average.update(vae, 0.9975 if noisy else 0.995)
        rank.log(step, loss=loss.item(), every=25)
        done = step + 1
        if rank.number == 0 and (done % 200 == 0 or done == steps):
            save_atomically(
                {
                    "model": vae.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "average": average.weights,
                    "step": done,
                },
                path,
            )
            rank.log(step, psnr=evaluate(average, work, clips=4))


def _loss_at(vae: VAE, pixels: Tensor, *, step: int, rank: Rank, noise: float) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank.number)
    with torch.autocast("cpu", torch.bfloat16):
        mean, logvar = vae.moments(pixels)
        eps = torch.randn(mean.shape, generator=generator)
        z = mean + (0.5 * logvar).exp() * eps
        if noise:
            size = torch.rand(len(mean), 1, 1, 1, 1, generator=generator) * noise
            std = mean.detach().std((0, 2, 3, 4), keepdim=True)
            z = z + size * std * torch.randn(mean.shape, generator=generator)
        out = vae.pixels(z)
    return loss_of(out, pixels, mean, logvar)


def _is_matrix(name: str, p: Tensor) -> bool:
    return p.ndim == 5 and "er.conv_in" not in name and "er.conv_out" not in name


def load_vae(work: Path) -> VAE:
    """Return the averaged weights of the last checkpoint."""
    vae = new_vae(work)
    state = torch.load(work / "vae.pt")
    vae.load_state_dict(state["model"] | {})
    average = Average(vae)
    average.weights = state["average"]
    average.copy_to(vae)
    return vae.eval()


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
