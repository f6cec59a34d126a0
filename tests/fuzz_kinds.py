"""The kinds of files that sanawm reads: samples of each, and the reader that a run would call."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sanawm.camera import ImageSize, load_trajectory, read_intrinsics
from sanawm.checkpoint import read_pt
from sanawm.config import resolve
from sanawm.io.image import fit_image, read_image
from sanawm.io.latents import LatentsSource, NoiseSource
from sanawm.io.reader import VideoReader
from sanawm.notes import Notes
from sanawm.shapes import LatentShape
from sanawm.states import read_saved
from sanawm.tensorfile import TensorFiles
from sanawm.text.embeddings import load_prompt_embeds
from sanawm.text.instruction import read_instruction
from sanawm.text.prompt import read_prompt_file

ROOT = Path(__file__).parents[1]
TINY = ROOT / "configs" / "tiny"
CASES = ROOT / "tests" / "cases"
FORMATS = ROOT / "tests" / "golden" / "stage1" / "formats"
SHAPE = LatentShape(1, 16, 4, 2, 3)


@dataclass(frozen=True)
class Sample:
    """A good file: its name, its bytes, and files that it needs `beside` it, by name."""

    name: str
    data: bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of file. `read` is what a run does with one before it computes anything."""

    name: str
    samples: Callable[[], list[Sample]]
    read: Callable[[Path], object]


def files(*paths: Path) -> list[Sample]:
    """Return files as samples under their own names."""
    return [Sample(path.name, path.read_bytes()) for path in paths]


def numpy_bytes(save: Callable[..., None], **arrays: Any) -> bytes:
    """Return what NumPy writes."""
    file = io.BytesIO()
    if save is np.save:
        save(file, next(iter(arrays.values())))
    else:
        save(file, **arrays)
    return file.getvalue()


def tensors(**named: torch.Tensor) -> bytes:
    """Return a safetensors file."""
    from safetensors.torch import save

    return save(named, {"fps": "16"})


def torch_bytes(content: object) -> bytes:
    """Return what torch writes."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


@cache
def clip() -> torch.Tensor:
    """Latents of a tiny clip."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


# Camera paths and lenses


@cache
def camera_samples() -> list[Sample]:
    camera_list = (FORMATS / "colmap_cameras.txt").read_bytes()
    found = []
    for path in sorted(p for p in FORMATS.iterdir() if p.stem not in ("expected", "resample")):
        if path.name == "colmap_cameras.txt":
            continue
        name = "images.txt" if path.name == "colmap_images.txt" else path.name
        beside = {"cameras.txt": camera_list} if name == "images.txt" else {}
        found.append(Sample(name, path.read_bytes(), beside))
    pictures = (FORMATS / "colmap_images.txt").read_bytes()
    found.append(Sample("cameras.txt", camera_list, {"images.txt": pictures}))
    for name in ("C02_camera_dtypes/f16.npy", "C02_camera_dtypes/c2w.npz"):
        found += files(CASES / name)
    return found


def read_camera(path: Path) -> None:
    if path.name == "cameras.txt":
        path = path.parent
    found = load_trajectory(path, image_size=ImageSize(64, 48), notes=Notes()).poses
    assert np.isfinite(found).all()
    assert np.abs(np.linalg.det(found[:, :3, :3].astype(float)) - 1).max() < 1e-4


@cache
def lens_samples() -> list[Sample]:
    folder = CASES / "C10_intrinsics"
    return [
        *files(*sorted(folder.glob("*.npy"))),
        Sample("lens.txt", b"# fx fy cx cy\n500 500 320 180\n"),
        Sample("lens.npz", numpy_bytes(np.savez, intrinsics=np.array([50.0, 50, 32, 24]))),
    ]


def read_lens(path: Path) -> None:
    lens = read_intrinsics(str(path), notes=Notes())
    assert np.isfinite(lens).all()


# Tensors


@cache
def latents_samples() -> list[Sample]:
    z = clip()
    return [
        Sample("z.safetensors", tensors(latents=z)),
        Sample("half.safetensors", tensors(latents=z.half(), more=torch.zeros(3))),
        Sample("z.npy", numpy_bytes(np.save, z=z.numpy())),
        Sample("z.npz", numpy_bytes(np.savez, latents=z.numpy())),
        Sample("packed.npz", numpy_bytes(np.savez_compressed, only=z.numpy())),
        Sample("z.pt", torch_bytes(z)),
        Sample("table.pt", torch_bytes({"latents": z})),
    ]


