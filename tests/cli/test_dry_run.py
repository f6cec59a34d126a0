"""`--dry-run` checks everything, prints the plan, loads no weights and writes nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from sanawm.settings import all_keys

from . import command
from .command import STRIDE, TINY, pixel_frames
from .conftest import LATENTS

FRAMES = pixel_frames(LATENTS[0])
WEIGHTS = Path("refiner_diffusers/transformer/diffusion_pytorch_model.safetensors")


@pytest.fixture(autouse=True)
def _no_network_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail on every connection and on every load of a model."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a dry run must not do this")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("load_refiner", "load_decoder", "load_encoder"):
        monkeypatch.setattr(f"sanawm.pipeline.{name}", refuse)


def dry(*arguments: object) -> command.Done:
    """Run `sanawm refine --dry-run` and check that it leaves no file."""
    before = sorted(Path().iterdir())
    done = command.sanawm("refine", *arguments, "--dry-run")
    assert sorted(Path().iterdir()) == before
    return done


def test_the_plan_is_printed(in_tmp: Path, latents: Path, camera: Path) -> None:
    done = dry(
        "--latents", latents, "--camera", camera, "-o", "o.mp4", "--save-latents", "r.safetensors"
    )
    assert done.code == 0
    text = done.out
    assert f"video  64x48, {FRAMES} frames decoded, {FRAMES - 1} written at 16 fps" in text
    assert "2 blocks of 3 latent frames, 1 step + 1 capture each, window 1 sink + 10" in text
    assert f"source latents {latents}" in text
    assert "tokens 48 a latent frame, 144 a block" in text
    rows = [line.split() for line in text.splitlines() if ".." in line and line[:4] == "    "]
    assert rows[:2] == [["0", "1..3", "0", "0", "192"], ["1", "4..6", "3", "0", "336"]]
    for word in ("memory", "refiner_weights", "peak", "camera", str(camera), "hash   vae"):
        assert word in text


@pytest.mark.parametrize(
    ("flag", "row"),
    [
        ("--no-sink-token", ["stage1.sink_token", "False"]),
        ("--sink-token", ["stage1.sink_token", "True"]),
        ("--keep-first-frame", ["video.keep_first_frame", "True"]),
        ("--drop-first-frame", ["video.keep_first_frame", "False"]),
    ],
)
def test_a_switch_is_named_as_it_was_typed(in_tmp: Path, flag: str, row: list[str]) -> None:
    done = dry(flag, "-o", "o.mp4")
    assert done.code == 0, done.err
    assert [*row, flag] in [line.split() for line in done.out.splitlines()]


def test_every_key_is_printed_with_its_value_and_origin(in_tmp: Path, latents: Path) -> None:
    Path("mine.toml").write_text("[video]\ncrf = 21\n")
    done = dry(
        "-c", "tiny", "-c", "mine.toml", "--latents", latents, "-o", "o.mp4",
        "--set", "refiner.kv_max_frames=9", "--seed", 3,
    )  # fmt: skip
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line[:2] == "  "}
    assert set(all_keys()) <= set(rows)
    assert rows["video.crf"][1:] == ["21", "mine.toml"]
    assert rows["refiner.kv_max_frames"][1:] == ["9", "--set", "refiner.kv_max_frames"]
    assert rows["runtime.seed"][1:] == ["3", "--seed"]
    assert rows["video.num_frames"][1:3] == [str(FRAMES), "latents"]
    assert rows["refiner.block_size"][1:] == ["3", "preset", "tiny"]
    assert rows["video.sampling"][1:] == ["keep", "built-in", "default"]


def test_the_estimate_says_what_it_is_for(in_tmp: Path, latents: Path) -> None:
    lines = dry("--latents", latents, "-o", "o.mp4").out.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("memory "))
    assert lines[head].endswith(" GB in float32 on cpu, of which")
    rows = {}
    for line in lines[head + 1 :]:
        if not line.startswith("  "):
            break
        name, size, unit, *words = line.split()
        rows[name] = (float(size), " ".join(words))
        assert unit == "GB"
    assert rows["refiner_packed"][1].startswith("the same weights once more, in the layout of the")
    assert all(words for _, words in rows.values()), rows
    assert float(lines[head].split()[2]) == pytest.approx(rows["peak"][0], abs=0.06)
    data = dry("--latents", latents, "-o", "o.mp4", "--precision", "bf16", "--log-format", "json")
    assert data.json["memory_for"] == "bfloat16 on cpu"


RELEASED = ("-c", "streaming-720p", "--latents", "z.safetensors", "--prompt", "x", "-o", "o.mp4")


def test_a_machine_that_is_too_small(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"latents": torch.zeros(1, 128, 7, 22, 40)}, "z.safetensors")
    monkeypatch.setattr("sanawm.estimate.capacity_bytes", lambda device: 30 * 10**9)
    done = dry(*RELEASED)
    assert done.code == 0
    assert " GB of memory are needed (float32 on cpu), this machine has 30.0 GB; --prec" in done.err
    monkeypatch.setattr("sanawm.estimate.capacity_bytes", lambda device: 10**12)
    assert "of memory are needed" not in dry(*RELEASED).err
    monkeypatch.setattr("sanawm.estimate.capacity_bytes", lambda device: 0)  # not known
    assert "of memory are needed" not in dry(*RELEASED).err


def test_a_disk_too_small_for_the_download(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"latents": torch.zeros(1, 128, 7, 22, 40)}, "z.safetensors")
    monkeypatch.setattr("sanawm.downloads.cache_of_the_hub", lambda: Path("/hub"))
    monkeypatch.setattr("sanawm.downloads.free_space", lambda path: 50 * 10**9)
    done = dry(*RELEASED)
    assert done.code == 0  # refiner, VAE and text encoder: stage 1 does not run
    line = "warning: /hub: about 70 GB will be fetched into it, 50.0 GB are free; HF_HOME=FOLDER"
    assert done.err.count(line) == 1
    assert "about 41 GB)" in done.out
    monkeypatch.setattr("sanawm.downloads.free_space", lambda path: 10**12)
    assert "will be fetched" not in dry(*RELEASED).err
    monkeypatch.setattr("sanawm.downloads.free_space", lambda path: 0)
    assert "will be fetched" not in dry("--prompt", "x", "-o", "o.mp4").err  # all on this disk


def test_json(in_tmp: Path, latents: Path) -> None:
    data = dry("--latents", latents, "-o", "o.mp4", "--log-format", "json").json
    assert (data["status"], data["blocks"]) == ("dry-run", 2)
    assert data["frames"] == {"decoded": FRAMES, "written": FRAMES - 1}
    assert set(data["settings"]) == set(all_keys())


def test_weights_are_not_read_but_must_be_there(in_tmp: Path, latents: Path) -> None:
    shutil.copytree(TINY / "refiner_diffusers", "refiner_diffusers")
    whole = WEIGHTS.read_bytes()
    WEIGHTS.write_bytes(whole[:-50_000] + b"\xff" * 50_000)  # not a number
    options = ("--latents", latents, "-o", "o.mp4", "--set", "model.refiner=refiner_diffusers")
    assert dry(*options).code == 0
    WEIGHTS.write_bytes(whole[: len(whole) // 2])
    done = dry(*options)
    assert done.code == 3
    assert "cut short" in done.error
    WEIGHTS.unlink()
    done = dry(*options)
    assert done.code == 3
    assert str(WEIGHTS.parent) in done.error


def test_hashes_are_of_the_weights(in_tmp: Path, latents: Path) -> None:
    shutil.copytree(TINY / "refiner_diffusers", "refiner_diffusers")
    options = ("--latents", latents, "-o", "o.mp4", "--set", "model.refiner=refiner_diffusers")

    def hashes() -> list[str]:
        return [line for line in dry(*options).out.splitlines() if line.startswith("hash")]

    first = hashes()
    assert len(first) >= 4
    assert hashes() == first
    whole = bytearray(WEIGHTS.read_bytes())
    whole[-1] ^= 1
    WEIGHTS.write_bytes(bytes(whole))
    assert len(set(hashes()) - set(first)) == 1


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--encoder", "nosuch"), 4, "'nosuch' is not supported"),
        (("--encoder-preset", "nosuch"), 2, "encoder preset 'nosuch'"),
        (("--device", "cuda:77"), 4, "cuda:77"),
        (("--frames-dir", "full"), 5, "full is not empty"),
        (("--noise", "noise.safetensors"), 2, "noise has shape"),
        (("--prompt-embeds", "noise.safetensors"), 2, "prompt_embeds"),
        (("--save-latents", "there.safetensors"), 5, "there.safetensors exists"),
        (("--set", "model.vae=/nonexistent"), 3, "/nonexistent"),
        (("--num-frames", 3), 2, "less than one block"),
    ],
    ids=str,
)
def test_what_a_run_would_refuse_is_refused(
    in_tmp: Path, latents: Path, options: tuple[object, ...], code: int, words: str
) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    Path("there.safetensors").touch()
    save_file({"eps": torch.zeros(1, command.CHANNELS, 2, 2, 2)}, "noise.safetensors")
    done = dry("--latents", latents, "-o", "o.mp4", *options)
    assert done.code == code
    assert words in done.error


def stage1_without(folder: Path, *names: str) -> None:
    """Copy the preset's stage 1, a pickle, without some of its tensors."""
    shutil.copytree(TINY / "sana_dit", folder)
    whole = torch.load(folder / "model.pt", weights_only=True)
    kept = {k: v for k, v in whole["generator"].items() if k.removeprefix("model.") not in names}
    torch.save({"generator": kept}, folder / "model.pt")


