"""Everything that is refused: its exit code, words that help, no traceback, nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.job import RefineJob
from sanawm.vae.decoder import VAEDecoder
from sanawm.vae.state import DecoderState

from .command import (
    CHANNELS,
    SPACE,
    STRIDE,
    TINY,
    Done,
    pixel_frames,
    refined,
    report_of,
    sanawm,
    video_frames,
)
from .conftest import LATENTS, Run, make_latents, save_latents

FRAMES = pixel_frames(LATENTS[0])
WIDTH, HEIGHT = LATENTS[2] * SPACE, LATENTS[1] * SPACE
WEIGHTS = "refiner_diffusers/transformer/diffusion_pytorch_model.safetensors"


def listing(folder: Path) -> list[str]:
    """Return every path below a folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(folder: Path, code: int, *words: str, arguments: tuple[object, ...]) -> Done:
    """Run the command; check that it fails with `code`, says `words`, and leaves no file."""
    before = listing(folder)
    done = sanawm(*arguments)
    assert done.code == code, done.err
    assert done.out == ""
    for word in words:
        assert word in done.error
    assert "Traceback" not in done.err
    assert len(done.error.splitlines()) <= 3
    assert "\n  fix: " in done.error, "it does not say what to do"
    assert listing(folder) == before
    return done


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        # Usage
        (
            ("--num-frames", 5),
            2,
            ("--num-frames: 5 frames", "less than one block", f"at least {STRIDE + 1}"),
        ),
        (("--num-frames", 0), 2, ("--num-frames 0", "at least 1")),
        (("--num-frames", -3), 2, ("--num-frames -3",)),
        (("--num-frames", "many"), 2, ("--num-frames many: expected a whole number", "fix: use")),
        (("--height", HEIGHT + 1), 2, (f"--height {HEIGHT + 1}", f"decode to {HEIGHT}")),
        (("--width", WIDTH * 2), 2, (f"--width {WIDTH * 2}", f"decode to {WIDTH}")),
        (("--sink-size", -1), 2, ("sink size -1 is negative", "--sink-size 0")),
        (("--sink-size", 7), 2, (f"clip: {LATENTS[0]}, taken by the sink: 7", "at least 8")),
        (("--sink-size", 11), 2, ("window of 11", "larger than the sink (11)")),
        (("--refiner-block-size", 0), 2, ("block size 0", "1 or more")),
        (("--refiner-kv-max-frames", 1), 2, ("window of 1", "--refiner-kv-max-frames 2")),
        (("--sigmas", "a,b"), 2, ("--sigmas 'a,b'", "numbers separated by commas", "fix: write")),
        (("--sigmas", "0.9,0.5"), 2, ("must end in 0",)),
        (("--sigmas", "0.5,0.9,0"), 2, ("sigmas", "descending")),
        (("--fps", 0), 2, ("frame rate 0",)),
        (("--fps", "nan"), 2, ("frame rate",)),
        (("--output-fps", "fast"), 2, ("frame rate 'fast' is no number",)),
        (("--seed", -1), 2, ("--seed -1: expected a whole number from 0 to 9223372036854775807",)),
        (("--seed", 2**64), 2, ("--seed 18446744073709551616", "from 0 to", "use --seed 42")),
        (("--crf", 52), 2, ("--crf 52: expected a whole number from 0 to 51", "use --crf 18, the")),
        (("--encoder-preset", "nosuch"), 2, ("'nosuch'", "libx264", "medium")),
        (("--threads", 0), 2, ("--threads 0: expected a whole number, 1 or more",)),
        (("--precision", "fp64"), 2, ("--precision fp64: expected auto, fp32, bf16 or fp16",)),
        (("--refiner-mode", "fast"), 2, ("--refiner-mode fast: expected chunked or single-shot",)),
        (("--device", "gpu"), 2, ("device 'gpu' is unknown", "cuda:N")),
        (("--prompt", ""), 2, ("--prompt", "empty")),
        (("--prompt", " \n"), 2, ("--prompt", "empty")),
        (("--prompt", "a", "--prompt-file", "b"), 2, ("--prompt", "exclude each other")),
        (("--video", "b.mp4"), 2, ("--video", "exclude each other")),
        (("--set", "video.crff=3"), 2, ("--set video.crff", "did you mean 'video.crf'")),
        (("-c", "tinny"), 2, ("'tinny' is no preset", "did you mean 'tiny'")),
        (("--nosuch",), 2, ("--nosuch", "sanawm refine --help")),
        (("--no-video",), 2, ("would write nothing", "--save-latents")),
        (("--save-latents", "z.npy"), 2, ("'.npy'", ".safetensors")),
        (("--save-stage1", "s.safetensors"), 2, ("--save-stage1", "--image")),
        (("--preview", "o.mp4"), 2, ("o.mp4 is named twice", "video", "preview")),
        (("--frames-dir", "o.mp4"), 2, ("o.mp4 is named twice", "frames folder")),
        (("--name", "x"), 2, ("--name goes with --output-dir",)),
        (("--set", "input.action=", "--save-camera", "c.npy"), 2, ("--save-camera", "no camera")),
        # Not found
        (("--prompt-file", "no.txt"), 3, ("no.txt", "no such prompt file")),
        (("--prompt-embeds", "no.safetensors"), 3, ("--prompt-embeds", "no such file")),
        (("--noise", "no.safetensors"), 3, ("no.safetensors", "no such file")),
        (("--camera", "no.npy"), 3, ("no.npy", "no such file")),
        (("-c", "no.toml"), 3, ("no.toml", "no such file")),
        (("--set", "model.vae=/nonexistent"), 3, ("vae", "/nonexistent", "--set")),
        (("--set", "model.text_encoder=/nonexistent"), 3, ("text_encoder", "/nonexistent")),
        (("--set", f"model.refiner={TINY}/ltx2_causal_vae"), 3, ("config.json", "transformer/")),
        (
            ("--set", f"model.vae={TINY}/refiner_diffusers/transformer"),
            3,
            ("config.json", "LTX2VideoTransformer3DModel", "VAE"),
        ),
        (
            ("--set", f"model.text_encoder={TINY}/ltx2_causal_vae", "--no-prompt-store"),
            3,
            ("config.json", "gemma3"),
        ),
        (("-c", "streaming-720p", "--prompt", "x"), 3, ("hf://", "not in the local cache")),
        # This machine
        (("--encoder", "nosuch"), 4, ("'nosuch' is not supported", "libx264")),
        (("--device", "cuda:77"), 4, ("cuda:77", "CUDA devices", "--device cpu")),
        # The output
        (("-o", "no/o.mp4"), 5, ("the folder no does not exist", "mkdir -p no")),
        (("--preview", "no/p.png"), 5, ("the folder no does not exist", "mkdir -p no")),
        (("--frames-dir", "no/f"), 5, ("the folder no does not exist", "mkdir -p no")),
    ],
    ids=lambda v: " ".join(map(str, v)) if isinstance(v, tuple) else str(v),
)
def test_refused(
    in_tmp: Path, latents: Path, options: tuple[object, ...], code: int, words: tuple[str, ...]
) -> None:
    output = () if "-o" in options else ("-o", "o.mp4")
    refused(in_tmp, code, *words, arguments=("refine", "--latents", latents, *output, *options))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("no output", "-o FILE.mp4")),
        (("-o", "o.mkv"), ("'.mkv'", "use o.mp4")),
        (("-o", "x" * 250 + ".mp4"), ("too long", "255")),
        (("--output-dir", "."), ("--output-dir needs --name",)),
        (("--output-dir", ".", "--name", "../x"), ("path separator",)),
        (("--output-dir", ".", "--name", ".."), ("is a folder",)),
        (("--output-dir", ".", "--name", "ü" * 124), ("too long", "bytes")),
    ],
    ids=str,
)
def test_output_names_are_refused(
    in_tmp: Path, latents: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(in_tmp, 2, *words, arguments=("refine", "--latents", latents, *arguments))


def test_no_prompt_is_refused(in_tmp: Path, latents: Path) -> None:
    arguments = ("refine", "-c", "streaming-720p", "--latents", latents, "-o", "o.mp4")
    refused(in_tmp, 2, "no prompt", "--prompt-file", arguments=arguments)


# Malformed inputs


@pytest.mark.parametrize("frame", [0, 5])
def test_nan_in_the_latents_leaves_nothing(in_tmp: Path, frame: int) -> None:
    z = make_latents(*LATENTS)
    z[0, 3, frame, 2, 1] = float("nan")
    save_latents(in_tmp / "z.safetensors", z)
    refused(
        in_tmp, 2, "z.safetensors", f"frame {frame}, channel 3",
        arguments=(
            "refine", "--latents", "z.safetensors", "-o", "o.mp4", "--save-latents",
            "r.safetensors", "--frames-dir", "f", "--preview", "p.png",
        ),
    )  # fmt: skip


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the decoder give NaN from the second block on; `undo` repairs it."""
    decode = VAEDecoder.decode

    def broken(self: VAEDecoder, latents: Tensor, state: DecoderState) -> Tensor:
        first = state.taken == 0
        pixels = decode(self, latents, state)
        return pixels if first else pixels * float("nan")

    monkeypatch.setattr(VAEDecoder, "decode", broken)
    return monkeypatch


def test_a_failure_in_a_later_block_keeps_the_blocks_before(
    in_tmp: Path, latents: Path, failing: pytest.MonkeyPatch
) -> None:
    arguments = ("refine", "--latents", latents, "-o", "o.mp4", "--state", "none")
    done = sanawm(*arguments)
    assert (done.code, done.out) == (1, "")
    assert "block 1" in done.error
    assert "NaN" in done.error
    assert listing(in_tmp) == ["o.json", "o.part.mp4"]
    report = report_of(Path("o.mp4"))
    assert report["status"] == "failed"
    assert report["error"]["type"] == "NumericsError"
    assert report["frames"]["written"] == len(video_frames(Path("o.part.mp4"))) == STRIDE
    # The next try replaces what the failed one left behind.
    failing.undo()
    assert sanawm(*arguments).code == 0
    assert listing(in_tmp) == ["o.json", "o.mp4"]
    assert report_of(Path("o.mp4"))["status"] == "done"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("junk.safetensors", b"<html>moved</html>", ("junk.safetensors",)),
        ("empty.safetensors", b"", ("empty.safetensors",)),
        ("z.mp4", b"", ("'.mp4'", ".safetensors")),
    ],
)
def test_files_that_are_no_latents(
    in_tmp: Path, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    Path(name).write_bytes(content)
    refused(in_tmp, 2, *words, arguments=("refine", "--latents", name, "-o", "o.mp4"))


def test_latents_of_another_layout(in_tmp: Path, latents: Path) -> None:
    z = refined(latents)
    save_latents(in_tmp / "t.safetensors", z.transpose(1, 2))
    save_latents(in_tmp / "c.safetensors", z[:, : CHANNELS // 2])
    save_latents(in_tmp / "four.safetensors", z[0])
    save_latents(in_tmp / "two.safetensors", torch.cat((z, z)))
    save_latents(in_tmp / "one.safetensors", z[:, :, :1])
    save_file({"z": z}, in_tmp / "name.safetensors")
    for name, words in {
        "t": ("was the axis order changed?", "latent frames"),
        "c": (f"expected {CHANNELS} channels",),
        "four": ("five axes", "batch axis"),
        "two": ("a batch of 2", "--no-video"),
        "one": ("one.safetensors", "clip: 1, taken by the sink: 1", "at least 2"),
        "name": ("no tensor `latents`", "`z`"),
    }.items():
        arguments = ("refine", "--latents", f"{name}.safetensors", "-o", "o.mp4")
        refused(in_tmp, 2, *words, arguments=arguments)


def test_noise_and_embeddings_of_another_kind(in_tmp: Path, latents: Path, run: Run) -> None:
    noise, embeds = run.folder / "noise.safetensors", run.folder / "embeds.safetensors"
    eps = load_file(noise)["eps"]
    save_file({"eps": eps[:, :, :3].contiguous()}, "short.safetensors")
    eps[0, 0, 0, 0, 0] = float("nan")
    save_file({"eps": eps}, "nan.safetensors")
    wide = load_file(embeds)
    wide["prompt_embeds"] = torch.cat((wide["prompt_embeds"],) * 2, dim=-1)
    save_file(wide, "wide.safetensors")
    for options, words in (
        (("--noise", embeds), ("no tensor `eps`",)),
        (("--noise", "short.safetensors"), ("(1, 16, 3", f"{LATENTS[0]} latent frames")),
        (("--noise", "nan.safetensors"), ("nan.safetensors", "NaN")),
        (("--prompt-embeds", noise), ("prompt_embeds", "eps")),
        (("--prompt-embeds", "wide.safetensors"), ("prompt",)),
    ):
        arguments = ("refine", "--latents", latents, "-o", "o.mp4", *options)
        refused(in_tmp, 2, *words, arguments=arguments)


@pytest.fixture
def refiner(in_tmp: Path) -> tuple[str, ...]:
    """Options that use a copy of the tiny refiner, made to be damaged."""
    shutil.copytree(TINY / "refiner_diffusers", "refiner_diffusers")
    return ("--set", "model.refiner=refiner_diffusers")


def test_weights_that_are_cut_short(in_tmp: Path, latents: Path, refiner: tuple[str, ...]) -> None:
    data = Path(WEIGHTS).read_bytes()
    Path(WEIGHTS).write_bytes(data[: len(data) // 2])
    refused(
        in_tmp, 3, "cut short", f"{len(data)} expected", "fetch the file again",
        arguments=("refine", "--latents", latents, "-o", "o.mp4", *refiner),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["missing", "shape", "extra", "nan"])
def test_weights_that_do_not_fit(
    in_tmp: Path, latents: Path, refiner: tuple[str, ...], kind: str
) -> None:
    tensors = load_file(WEIGHTS)
    name = next(n for n in tensors if n.startswith("transformer_blocks.0") and n.endswith("weight"))
    if kind == "missing":
        del tensors[name]
    elif kind == "shape":
        tensors[name] = tensors[name][:-1].contiguous()
    elif kind == "extra":
        name = "transformer_blocks.0.attn9.weight"
        tensors[name] = torch.zeros(2)
    else:
        tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, WEIGHTS)
    refused(
        in_tmp, 3, name,
        arguments=("refine", "--latents", latents, "-o", "o.mp4", *refiner),
    )  # fmt: skip


def test_weights_of_another_vae(in_tmp: Path, latents: Path) -> None:
    shutil.copytree(TINY / "ltx2_causal_vae", "vae")
    config = json.loads(Path("vae/config.json").read_text())
    config["latent_channels"] = CHANNELS * 2
    Path("vae/config.json").write_text(json.dumps(config))
    refused(
        in_tmp, 3, f"takes {CHANNELS} latent channels", f"{CHANNELS * 2}",
        arguments=("refine", "--latents", latents, "-o", "o.mp4", "--set", "model.vae=vae"),
    )  # fmt: skip


def test_a_text_encoder_of_another_depth(in_tmp: Path, latents: Path) -> None:
    shutil.copytree(TINY / "gemma3_12b", "gemma")
    config = json.loads(Path("gemma/config.json").read_text())
    text = config.get("text_config", config)
    layers = text["num_hidden_layers"]
    text["num_hidden_layers"] = layers - 1
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:-1]
    Path("gemma/config.json").write_text(json.dumps(config))
    refused(
        in_tmp, 3, f"gives {layers} hidden states", f"connectors expect {layers + 1}",
        "same release",
        arguments=(
            "refine", "--latents", latents, "-o", "o.mp4", "--no-prompt-store",
            "--set", "model.text_encoder=gemma",
        ),
    )  # fmt: skip


# Outputs that exist


def test_existing_outputs_are_refused_and_kept(in_tmp: Path, latents: Path) -> None:
    for name in ("o.mp4", "r.safetensors", "n.safetensors", "c.npy", "p.png", "o.json"):
        Path(name).write_bytes(b"mine")
        flags = {
            "r.safetensors": "--save-latents",
            "n.safetensors": "--save-noise",
            "c.npy": "--save-camera",
            "p.png": "--preview",
        }
        option = (flags[name], name) if name in flags else ()
        arguments = ("refine", "--latents", latents, "-o", "o.mp4", *option)
        refused(in_tmp, 5, f"{name} exists", "--overwrite", arguments=arguments)
        assert Path(name).read_bytes() == b"mine"
        Path(name).unlink()
    Path("f").mkdir()
    Path("f/mine.txt").write_text("mine")
    arguments = ("refine", "--latents", latents, "-o", "o.mp4", "--frames-dir", "f")
    refused(in_tmp, 5, "f is not empty", "--overwrite", arguments=arguments)


def test_overwrite_replaces_only_at_the_end(
    in_tmp: Path, latents: Path, failing: pytest.MonkeyPatch
) -> None:
    Path("o.mp4").write_bytes(b"mine")
    Path("r.safetensors").write_bytes(b"mine")
    arguments = ("refine", "--latents", latents, "-o", "o.mp4", "--overwrite")
    options = ("--save-latents", "r.safetensors", "--state", "none")
    assert sanawm(*arguments, *options).code == 1
    assert Path("o.mp4").read_bytes() == Path("r.safetensors").read_bytes() == b"mine"
    failing.undo()
    assert sanawm(*arguments, *options).code == 0
    assert Path("o.mp4").read_bytes()[4:8] == b"ftyp"
    assert refined(Path("r.safetensors")).shape[2] == LATENTS[0]
    assert listing(in_tmp) == ["o.json", "o.mp4", "r.safetensors"]


def test_a_file_that_appears_meanwhile_is_not_replaced(
    in_tmp: Path, latents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = RefineJob._load

    def load_and_meddle(self: RefineJob) -> None:
        load(self)
        Path("o.mp4").write_bytes(b"mine")

    monkeypatch.setattr(RefineJob, "_load", load_and_meddle)
    done = sanawm("refine", "--latents", latents, "-o", "o.mp4")
    assert done.code == 5
    assert "o.mp4 appeared while this run was working" in done.error
    assert "o.part.mp4" in done.error
    assert Path("o.mp4").read_bytes() == b"mine"
    assert Path("o.part.mp4").stat().st_size > 1000


def test_outputs_never_replace_inputs(in_tmp: Path, latents: Path, camera: Path) -> None:
    shutil.copy(latents, "z.safetensors")
    shutil.copy(camera, "c.npy")
    Path("link.safetensors").symlink_to("z.safetensors")
    common = ("refine", "--latents", "z.safetensors", "--camera", "c.npy", "-o", "o.mp4")
    for option in (
        ("--save-latents", "z.safetensors"),
        ("--save-latents", "./z.safetensors"),
        ("--save-latents", in_tmp / "z.safetensors"),
        ("--save-latents", "link.safetensors"),
        ("--save-camera", "c.npy"),
    ):
        arguments = (*common, *option, "--overwrite")
        refused(in_tmp, 2, "also an input of this run", arguments=arguments)


def test_two_runs_do_not_share_a_part_file(in_tmp: Path, latents: Path) -> None:
    import fcntl

    with Path("o.part.mp4").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        arguments = ("refine", "--latents", latents, "-o", "o.mp4")
        refused(in_tmp, 5, "is being written by another run", arguments=arguments)


# Camera files


def test_cameras_that_do_not_fit(in_tmp: Path, latents: Path, camera: Path) -> None:
    poses = np.load(camera)
    np.save("short.npy", poses[:5])
    bad = poses.copy()
    bad[7, 1, 2] = np.nan
    np.save("nan.npy", bad)
    np.save("flat.npy", poses[:, :3])
    for name, words in {
        "short": ("short.npy", "5 poses", f"clip has {FRAMES}", "--hold-last"),
        "nan": ("nan.npy", "frame 7", "row 1, column 2", "nan"),
    }.items():
        arguments = ("refine", "--latents", latents, "--camera", f"{name}.npy", "-o", "o.mp4")
        refused(in_tmp, 2, *words, arguments=arguments)