def read_latents(path: Path) -> None:
    source = LatentsSource.open(path, channels=SHAPE.channels)
    source.check(min(source.shape.frames, 64))


@cache
def noise_samples() -> list[Sample]:
    eps = clip()[:, :, 1:].contiguous()
    return [
        Sample("n.safetensors", tensors(eps=eps)),
        Sample("n.npy", numpy_bytes(np.save, eps=eps.numpy())),
        Sample("n.pt", torch_bytes({"eps": eps})),
    ]


def read_noise(path: Path) -> None:
    NoiseSource.open(path, shape=SHAPE, first=1).check(SHAPE.frames - 1)


@cache
def weight_samples() -> list[Sample]:
    small = {"a.weight": torch.ones(4, 4), "b.bias": torch.zeros(4, dtype=torch.bfloat16)}
    return [
        *files(CASES / "C14_safetensors_broken" / "ok_reference.safetensors"),
        Sample("w.safetensors", tensors(**small)),
        *files(*sorted(p for p in (CASES / "C14_safetensors_broken").glob("*.safetensors"))),
    ]


def read_weights(path: Path) -> None:
    found = TensorFiles(path)
    for name in found:
        found.read(name)
    found.fingerprint(component="x")


@cache
def shard_samples() -> list[Sample]:
    shards = {
        "m-1.safetensors": tensors(a=torch.ones(2)), "m-2.safetensors": tensors(b=torch.ones(2)),
    }  # fmt: skip
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    name = "m.safetensors.index.json"
    return [Sample(name, json.dumps(index).encode(), shards)]


@cache
def pt_samples() -> list[Sample]:
    small = {"generator": {"model.a": torch.ones(3)}, "step": 4}
    return [
        Sample("m.pt", torch_bytes(small)),
        Sample("old.pt", _legacy(small)),
        *files(*sorted((CASES / "C17_pickle_checkpoint").glob("*.pt"))),
    ]


def _legacy(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def read_stage1(path: Path) -> None:
    from sanawm.stage1.weights import read_generator

    read_pt(path)
    read_generator(path)


@cache
def embeds_samples() -> list[Sample]:
    named = {
        "prompt_embeds": torch.ones(1, 4, 8), "prompt_mask": torch.ones(1, 4, dtype=torch.int64),
    }  # fmt: skip
    both = named | {
        "stage1_caption": torch.ones(1, 1, 3, 8),
        "stage1_mask": torch.ones(1, 3, dtype=torch.int64),
    }
    return [Sample("e.safetensors", tensors(**named)), Sample("both.safetensors", tensors(**both))]


@cache
def state_samples() -> list[Sample]:
    import tempfile

    from sanawm.io.run_state import save_state

    state = {
        "block": 1,
        "recipe": {"seed": 42},
        "rows": [{"index": 0}, {"index": 1}],
        "stages": {"refine": {"cache": {"keys": torch.ones(2, 3)}, "position": 4}},
        "frames": torch.zeros(2, 4, 4, 3, dtype=torch.uint8),
        "first": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder, "o.state"), state)
        return files(Path(folder, "o.state"))


# Settings and texts


@cache
def toml_samples() -> list[Sample]:
    presets = files(*sorted((ROOT / "configs").glob("*.toml")))
    own = b'extends = "tiny"\n[refiner]\nsigmas = [0.9, 0.0]\n[video]\nfps = "24000/1001"\n'
    return [*presets, Sample("mine.toml", own)]


@cache
def yaml_samples() -> list[Sample]:
    text = (TINY / "sana_dit" / "config.yaml").read_bytes()
    return [Sample("config.yaml", text)]


def read_yaml(path: Path) -> None:
    from sanawm.stage1.config import Stage1Config

    read_instruction(path)
    Stage1Config.from_file(path, notes=Notes())


@cache
def json_samples() -> list[Sample]:
    refiner, vae = TINY / "refiner_diffusers", TINY / "ltx2_causal_vae"
    return [
        Sample("refiner/config.json", (refiner / "transformer/config.json").read_bytes()),
        Sample("connectors/config.json", (refiner / "connectors/config.json").read_bytes()),
        Sample("vae/config.json", (vae / "config.json").read_bytes()),
        Sample("gemma/config.json", (TINY / "gemma3_12b/config.json").read_bytes()),
    ]