def test_weights_that_a_run_would_refuse_are_refused(in_tmp: Path) -> None:
    """Names, shapes and damage, also of pickles: of those a run reads no header before it loads."""
    options = ("-o", "o.mp4", "--num-frames", 25, "--set", "model.stage1=sana_dit")
    stage1_without(Path("sana_dit"), "blocks.0.attn.A_log")
    done = dry(*options)
    assert done.code == 3
    assert "1 missing: blocks.0.attn.A_log" in done.error
    shutil.rmtree("sana_dit")
    stage1_without(Path("sana_dit"))
    assert dry(*options).code == 0
    whole = Path("sana_dit/model.pt").read_bytes()
    Path("sana_dit/model.pt").write_bytes(whole[: len(whole) // 2])
    done = dry(*options)
    assert done.code == 3
    assert "sana_dit/model.pt: not a readable .pt file" in done.error


def test_a_tensor_that_the_refiner_lacks(in_tmp: Path, latents: Path) -> None:
    shutil.copytree(TINY / "refiner_diffusers", "refiner_diffusers")
    tensors = load_file(WEIGHTS)
    del tensors["proj_out.weight"]
    save_file(tensors, WEIGHTS)
    options = ("--latents", latents, "-o", "o.mp4", "--set", "model.refiner=refiner_diffusers")
    done = dry(*options)
    assert done.code == 3
    assert "1 missing: proj_out.weight" in done.error


def test_half_a_vae_is_enough_for_latents(in_tmp: Path, latents: Path) -> None:
    """A run over latents reads no encoder, so a plan needs none."""
    shutil.copytree(TINY / "ltx2_causal_vae", "vae")
    (file,) = Path("vae").glob("*.safetensors")
    halved = {k: v for k, v in load_file(file).items() if not k.startswith("encoder.")}
    save_file(halved, file)
    options = ("-o", "o.mp4", "--set", "model.vae=vae")
    assert dry("--latents", latents, *options).code == 0
    done = dry(*options, "--num-frames", 25)  # the preset's picture has to be encoded
    assert done.code == 3
    assert "missing: encoder." in done.error


def test_a_window_of_stage_1_that_cannot_work(in_tmp: Path) -> None:
    options = ("-o", "o.mp4", "--num-frames", 25)
    done = dry(*options, "--num-cached-blocks", 1)
    assert done.code == 2
    assert "leaves no room for the previous chunk" in done.error
    done = dry(*options, "--num-cached-blocks", 0)
    assert done.code == 0
    assert "stage 1's memory grows with the clip" in done.err


def test_the_camera_is_shown_with_the_lens_that_is_used(in_tmp: Path) -> None:
    make = ("camera", "make", "--action", "w-24", "--fov-x", 75, "--width", 96, "--height", 64)
    assert command.sanawm(*make, "--to", "colmap", "-o", "model").code == 0
    options = ("-o", "o.mp4", "--camera", "model", "--num-frames", 25)
    assert "lens       field of view 75.0 x 54.2 degrees" in dry(*options).out
    assert "lens       field of view 60.0 x 42.1 degrees" in dry(*options, "--fov-x", 60).out


def test_the_released_model_needs_no_network_and_no_weights(in_tmp: Path) -> None:
    save_file({"latents": torch.zeros(1, 128, 31, 22, 40)}, "z.safetensors")
    done = dry("-c", "streaming-720p", "--latents", "z.safetensors", "--prompt", "x", "-o", "o.mp4")
    assert done.code == 0
    assert "refiner of 48 layers x 4096" in done.out
    assert "video  1280x704, 241 frames decoded, 240 written at 16 fps = 15.00 s" in done.out
    assert "10 blocks of 3 latent frames" in done.out
    assert done.out.count("(not in the cache; a run fetches it, about ") == 3
    # History and sink positions of a window of 11 (C23).
    rows = [line.split() for line in done.out.splitlines() if ".." in line and line[:4] == "    "]
    assert [int(r[2]) for r in rows[:10]] == [0, 3, 6, 9, 10, 10, 10, 10, 10, 10]
    assert [int(r[3]) for r in rows[:10]] == [0, 0, 0, 0, 2, 5, 8, 11, 14, 17]


def prompt_line(*arguments: object, **environment: str) -> str:
    """Return the line about the prompt of a dry run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "sanawm", "refine", *map(str, arguments), "--dry-run"],
        capture_output=True, check=True, env=os.environ | environment,
    )  # fmt: skip
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return next(line for line in lines if line.startswith("prompt "))[:24]


def test_the_prompt_file_is_utf8_whatever_the_locale(in_tmp: Path, latents: Path) -> None:
    text = "a red tower \U0001f5fc, cafe\u0301.\nat noon"
    Path("plain.txt").write_bytes(text.encode())
    Path("bom.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    Path("crlf.txt").write_bytes(f"  {text}\n".replace("\n", "\r\n").encode())
    Path("utf16.txt").write_bytes(text.encode("utf-16"))
    Path("stop.txt").write_bytes(text.removesuffix("n").encode())

    def sha(name: str) -> str:
        done = dry("--latents", latents, "-o", "o.mp4", "--prompt-file", f"{name}.txt")
        return next(line for line in done.out.splitlines() if line.startswith("prompt "))[:24]

    plain = sha("plain")
    assert {sha(n) for n in ("bom", "crlf", "utf16")} == {plain}
    assert sha("stop") != plain
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    args = ("--latents", latents, "-o", "o.mp4", "--prompt-file", "plain.txt")
    assert prompt_line(*args, **c_locale) == plain


def test_frames_are_capped_as_a_run_would(in_tmp: Path, latents: Path) -> None:
    done = dry("--latents", latents, "--num-frames", STRIDE + 4, "-o", "o.mp4")
    assert f"note: {STRIDE + 4} frames asked: {STRIDE + 1} are used" in done.err
    assert f"{STRIDE + 1} frames decoded, {STRIDE} written" in done.out
