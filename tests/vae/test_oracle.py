"""Against diffusers 0.42.1 `AutoencoderKLLTX2Video`, in a layout without golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sanawm.shapes import VAERatios
from sanawm.vae import EncoderState, load_decoder, load_encoder

from .cases import DECODE_ATOL, ENCODE_ATOL, decode_chunks, encode_chunks, worst

pytestmark = pytest.mark.oracle

#: Ratios 4 and 8: what a tiny VAE for short clips uses. Two kinds of width change in the decoder.
TINY: dict[str, Any] = {
    "latent_channels": 4,
    "block_out_channels": (8, 16),
    "down_block_types": ("LTX2VideoDownBlock3D",) * 2,
    "layers_per_block": (1, 2, 1),
    "spatio_temporal_scaling": True,
    "downsample_type": ("temporal", "spatiotemporal"),
    "decoder_block_out_channels": (8, 16),
    "decoder_layers_per_block": (2, 1, 1),
    "decoder_spatio_temporal_scaling": True,
    "decoder_inject_noise": False,
    "upsample_type": ("spatiotemporal", "temporal"),
    "upsample_residual": (False, True),
    "upsample_factor": (1, 2),
    "patch_size": 4,
    "scaling_factor": 0.5,
}
#: A block without scaling on each side, other padding modes.
PLAIN_BLOCKS = TINY | {
    "block_out_channels": (4, 8, 16),
    "down_block_types": ("LTX2VideoDownBlock3D",) * 3,
    "layers_per_block": (1, 1, 1, 1),
    "spatio_temporal_scaling": (False, True, True),
    "downsample_type": ("spatial", "temporal", "spatiotemporal"),
    "decoder_block_out_channels": (6, 8, 16),
    "decoder_layers_per_block": (1, 1, 1, 1),
    "decoder_spatio_temporal_scaling": (False, True, True),
    "upsample_type": ("spatiotemporal", "temporal", "spatial"),
    "upsample_residual": (False, False, True),
    "upsample_factor": (1, 1, 2),
    "encoder_spatial_padding_mode": "replicate",
    "decoder_spatial_padding_mode": "circular",
}


def make_oracle(settings: dict[str, Any], folder: Path) -> Any:
    """Return a diffusers VAE with random weights and statistics, saved to `folder`."""
    from diffusers import AutoencoderKLLTX2Video

    torch.manual_seed(5)
    vae = AutoencoderKLLTX2Video(**settings).eval()
    for parameter in vae.parameters():
        parameter.data = torch.randn_like(parameter) * (0.12 if parameter.ndim > 1 else 0.3)
    vae.latents_mean.normal_()
    vae.latents_std.uniform_(0.5, 2)
    vae.save_pretrained(folder)
    return vae


@pytest.mark.parametrize("settings", [TINY, PLAIN_BLOCKS], ids=["tiny", "plain_blocks"])
def test_tiny_layouts(settings: dict[str, Any], tmp_path: Path) -> None:
    oracle = make_oracle(settings, tmp_path)
    encoder = load_encoder(tmp_path, device="cpu", dtype=torch.float32)
    decoder = load_decoder(tmp_path, device="cpu", dtype=torch.float32)
    assert encoder.config.ratios == VAERatios(time=4, space=8)
    frames = torch.rand(2, 3, 13, 16, 24) * 2 - 1
    latents = torch.randn(1, 4, 6, 2, 3)
    statistics = [t.view(1, -1, 1, 1, 1) for t in (oracle.latents_mean, oracle.latents_std)]
    with torch.no_grad():
        mode = oracle.encode(frames, causal=True).latent_dist.mode()
        raw = latents * statistics[1] / 0.5 + statistics[0]
        pixels = oracle.decode(raw, causal=True).sample

    assert pixels.shape == (1, 3, 21, 16, 24)
    assert pixels.std() > 0.1
    assert worst(encoder.moments(frames, EncoderState()).mean, mode) < ENCODE_ATOL
    expected = (mode - statistics[0]) * 0.5 / statistics[1]
    for sizes in ((13,), (1, 4, 4, 4), (2, 3, 7, 1), (1,) * 13):
        assert worst(encode_chunks(encoder, frames, sizes), expected) < ENCODE_ATOL
    for sizes in ((6,), (1, 3, 2), (4, 2), (1,) * 6):
        chunks = decode_chunks(decoder, latents, sizes)
        assert worst(torch.cat(chunks, 2), pixels) < DECODE_ATOL
