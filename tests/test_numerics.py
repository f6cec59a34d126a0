"""NaN and infinity in inputs, weights and computed blocks; flat frames; luma in the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.config import resolve
from sanawm.refiner import stream
from sanawm.stage1.model import Stage1Model
from sanawm.vae.decoder import VAEDecoder
from sanawm.vae.encoder import VAEEncoder

from .cli.command import ROOT, sanawm
from .tiny_runs import decode, report_of

TINY = ROOT / "configs" / "tiny"
BLOCKS = 4
SIZE = ("--height", 32, "--width", 48, "--num-frames", 12 * BLOCKS + 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, and finished runs from each kind of source."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sides = ("--save-prompt-embeds", "e.safetensors", "--save-noise", "n.safetensors")
        done = sanawm("refine", *SIZE, "-o", "image.mp4", "--save-stage1", "z.safetensors", *sides)
        assert done.code == 0, done.err
        for kind in ("latents", "video"):
            assert sanawm(*run(kind, f"{kind}.mp4")).code == 0
    return folder


SOURCES = {
    "image": SIZE,
    "latents": ("--latents", "z.safetensors"),
    "video": ("--video", "image.mp4", "--num-frames", 12 * (BLOCKS - 1) + 1),
}


def run(kind: str, name: str, *more: object) -> tuple[object, ...]:
    """Return a run from a kind of source."""
    return ("refine", *SOURCES[kind], "--prompt-embeds", "e.safetensors", "-o", name, *more)


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def save_as(path: Path, latents: Tensor, key: str = "latents") -> None:
    """Write latents in the format that the ending names."""
    if path.suffix == ".safetensors":
        save_file({key: latents}, path)
    elif path.suffix == ".pt":
        torch.save(latents, path)
    elif path.suffix == ".npy":
        np.save(path, latents.numpy())
    else:
        np.savez(path, **{key: latents.numpy()})


# Inputs


@pytest.mark.parametrize("ending", [".safetensors", ".npy", ".npz", ".pt"])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_in_latents(here: Path, ending: str, value: float, word: str) -> None:
    """Found before a model is loaded, wherever in the clip it is."""
    latents = load_file("z.safetensors")["latents"]
    latents[0, 5, 11, 2, 3] = value
    save_as(Path(f"bad{ending}"), latents)
    done = sanawm("refine", "--latents", f"bad{ending}", "-o", "o.mp4", "-v")
    assert done.code == 2
    assert f"error: bad{ending}: {word} in the latents, frame 11, channel 5 (row 2, col" in done.err
    assert "load" not in done.err
    assert not list(here.glob("o.*"))
    dry = sanawm("refine", "--latents", f"bad{ending}", "-o", "o.mp4", "--dry-run")
    assert (dry.code, "frame 11, channel 5" in dry.err) == (2, True)
    done = sanawm("decode", f"bad{ending}", "-o", "o.mp4")
    assert (done.code, "frame 11, channel 5" in done.err) == (2, True)


def test_in_noise_and_embeddings(here: Path) -> None:
    noise = load_file("n.safetensors")
    noise["eps"][0, 0, 7, 0, 0] = np.inf
    save_file(noise, "bad.safetensors")
    done = sanawm(*run("latents", "o.mp4", "--noise", "bad.safetensors"))
    assert done.code == 2
    assert "bad.safetensors: infinity in the noise, frame 7, channel 0" in done.err
    embeds = load_file("e.safetensors")
    embeds["prompt_embeds"][0, 3, 3] = np.nan
    save_file(embeds, "bad.safetensors")
    done = sanawm(
        *run("latents", "o.mp4")[:-4], "--prompt-embeds", "bad.safetensors", "-o", "o.mp4"
    )
    assert (done.code, "prompt_embeds holds NaN or infinity" in done.err) == (2, True)
    assert not list(here.glob("o.*"))


# Weights


def spoil(file: Path, part: str, change: Callable[[Tensor], Tensor]) -> str:
    """Change the first weight of a file whose name starts with `part`; return that name."""
    if file.suffix == ".pt":
        content = torch.load(file, weights_only=True)
        tensors = content.get("generator", content)
    else:
        tensors = content = load_file(file)
    name = next(n for n in sorted(tensors) if n.startswith(part))
    tensors[name] = change(tensors[name].clone())
    if file.suffix == ".pt":
        torch.save(content, file)
    else:
        save_file(content, file)
    return name


def with_nan(tensor: Tensor) -> Tensor:
    tensor.view(-1)[0] = torch.nan
    return tensor


WEIGHTS = {
    "refiner": ("refiner_diffusers", "transformer/diffusion_pytorch_model.safetensors", "proj_out"),
    "vae": ("ltx2_causal_vae", "diffusion_pytorch_model.safetensors", "decoder.conv_in"),
    "stage1": ("sana_dit", "model.pt", ""),
    "text_encoder": ("gemma3_12b", "model-00001-of-00002.safetensors", ""),
}


@pytest.mark.parametrize("component", WEIGHTS)
def test_in_weights(here: Path, component: str) -> None:
    folder, file, part = WEIGHTS[component]
    shutil.copytree(TINY / folder, folder)
    name = spoil(Path(folder, file), part, with_nan)
    prompt = ("--prompt", "a new prompt") if component == "text_encoder" else ()
    command = run("image", "o.mp4", "--set", f"model.{component}={folder}", *prompt)
    if prompt:
        command = tuple(w for w in command if w not in ("--prompt-embeds", "e.safetensors"))
    done = sanawm(*command)
    assert done.code == 3, done.err
    assert name.rpartition(".")[0].rpartition(".")[2] in done.err
    assert "holds NaN or infinity" in done.err
    assert not list(here.glob("o.*"))


# Computed blocks


def spoil_call(
    number: int, real: Callable[..., object], spoilt: Callable[[object], object]
) -> Callable[..., object]:
    """Return `real` with the result of its call `number` (from 0) spoilt.

    Calls on the meta device do not count: an estimate of memory makes some.
    """
    calls = 0

    def call(*args: object, **kwargs: object) -> object:
        nonlocal calls
        result = real(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_meta:
            return result
        calls += 1
        return spoilt(result) if calls == number + 1 else result

    return call


def all_nan(tensor: object) -> object:
    assert isinstance(tensor, Tensor)
    return torch.full_like(tensor, torch.nan)


STEPS = len(resolve(["tiny"]).settings.refiner.sigmas) - 1
FAULTS = {
    "stage1": ("image", Stage1Model, "forward", 5 * 2, "stage 1: chunk 2 holds NaN or infinity"),
    "refiner": (
        "latents",
        stream,
        "euler_update",
        STEPS * 2,
        "refiner: block 2 (latent frames 7..9) came out with NaN or infinity",
    ),
    "decoder": ("latents", VAEDecoder, "decode", 2, "block 2: VAE decoder: "),
    "encoder": ("video", VAEEncoder, "encode", 3, "block 2: VAE encoder: "),
}


@pytest.mark.parametrize("stage", FAULTS)
def test_in_a_computed_block(here: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """The stage and the block are named, the two blocks before are kept, and a resume goes on."""
    kind, owner, name, call, words = FAULTS[stage]

    def spoilt(result: object) -> object:
        if stage == "stage1":
            return result._replace(velocity=all_nan(result.velocity))  # type: ignore[attr-defined]
        return all_nan(result)

    command = run(kind, "o.mp4", "--save-latents", "r.safetensors", "--frames-dir", "f")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, spoil_call(call, getattr(owner, name), spoilt))
        done = sanawm(*command)
    assert done.code == 1, done.err
    assert f"error: {words}" in done.err
    assert "Traceback" not in done.err
    whole = decode(here / f"{kind}.mp4")
    assert decode(here / "o.part.mp4").frames == whole.frames[:24]
    assert len(list(Path("f").iterdir())) == 24
    assert not Path("o.mp4").exists()
    report = report_of(here / "o.mp4")
    assert report["status"] == "failed"
    assert report["error"]["type"] == "NumericsError"
    assert len(report["blocks"]) == 2
    assert Path("o.state").exists()
    done = sanawm(*command, "--resume")
    assert done.code == 0, done.err
    assert decode(here / "o.mp4") == whole


def test_weights_that_overflow(here: Path) -> None:
    """A real overflow: the weights are finite, what they give is not."""
    shutil.copytree(TINY / "refiner_diffusers", "model")
    file = Path("model/transformer/diffusion_pytorch_model.safetensors")
    spoil(file, "proj_out.weight", lambda t: t.float() * 1e38)
    done = sanawm(*run("latents", "o.mp4", "--set", "model.refiner=model"))
    assert done.code == 1, done.err
    assert "error: refiner: block 0 (latent frames 1..3) came out with NaN or infinity" in done.err
    assert "fix: check the clean latents and the weights, or use --precision fp32" in done.err
    assert not list(here.glob("o.*"))


def test_flat_frames_are_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a decoder whose carried state was lost gives them: right at first, then uniform grey."""

    def flat(pixels: object) -> object:
        assert isinstance(pixels, Tensor)
        return torch.zeros_like(pixels)

    with monkeypatch.context() as patch:
        patch.setattr(VAEDecoder, "decode", spoil_call(2, VAEDecoder.decode, flat))
        done = sanawm(*run("latents", "o.mp4"))
    assert done.code == 0
    words = "block 2: the decoded frames are flat while their latents are not"
    assert done.err.count(f"warning: {words}") == 1
    report = report_of(here / "o.mp4")
    assert [w for w in report["warnings"] if words in w]
    assert [row["luma_std"] < 1 for row in report["blocks"]] == [False, False, True, False]
    assert not [w for w in report_of(here / "latents.mp4")["warnings"] if "flat" in w]


def test_luma_of_every_block_is_in_the_report(here: Path) -> None:
    assert sanawm(*run("latents", "o.mp4", "--frames-dir", "f")).code == 0
    frames = np.stack([iio.imread(p) for p in sorted(Path("f").iterdir())]).astype(np.float64)
    luma = frames[:, ::2, ::2] @ [0.2126, 0.7152, 0.0722]  # every other pixel is looked at
    rows = report_of(here / "o.mp4")["blocks"]
    assert len(rows) == BLOCKS
    for k, row in enumerate(rows):
        block = luma[12 * k : 12 * (k + 1)]
        assert row["luma_mean"] == pytest.approx(block.mean(), abs=0.01)
        assert row["luma_std"] == pytest.approx(block.std(), abs=0.01)