def read_config_json(path: Path) -> None:
    from sanawm.refiner.config import RefinerConfig
    from sanawm.text.connectors import read_connectors_config
    from sanawm.text.gemma import read_gemma_config
    from sanawm.vae.config import VAEConfig

    match path.parent.name:
        case "refiner":
            RefinerConfig.from_json(path)
        case "connectors":
            read_connectors_config(path.parent)
        case "vae":
            VAEConfig.from_json(path)
        case "gemma":
            read_gemma_config(path.parent)


@cache
def tokenizer_samples() -> list[Sample]:
    folder = TINY / "gemma2"
    others = ("tokenizer_config.json", "special_tokens_map.json")
    beside = {name: (folder / name).read_bytes() for name in others}
    return [Sample("tokenizer.json", (folder / "tokenizer.json").read_bytes(), beside)]


def read_tokenizer(path: Path) -> None:
    from sanawm.text.tokenizer import load_tokenizer, tokenize

    tokenize(load_tokenizer(path.parent), "a red tower", max_length=16, notes=Notes())


@cache
def prompt_samples() -> list[Sample]:
    text = "A red tower, 港の朝 🚗\r\non green ground."
    return [
        Sample("p.txt", text.encode()),
        Sample("bom.txt", text.encode("utf-8-sig")),
        Sample("wide.txt", text.encode("utf-16")),
    ]


@cache
def manifest_samples() -> list[Sample]:
    jobs = b'{"defaults": {"num-frames": 25}}\n{"id": "a", "prompt": "x"}\n{"id": "b", "seed": 7}\n'
    table = b"id,prompt,seed\na,a red tower,7\nb,,8\n"
    tables = b'[defaults]\nnum-frames = 25\n[[job]]\nid = "a"\nprompt = "x"\n'
    return [Sample("m.jsonl", jobs), Sample("m.csv", table), Sample("m.toml", tables)]


def read_manifest(path: Path) -> None:
    from sanawm.batch.manifest import open_manifest

    for line in open_manifest(path).lines():
        assert line.error is None or line.error


# Pictures and videos


@cache
def image_samples() -> list[Sample]:
    return files(*sorted(p for p in (CASES / "C19_first_frame_images").glob("*.*") if p.suffix in
                         (".png", ".jpg", ".gif")), TINY / "first.png")  # fmt: skip


def read_picture(path: Path) -> None:
    notes = Notes()
    fitted = fit_image(
        read_image(path, notes=notes), width=64, height=32, notes=notes, name=str(path)
    )
    assert fitted.shape == (32, 64, 3)


@cache
def video_samples() -> list[Sample]:
    import tempfile
    from fractions import Fraction

    from sanawm.io.video import VideoSettings, VideoWriter

    frames = np.random.default_rng(0).integers(0, 255, (9, 32, 32, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.mp4")
        writer = VideoWriter(path, VideoSettings(32, 32, Fraction(16), metadata={"sanawm": "{}"}))
        writer.write(frames)
        growing = writer.part_path.read_bytes()
        writer.close()
        return [*files(path), Sample("growing.mp4", growing)]


def read_video(path: Path) -> None:
    reader = VideoReader(path, notes=Notes())
    for number, _ in enumerate(reader.frames()):
        if number > 40:
            break


ALL = (
    Kind("camera", camera_samples, read_camera),
    Kind("intrinsics", lens_samples, read_lens),
    Kind("latents", latents_samples, read_latents),
    Kind("noise", noise_samples, read_noise),
    Kind("weights", weight_samples, read_weights),
    Kind("shards", shard_samples, lambda path: read_weights(path.parent)),
    Kind("pt", pt_samples, read_stage1),
    Kind("embeddings", embeds_samples, load_prompt_embeds),
    Kind("state", state_samples, lambda path: read_saved(path, {"seed": 42})),
    Kind("toml", toml_samples, lambda path: resolve([str(path)])),
    Kind("yaml", yaml_samples, read_yaml),
    Kind("config.json", json_samples, read_config_json),
    Kind("tokenizer", tokenizer_samples, read_tokenizer),
    Kind("prompt", prompt_samples, read_prompt_file),
    Kind("manifest", manifest_samples, read_manifest),
    Kind("image", image_samples, read_picture),
    Kind("video", video_samples, read_video),
)
KINDS = {kind.name: kind for kind in ALL}
