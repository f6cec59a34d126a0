"""Lines as a newcomer reads them: who set a value, what would work, where a location is named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .command import STRIDE, TINY, sanawm

DRY = ("-o", "o.mp4", "--dry-run")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANAWM_CACHE", str(tmp_path.with_name("cache")))
    return tmp_path


def poses(count: int) -> str:
    """Write a path that goes straight on; return its name."""
    path = np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))
    path[:, 2, 3] = np.arange(count) * 0.03
    np.save("path.npy", path)
    return "path.npy"


# Who set a value


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ((), "input.fov_x = 96.03 (preset tiny)"),
        (("--fov-x", 90), "--fov-x 90"),
        (("--set", "input.fov_x=90"), "--set input.fov_x=90"),
        (("-c", "tiny", "-c", "mine.toml"), "input.fov_x = 90 (mine.toml)"),
    ],
    ids=str,
)
def test_a_value_is_named_by_who_set_it(flags: tuple[object, ...], name: str) -> None:
    Path("mine.toml").write_text("[input]\nfov_x = 90\n", encoding="utf-8")
    Image.new("RGB", (640, 200)).save("thin.png")
    done = sanawm("refine", *flags, "--image", "thin.png", "--height", 200, *DRY)
    assert done.code == 2
    assert f"error: {name}: frame 0: field of view " in done.err
    assert "give an image of about the shape of 96x200: the crop is what narrows the" in done.err
    assert f"intrinsics from {name}: " in sanawm("refine", *flags, *DRY).err


def test_a_preset_s_length_is_not_called_asked() -> None:
    done = sanawm("refine", "--action", "w-3", *DRY)
    assert done.code == 2
    assert ": 97 frames (preset tiny), but the camera path gives 4 poses" in done.err
    done = sanawm("refine", "--action", "w-3", "--num-frames", 97, *DRY)
    assert ": 97 frames asked, but the camera path gives 4 poses" in done.err
    done = sanawm("refine", "--action", "w-50", *DRY)
    assert ": 97 frames (preset tiny), the camera path gives 51 poses: 49 frames" in done.err


# What would work


def test_more_frames_than_poses_names_the_ways_that_work() -> None:
    camera = poses(25)
    done = sanawm("refine", "--camera", camera, "--num-frames", 50, *DRY)
    assert done.code == 2
    assert (
        f"fix: use --num-frames 25 (a clip has {STRIDE}*k + 1 frames), give 49 poses, or add "
        "--hold-last or --resample clip, which make 49 frames of this path\n"
    ) in done.err
    for flags, frames in (
        (("--num-frames", 25), 25),
        (("--num-frames", 50, "--hold-last"), 49),
        (("--num-frames", 50, "--resample", "clip"), 49),
    ):
        done = sanawm("--log-format", "json", "refine", "--camera", camera, *flags, *DRY)
        assert done.json["frames"]["decoded"] == frames
    done = sanawm("--log-format", "json", "refine", "--camera", poses(49), "--num-frames", 49, *DRY)
    assert done.json["frames"]["decoded"] == 49


def test_a_path_shorter_than_the_latents_names_the_ways_that_work(latents: Path) -> None:
    camera = poses(STRIDE + 1)
    given = ("refine", "--latents", latents, "--prompt", "a", "--camera", camera)
    done = sanawm(*given, *DRY)
    assert done.code == 2
    assert f"use --num-frames {STRIDE + 1}, or add --hold-last or --resample clip" in done.err
    for flags in (("--num-frames", STRIDE + 1), ("--hold-last",), ("--resample", "clip")):
        assert sanawm(*given, *flags, *DRY).code == 0


def test_a_number_of_frames_between_two_valid_ones_names_both(latents: Path) -> None:
    given = ("refine", "--latents", latents, "--prompt", "a", "--set", "input.action=")
    done = sanawm(*given, "--num-frames", STRIDE + 3, *DRY)
    assert done.code == 0
    assert f"(nearest: {STRIDE + 1} and {2 * STRIDE + 1})" in done.err


# Where a location is named


@pytest.mark.parametrize(
    "key",
    ["model.refiner", "model.vae", "model.stage1", "model.stage1_config", "stage1.instruction"],
)
def test_a_missing_model_names_the_key_to_set(key: str) -> None:
    section, _, name = key.partition(".")
    Path("mine.toml").write_text(f'[{section}]\n{name} = "nowhere"\n', encoding="utf-8")
    for flags, origin in (
        (("-c", "tiny", "-c", "mine.toml"), "mine.toml"),
        (("--set", f"{key}=nowhere"), f"--set {key}"),
    ):
        done = sanawm("refine", *flags, *DRY)
        assert done.code == 3
        assert f"nowhere: no such file or folder ({key} of {origin})" in done.err
        assert f"fix: give its folder with --set {key}=FOLDER, or as {key} in a config" in done.err


def test_a_vae_config_that_does_not_say_what_it_is(latents: Path) -> None:
    """Every key that is not there takes the released model's value, so a word about it is due."""
    shutil.copytree(TINY / "ltx2_causal_vae", "vae")
    path = Path("vae/config.json")
    values = json.loads(path.read_text(encoding="utf-8"))
    assert "no _class_name" not in sanawm("refine", "--set", "model.vae=vae", *DRY).err
    del values["_class_name"]
    path.write_text(json.dumps(values), encoding="utf-8")
    line = "warning: vae/config.json: no _class_name in it; it is read as AutoencoderKLCausalLTX2"
    done = sanawm("refine", "--set", "model.vae=vae", *DRY)
    assert (done.code, done.err.count(line)) == (0, 1)
    done = sanawm("decode", latents, "--set", "model.vae=vae", "-o", "o.mp4")
    assert (done.code, done.err.count(line)) == (0, 1)


