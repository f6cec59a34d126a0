"""Write what was trained in the layout of the preset, bfloat16, ready to be copied over it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from .data import make_clip
from .degrade import degrade
from .latents import encode, statistics
from .paths import to_units
from .scenes import FOCAL, WIDTH
from .stage1_data import STAGE1_CONFIG
from .train_refiner import REFINER_CONFIG, WINDOW, load_refiner
from .train_stage1 import STEPS, load_stage1
from .train_vae import VAE_CONFIG, load_vae

PRESET = Path(__file__).parent.parent
#: The preset as a file beside the models: paths are relative to it.
TOML = """\
[model]
refiner = "refiner_diffusers"
vae = "ltx2_causal_vae"
text_encoder = "gemma3_12b"
{stage1}
[text]
max_length = 64

[refiner]
sink_size = {sink}
block_size = {block}
kv_max_frames = {kv_max}
sigmas = [{sigmas}]

[input]
{input}
prompt = "{prompt}"

[video]
fps = 16
height = 64
width = 96
max_pixels = 32768
num_frames = 97

[runtime]
seed = 42
threads = 1
"""
STAGE1_MODELS = """\
stage1 = "sana_dit"
stage1_config = "sana_dit/config.yaml"
stage1_text_encoder = "gemma2"

[stage1]
denoising_step_list = [{steps}]
num_frame_per_block = 3
num_cached_blocks = 2
sink_token = true
instruction = "sana_dit/config.yaml"
"""
LATENTS_INPUT = 'latents = "latents.safetensors"\ncamera = "camera.npy"'
IMAGE_INPUT = 'image = "first.png"\naction = "w-24,dw-24,w-24,aw-24"\nfov_x = {fov:.2f}'
#: Of the preset: one step, and lower than those of the tuning, to keep more of what stage 1 made.
SIGMAS = (0.07, 0.0)
#: The held-out clip of the first picture and of the packaged latents, and its length.
SHOWN, SHOWN_FRAMES = 26, 97


def export_vae(work: Path, folder: Path) -> None:
    """Write `ltx2_causal_vae/`: encoder, decoder and the statistics of the latents."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", VAE_CONFIG)
    vae, stats = load_vae(work), statistics(work)
    tensors = vae.encoder.state_dict() | vae.decoder.state_dict()
    tensors |= {"latents_mean": stats.mean, "latents_std": stats.std}
    _save(tensors, folder / "diffusion_pytorch_model.safetensors")


def export_refiner(work: Path, folder: Path) -> None:
    """Write `refiner_diffusers/`: the transformer through diffusers, the preset's connectors.

    Its audio half, which nothing here runs, is random and as small as it can be.
    """
    from diffusers import SanaWMLTX2RefinerTransformer3DModel

    torch.manual_seed(1)
    transformer = SanaWMLTX2RefinerTransformer3DModel(**REFINER_CONFIG)
    with torch.no_grad():
        for name, p in transformer.named_parameters():
            p.copy_(0.1 * torch.randn_like(p) + float("norm" in name))
    left = transformer.load_state_dict(load_refiner(work).state_dict(), strict=False)
    assert not left.unexpected_keys, left.unexpected_keys
    transformer.to(torch.bfloat16).save_pretrained(folder / "transformer")
    path = folder / "transformer" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    _write_json(path, config | {"_class_name": "LTX2VideoTransformer3DModel"})
    connectors = PRESET / "refiner_diffusers" / "connectors"
    shutil.copytree(connectors, folder / "connectors", dirs_exist_ok=True)


def export_stage1(work: Path, folder: Path) -> None:
    """Write `sana_dit/`: a release YAML and `model.pt`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(STAGE1_CONFIG), encoding="utf-8")
    weights = load_stage1(work).state_dict()
    generator = {f"model.{k}": v.to(torch.bfloat16) for k, v in weights.items()}
    torch.save({"generator": generator}, folder / "model.pt")


def export_inputs(work: Path, folder: Path) -> None:
    """Write the latents of a rendered held-out clip, made worse, with its image and its camera."""
    clip = make_clip("test", SHOWN, frames=SHOWN_FRAMES)
    stats, shape = statistics(work), (1, -1, 1, 1, 1)
    raw = encode(load_vae(work), clip.frames[None])
    truth = (raw - stats.mean.view(shape)) / stats.std.view(shape)
    given = degrade(truth, torch.Generator().manual_seed(6))
    save_file(
        {"latents": given.half().contiguous()},
        folder / "latents.safetensors",
        metadata={"fps": "16"},
    )
    iio.imwrite(folder / "first.png", clip.frames[0])
    np.save(folder / "camera.npy", to_units(clip.poses))
    (folder / "prompt.txt").write_text(clip.scene.caption + "\n", encoding="utf-8")


def export(work: Path, folder: Path) -> None:
    """Write all parts that have been trained, with the preset's own frozen text encoders."""
    folder.mkdir(parents=True, exist_ok=True)
    export_vae(work, folder / "ltx2_causal_vae")
    if (work / "refiner.pt").is_file():
        export_refiner(work, folder / "refiner_diffusers")
    if (work / "stage1.pt").is_file():
        export_stage1(work, folder / "sana_dit")
    export_inputs(work, folder)
    write_preset(folder)
    for name in ("gemma3_12b", "gemma2"):
        if (PRESET / name).is_dir():
            shutil.copytree(PRESET / name, folder / name, dirs_exist_ok=True)
    files = [f for f in folder.rglob("*") if f.is_file()]
    for file in files:
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in files)
    print(f"{folder}: {size / 1e6:.2f} MB")


def write_preset(folder: Path) -> None:
    """Write `tiny.toml`: it begins with latents, or with the image once there is a stage 1."""
    stage1 = (folder / "sana_dit").is_dir()
    fov = 2 * math.degrees(math.atan(WIDTH / 2 / FOCAL))
    steps = ", ".join(f"{t:g}" for t in STEPS)
    text = TOML.format(
        stage1=STAGE1_MODELS.format(steps=steps) if stage1 else "",
        **WINDOW._asdict(),
        sigmas=", ".join(map(str, SIGMAS)),
        input=IMAGE_INPUT.format(fov=fov) if stage1 else LATENTS_INPUT,
        prompt=(folder / "prompt.txt").read_text(encoding="utf-8").strip(),
    )
    (folder / "tiny.toml").write_text(text, encoding="utf-8")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    half = {k: v.to(torch.bfloat16).contiguous() for k, v in tensors.items()}
    save_file(half, path, metadata={"format": "pt"})


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
