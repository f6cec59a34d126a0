"""`sanawm camera convert` and `make`: the same path in every format, and files that are safe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sanawm.camera import load_trajectory
from sanawm.notes import Notes
from tests.cli.command import Done, sanawm

from .places import FORMATS, camera, case

#: Names that tell the format, or the flag that says it.
TARGETS = {
    "npy": ("a.npy", ()),
    "nerfstudio": ("a.json", ()),
    "colmap": ("model", ()),
    "re10k": ("re10k.txt", ("--to", "re10k")),
    "tum": ("tum.txt", ("--to", "tum")),
    "kitti": ("kitti.txt", ("--to", "kitti")),
}


def relative(path: Path, **options: object) -> np.ndarray:
    return load_trajectory(path, notes=Notes(), **options).relative()  # type: ignore[arg-type]


def refused(done: Done, code: int, *words: str) -> None:
    """Assert a refusal with this code in at most three lines, and an empty stdout."""
    assert (done.code, done.out) == (code, ""), done.err
    _, found, message = ("\n" + done.err).partition("\nerror: ")
    assert found
    assert len(message.splitlines()) <= 3
    for word in words:
        assert word in message


@pytest.mark.parametrize("source", ["re10k.txt", "nerfstudio_transforms.json", "w2c.npz"])
def test_one_path_in_all_six_formats(source: str, tmp_path: Path) -> None:
    expected = relative(FORMATS / source)
    lens = ("--intrinsics", "600,610,320,180", "--width", 640, "--height", 360)
    for kind, (name, flags) in TARGETS.items():
        target = tmp_path / name
        done = camera("convert", FORMATS / source, "-o", target, *flags, *lens)
        assert (done.code, done.out) == (0, f"{target}\n"), done.err
        assert load_trajectory(target, notes=Notes()).format == kind
        np.testing.assert_allclose(relative(target), expected, rtol=0, atol=1e-5)
        back = tmp_path / f"{kind}_back.npy"
        assert camera("convert", target, "-o", back).code == 0
        np.testing.assert_allclose(relative(back), expected, rtol=0, atol=1e-5)


def test_format_comes_from_the_name_or_from_to(tmp_path: Path) -> None:
    source = case("C09")
    for name, flags, kind in (
        ("a.npy", (), "npy"),
        ("A.JSON", (), "nerfstudio"),
        ("model", (), "colmap"),
        ("other/images.txt", (), "colmap"),
        ("poses.dat", ("--to", "kitti"), "kitti"),
        ("odd.npy", ("--to", "tum"), "tum"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        done = sanawm("--log-format", "json", "camera", "convert", source,
                      "-o", tmp_path / name, *flags)  # fmt: skip
        assert done.json["format"] == kind
        assert load_trajectory(Path(done.json["output"]), notes=Notes()).format == kind
    refused(camera("convert", source, "-o", tmp_path / "a.txt"), 2, "does not tell the format",
            "--to npy|nerfstudio|colmap|re10k|tum|kitti")  # fmt: skip
    refused(camera("convert", source, "-o", tmp_path / "b", "--to", "bvh"), 2, "'bvh'")
    refused(camera("convert", source, "-o", ""), 2, "--output is empty")
    refused(camera("convert", source), 2, "no output was named", "add -o OUT")


def test_switches_length_and_time_reach_the_file(tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    camera("convert", case("C04/w2c_opencv.npy"), "-o", out, "--camera-convention", "w2c",
           "--translation-scale", 2, "--resample", "clip", "--num-frames", 49)  # fmt: skip
    path = relative(out)
    assert path.shape == (49, 4, 4)
    np.testing.assert_allclose(path[-1, :3, 3], [0.515672, 0, 2.326048], atol=1e-4)
    tum = tmp_path / "out.txt"
    camera("convert", case("C01/clean.npy"), "-o", tum, "--to", "tum", "--fps", 8)
    times = load_trajectory(tum, notes=Notes()).timestamps
    np.testing.assert_allclose(times, np.arange(25) / 8)


def test_lens_is_carried_replaced_and_scaled(tmp_path: Path) -> None:
    def lens(source: Path, *flags: object) -> list[float]:
        target = tmp_path / "out.json"
        done = camera("convert", source, "-o", target, "--overwrite", *flags)
        assert done.code == 0, done.err
        read = load_trajectory(target, notes=Notes())
        assert read.intrinsics is not None
        assert read.source_size is not None
        return [*read.intrinsics[-1].tolist(), *read.source_size]

    assert lens(case("C09")) == [512, 514, 320, 180, 640, 360]
    size = ("--width", 1280, "--height", 720)
    assert lens(case("C09"), *size) == [1024, 1028, 640, 360, 1280, 720]
    assert lens(case("C09"), "--intrinsics", "5e2,5e2,320,180") == [500, 500, 320, 180, 640, 360]
    assert lens(case("C07/clip.txt"), *size) == pytest.approx([640, 640, 640, 360, 1280, 720])
    blender = FORMATS / "blender_transforms.json"
    found = lens(blender, "--width", 800, "--height", 800)
    assert found == pytest.approx([640, 640, 400, 400, 800, 800])
    zoom = case("C10/zoom_F4.npy")
    walk = case("C01/clean.npy")
    assert lens(walk, "--intrinsics", zoom, "--width", 640, "--height", 360)[0] == 900


def test_lens_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    blender = FORMATS / "blender_transforms.json"
    fix = "add --width and --height of the picture"
    refused(camera("convert", blender, "-o", out), 2, "64.0108 degrees across", fix)
    walk = case("C01/clean.npy")
    refused(camera("convert", walk, "-o", out, "--fov-x", 75), 2, "75 degrees across", fix)
    refused(camera("convert", walk, "-o", tmp_path / "m"), 2, "add --intrinsics")
    assert not list(tmp_path.iterdir())
    poses_alone = camera("convert", walk, "-o", out)
    assert poses_alone.code == 0
    assert "warning: " in poses_alone.err
    assert "the file holds poses alone" in poses_alone.err


def test_existing_outputs(tmp_path: Path) -> None:
    source = case("C09")
    out = tmp_path / "out.npy"
    out.write_bytes(b"mine")
    refused(camera("convert", source, "-o", out), 5, "exists", "add --overwrite")
    assert out.read_bytes() == b"mine"
    assert camera("convert", source, "-o", out, "--overwrite").code == 0
    assert relative(out).shape == (9, 4, 4)
    model = tmp_path / "model"
    model.mkdir()
    assert camera("convert", source, "-o", model).code == 0
    refused(camera("convert", source, "-o", model), 5, "images.txt exists", "--overwrite")
    refused(camera("convert", source, "-o", model / "images.txt"), 5, "images.txt exists")
    assert camera("convert", source, "-o", model, "--overwrite").code == 0
    refused(camera("convert", source, "-o", out, "--to", "colmap", "--overwrite"), 5, "is a file")
    refused(camera("convert", source, "-o", tmp_path / "no" / "a.npy"), 5, "mkdir -p")
    refused(camera("convert", source, "-o", model, "--to", "npy"), 5, "is a folder")


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    camera("convert", case("C09"), "-o", tmp_path / "model")
    before = (tmp_path / "model" / "images.txt").read_bytes()
    for target in ("model", "model/images.txt"):
        done = camera("convert", tmp_path / "model", "-o", tmp_path / target, "--overwrite")
        refused(done, 2, "is also an input")
    assert (tmp_path / "model" / "images.txt").read_bytes() == before


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    done = camera("convert", case("C09"), "-o", tmp_path / "a.npy")
    assert "npy files hold no intrinsics" in done.err
    assert "net move   forward 1.127, right 0.366 (scene units)" in done.err


def test_make_writes_the_poses_of_an_action(tmp_path: Path) -> None:
    from sanawm.camera import roll_out_actions

    out = tmp_path / "a.npy"
    done = camera("make", "--action", "w-24,dw-24", "-o", out)
    assert (done.code, done.out) == (0, f"{out}\n")
    array = np.load(out, allow_pickle=False)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, roll_out_actions("w-24,dw-24").poses)
    assert "clip       all 49 poses" in done.err
    old = tmp_path / "old.npy"
    camera("make", "--action", "w-24,dw-24", "--action-scheme", "legacy", "-o", old)
    np.testing.assert_array_equal(
        np.load(old), roll_out_actions("w-24,dw-24", scheme="legacy").poses
    )
    refused(camera("make", "--action", "w-24", "-o", out), 5, "exists", "--overwrite")


def test_make_of_another_length(tmp_path: Path) -> None:
    out = tmp_path / "a.npy"
    for flags, frames in (
        (("--num-frames", 20), 20),
        (("--num-frames", 49, "--hold-last"), 49),
        (("--num-frames", 49, "--resample", "clip"), 49),
    ):
        assert camera("make", "--action", "w-24", "-o", out, "--overwrite", *flags).code == 0
        assert len(np.load(out)) == frames
    long = camera("make", "--action", "w-24", "-o", tmp_path / "b.npy", "--num-frames", 49)
    refused(long, 2, "the path gives 25 poses, the clip has 49", "--hold-last")
    model = tmp_path / "model"
    lens = ("--fov-x", 75, "--width", 640, "--height", 360)
    assert camera("make", "--action", "w-24", "-o", model, *lens).code == 0
    assert load_trajectory(model, notes=Notes()).source_size == (640, 360)


def test_quiet_leaves_stderr_empty(tmp_path: Path) -> None:
    out = tmp_path / "a.npy"
    done = sanawm("--quiet", "camera", "make", "--action", "w-24", "-o", out)
    assert (done.out, done.err) == (f"{out}\n", "")


def test_a_folder_is_no_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    done = camera("make", "--action", "w-24", "-o", tmp_path)
    assert done.code == 5
    assert f"output {tmp_path} is a folder, expected the name of a file" in done.err
    assert f"-o {tmp_path}/poses.npy" in done.err
    assert "--to colmap" in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    lens = ("--fov-x", 75, "--width", 96, "--height", 64)
    assert camera("make", "--action", "w-24", *lens, "--to", "colmap", "-o", tmp_path).code == 0
    done = camera("make", "--action", "w-24", "--to", "colmap", "-o", tmp_path / "new")
    assert done.code == 2
    assert "--fov-x" in done.err