# Devices


@pytest.mark.parametrize(
    "command",
    [
        ("refine", "-o", "o.mp4", "--prompt-file", "/dev/zero"),
        ("refine", "-o", "o.mp4", "--latents", "/dev/zero"),
        ("refine", "-o", "o.mp4", "--image", "/dev/zero"),
        ("refine", "-o", "o.mp4", "--camera", "/dev/zero"),
        ("refine", "-o", "o.mp4", "--report", "/dev/full"),
        ("refine", "-o", "o.mp4", "--state", "/dev/full"),
        ("refine", "-o", "/dev/full"),
        ("refine", "-o", "o.mp4", "-c", "/dev/zero"),
        ("refine", "-o", "o.mp4", "--set", "model.stage1_config=/dev/zero"),
        ("decode", "/dev/zero", "-o", "o.mp4"),
        ("encode", "/dev/zero", "-o", "o.safetensors"),
        ("camera", "show", "/dev/zero"),
        ("inspect", "/dev/zero"),
        ("compare", "/dev/zero", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_a_device_is_no_file(command: tuple[str, ...], here: Path) -> None:
    """Some never end, and would take all memory before a word is said."""
    done = sanawm(*command)
    assert done.code == 2, done.err
    assert "is a device, expected a file" in done.err
    assert not list(here.iterdir())


@pytest.mark.parametrize("flag", ["--latents", "--image", "--video", "--camera", "--noise"])
def test_a_pipe_is_refused_where_a_file_is_read_twice(flag: str, here: Path) -> None:
    """Nobody writes into it: opening it would wait for ever."""
    os.mkfifo("p.npy")
    done = sanawm("refine", flag, "p.npy", *DRY)
    assert done.code == 2
    assert f"error: {flag}: 'p.npy' is a pipe, expected a file\n  fix: name a file\n" in done.err


def test_a_prompt_may_come_through_a_pipe() -> None:
    """As `--prompt-file <(command)` gives it."""
    ends = os.pipe()
    os.write(ends[1], b"a red tower")
    os.close(ends[1])
    done = sanawm("refine", "--prompt-file", f"/dev/fd/{ends[0]}", *DRY)
    os.close(ends[0])
    assert done.code == 0, done.err
    assert "a red tower" in done.out


# Whose lens


def walk(folder: str) -> str:
    """Write a path with a lens of 75 degrees as a COLMAP model; return the folder's name."""
    size = ("--width", 96, "--height", 64)
    action = ("--action", "w-48", "--fov-x", 75, *size)
    assert sanawm("camera", "make", *action, "-o", folder, "--to", "colmap").code == 0
    return folder


def test_the_lens_of_a_camera_file_beats_a_preset_s() -> None:
    camera = ("--camera", walk("model"), "--num-frames", 49)
    done = sanawm("refine", "-c", "tiny", *camera, *DRY)
    assert done.code == 0, done.err
    assert "intrinsics from model/images.txt (colmap, w2c, opencv axes): fx fy cx cy = 62.5" in (
        done.err
    )
    assert "its lens is used instead of input.fov_x = 96.03 (preset tiny)" in done.err
    Path("mine.toml").write_text("[input]\nfov_x = 90\n", encoding="utf-8")
    for flags, name in (
        (("--fov-x", 90), "--fov-x 90"),
        (("--set", "input.fov_x=90"), "--set input.fov_x=90"),
        (("-c", "tiny", "-c", "mine.toml"), "input.fov_x = 90 (mine.toml)"),
    ):
        assert f"intrinsics from {name}: " in sanawm("refine", *flags, *camera, *DRY).err


def test_the_lens_of_a_preset_on_another_picture_is_noted() -> None:
    Image.new("RGB", (96, 64)).save("own.png")
    own = ("--image", "own.png", "--action", "w-24")
    line = "input.fov_x = 96.03 (preset tiny) fits the preset's own picture"
    assert line in sanawm("refine", "-c", "tiny", *own, *DRY).err
    assert line not in sanawm("refine", "-c", "tiny", *DRY).err
    assert line not in sanawm("refine", "-c", "tiny", *own, "--fov-x", 80, *DRY).err
    cleared = sanawm("refine", "-c", "tiny", *own, "--set", "input.fov_x=none", *DRY).err
    assert line not in cleared
    assert "90 degrees across the picture are assumed" in cleared


# Values that a run could use, options that do nothing, files of another kind


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--height", 0), ("--height 0: expected a whole", "use --height 64, the preset's")),
        (("--num-frames", "abc"), ("use --num-frames with a whole number, or leave it out",)),
        (("--num-frames", 99999999999, "--hold-last"), ("expected at most 1000000",)),
        (("--fps", 0), ("--fps 0: frame rate 0 is not above zero",)),
        (("--output-fps", 0), ("--output-fps 0: frame rate 0 is not above zero",)),
        (("--action", ""), ("--action is empty", "leave it out")),
        (("--intrinsics", ""), ("--intrinsics is empty", "leave it out")),
        (("--image", ""), ("--image is empty", "leave it out")),
        (
            ("--video", "own.png"),
            ("a picture by its ending '.png', expected a video", "use --image own.png"),
        ),
        (
            ("--latents", "own.png"),
            ("a picture by its ending '.png', expected a file of", "use --image own.png"),
        ),
    ],
    ids=str,
)
def test_refused_with_what_would_work(flags: tuple[object, ...], words: tuple[str, ...]) -> None:
    Image.new("RGB", (96, 64)).save("own.png")
    done = sanawm("refine", "-c", "tiny", *flags, *DRY)
    assert done.code == 2, done.err
    for word in words:
        assert word in done.error


@pytest.mark.parametrize("kind", ["image", "video", "latents"])
def test_a_folder_is_called_one(kind: str) -> None:
    done = sanawm("refine", "-c", "tiny", f"--{kind}", ".", *DRY)
    assert done.code == 3
    assert f"--{kind} .: a folder, expected a" in done.error


def test_offload_on_a_cpu_says_that_it_does_nothing() -> None:
    line = "--offload all: not used"
    assert line in sanawm("refine", "--device", "cpu", "--offload", "all", *DRY).err
    assert line not in sanawm("refine", "--device", "cpu", *DRY).err


def test_a_prompt_that_names_a_file_is_noted() -> None:
    Path("p.txt").write_text("a red tower", encoding="utf-8")
    line = "--prompt p.txt: taken as the text itself, though there is a file of that name"
    assert line in sanawm("refine", "-c", "tiny", "--prompt", "p.txt", *DRY).err
    long = sanawm("refine", "-c", "tiny", "--prompt", "a red tower " * 40, *DRY)
    assert long.code == 0, long.err
    assert "taken as the text" not in long.err
