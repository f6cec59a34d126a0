"""Write a random miniature of the released layout, from fixed seeds, with the text encoders.

    python -m configs.tiny.make FOLDER

The text encoders and the connectors of the preset are these; its other weights are trained, see
`train`. Here they are random, so the pictures are abstract. What is real is every format: the
transformer and the connectors are written by diffusers' own `save_pretrained` (so they hold the
audio tensors that a loader must ignore), the text encoder is a Gemma-3 with a tokenizer of its own,
the VAE has the released key names. Needs the test extra (diffusers).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

from sanawm.stage1.config import Stage1Config
from sanawm.stage1.model import Stage1Model
from sanawm.vae import VAEConfig, VAEDecoder, VAEEncoder

from .release import CAPTION_WIDTH, LATENT_CHANNELS, stage1_release
from .tiny_gemma import make_tiny_gemma
from .tiny_gemma2 import make_tiny_gemma2

TEXT_WIDTH = 48
TEXT_LAYERS = 4
LATENT_FRAMES = 25  # 97 frames: 8 blocks, so that the window is full from block 4 on
HEIGHT, WIDTH = 8, 12  # latents of 64 x 96 pixels

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
    "decoder_block_out_channels": [32, 32],
    "decoder_layers_per_block": [1, 1, 1],
    "decoder_spatio_temporal_scaling": [True, True],
    "decoder_inject_noise": [False, False, False],
    "upsample_residual": [True, True],
    "upsample_factor": [1, 1],
    "decoder_upsample_type": ["temporal", "spatiotemporal"],
    "timestep_conditioning": False,
    "patch_size": 4,
    "patch_size_t": 1,
    "resnet_norm_eps": 1e-6,
    "scaling_factor": 1.0,
    "encoder_causal": True,
    "decoder_causal": True,
    "encoder_spatial_padding_mode": "zeros",
    "decoder_spatial_padding_mode": "reflect",
    "spatial_compression_ratio": 8,
    "temporal_compression_ratio": 4,
}

#: The sections of a release YAML.
STAGE1_CONFIG = stage1_release(hidden_size=64, depth=4, softmax_every_n=4, flow_shift=8.0)


def make_refiner(folder: Path) -> None:
    """Write `transformer/` and `connectors/` through diffusers."""
    from diffusers import SanaWMLTX2RefinerTransformer3DModel
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

    torch.manual_seed(1)
    transformer = SanaWMLTX2RefinerTransformer3DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_attention_heads=4,
        attention_head_dim=16,
        cross_attention_dim=64,
        num_layers=4,
        caption_channels=TEXT_WIDTH,
        vae_scale_factors=(4, 8, 8),
        rope_type="split",
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=1,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=8,
    )
    _fill(transformer, 1.0)
    transformer.to(torch.bfloat16).save_pretrained(folder / "transformer")
    torch.manual_seed(2)
    connectors = LTX2TextConnectors(
        caption_channels=TEXT_WIDTH,
        text_proj_in_factor=TEXT_LAYERS + 1,
        video_connector_num_attention_heads=3,
        video_connector_attention_head_dim=16,
        video_connector_num_layers=2,
        video_connector_num_learnable_registers=32,
        audio_connector_num_attention_heads=3,
        audio_connector_attention_head_dim=16,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=32,
        rope_type="split",
    )
    _fill(connectors, 1.0)
    connectors.to(torch.bfloat16).save_pretrained(folder / "connectors")
    _set_class(folder / "transformer" / "config.json", "LTX2VideoTransformer3DModel")


def make_vae(folder: Path) -> None:
    """Write the VAE with the released key names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(VAE_CONFIG, indent=2) + "\n", encoding="utf-8")
    config = VAEConfig.from_json(path)
    torch.manual_seed(3)
    parts = (VAEEncoder(config), VAEDecoder(config))
    tensors: dict[str, Tensor] = {}
    for part in parts:
        _fill(part, 1.0)
        tensors |= part.state_dict()
    tensors["latents_mean"] = torch.zeros(LATENT_CHANNELS)
    tensors["latents_std"] = torch.ones(LATENT_CHANNELS)
    for name in [n for n in tensors if n.startswith("decoder.") and n.endswith("conv.weight")]:
        tensors[name] = _smooth(tensors[name], repeats=_cells(name))
    half = {k: v.to(torch.bfloat16).contiguous() for k, v in tensors.items()}
    save_file(half, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


def make_stage1(folder: Path) -> None:
    """Write stage 1 as the release has it: `model.pt` with a `generator`, names after `model.`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(STAGE1_CONFIG), encoding="utf-8")
    config = Stage1Config.from_mapping(STAGE1_CONFIG, where="tiny")
    torch.manual_seed(6)
    model = Stage1Model(config)
    _fill(model, 0.5)
    generator = {f"model.{k}": v.to(torch.bfloat16) for k, v in model.state_dict().items()}
    torch.save({"generator": generator}, folder / "model.pt")


def make_image(path: Path) -> None:
    """Write the first image: a gradient sky over ground, and a few blocks."""
    rows, _ = np.mgrid[0 : HEIGHT * 8, 0 : WIDTH * 8]
    sky = np.stack([150 + rows, 190 + rows // 2, np.full_like(rows, 240)], axis=-1)
    ground = np.stack([60 + rows, 120 + rows // 2, np.full_like(rows, 60)], axis=-1)
    picture = np.where((rows < HEIGHT * 4)[..., None], sky, ground)
    for left, top, colour in ((20, 18, (200, 60, 50)), (62, 24, (60, 80, 190))):
        picture[top:40, left : left + 14] = colour
    iio.imwrite(path, np.clip(picture, 0, 255).astype(np.uint8))


def make_inputs(folder: Path) -> None:
    """Write clean latents (smooth drifting fields) and the trajectory of their frames."""
    generator = torch.Generator().manual_seed(4)
    coarse = torch.randn(1, LATENT_CHANNELS, 7, 4, 8, generator=generator)
    size = (LATENT_FRAMES, HEIGHT, WIDTH * 2)
    field = nn.functional.interpolate(coarse, size=size, mode="trilinear", align_corners=True)
    frames = [field[:, :, t, :, t // 2 : t // 2 + WIDTH] for t in range(LATENT_FRAMES)]
    latents = torch.stack(frames, dim=2)
    latents = ((latents - latents.mean()) / latents.std()).contiguous()
    save_file(
        {"latents": latents.to(torch.float16)},
        folder / "latents.safetensors",
        metadata={"fps": "16"},  # one key: their order in the file is not fixed
    )
    poses = np.tile(np.eye(4, dtype=np.float32), (4 * (LATENT_FRAMES - 1) + 1, 1, 1))
    poses[:, 2, 3] = 0.025 * np.arange(len(poses), dtype=np.float32)
    np.save(folder / "camera.npy", poses)


def _cells(name: str) -> int:
    """Return how many neighbouring output cells a convolution writes as channels."""
    if name == "decoder.conv_out.conv.weight":
        return int(VAE_CONFIG["patch_size"]) ** 2
    if "upsamplers" not in name:
        return 1
    return 8 if "up_blocks.0" in name else 2  # spatiotemporal, then temporal


def _smooth(weight: Tensor, *, repeats: int) -> Tensor:
    """Make a random kernel draw soft shapes: bell-shaped in space, equal for all cells of a patch.

    Without it every cell would get an unrelated value, and the picture would be a mesh of pixels.
    """
    bell = torch.tensor([0.5, 1.0, 0.5])
    weight = weight.reshape(-1, repeats, *weight.shape[1:])
    weight = weight[:, :1].expand(-1, repeats, *weight.shape[2:]).flatten(0, 1)
    return weight * bell[:, None] * bell * 1.6


def _fill(module: nn.Module, gain: float) -> None:
    """Give matrices variance-keeping random weights, vectors small ones, norms values near 1."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if "norm" in name and p.ndim == 1:
                p.copy_(1 + 0.1 * torch.randn_like(p))
            elif p.ndim <= 1 or "table" in name:
                p.copy_(0.1 * torch.randn_like(p))
            else:
                p.copy_(gain * torch.randn_like(p) / p[0].numel() ** 0.5)


def _set_class(path: Path, name: str) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config["_class_name"] = name
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    """Write the whole set into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    make_refiner(folder / "refiner_diffusers")
    make_vae(folder / "ltx2_causal_vae")
    make_tiny_gemma(
        folder / "gemma3_12b", seed=5, hidden=TEXT_WIDTH, layers=TEXT_LAYERS, heads=3, head_dim=16
    )
    make_stage1(folder / "sana_dit")
    make_tiny_gemma2(folder / "gemma2", seed=7, hidden=CAPTION_WIDTH)
    make_inputs(folder)
    make_image(folder / "first.png")
    files = [f for f in folder.rglob("*") if f.is_file() and "make" not in f.parts]
    for file in files:
        file.chmod(0o644)
    print(f"{folder}: {sum(f.stat().st_size for f in files) / 1e6:.2f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m configs.tiny.make FOLDER")
    main(Path(sys.argv[1]))
