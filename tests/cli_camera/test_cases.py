"""The field log's camera cases through the command: the stated value or the stated refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .places import camera, case, shown
from .test_convert import refused


@pytest.mark.parametrize("command", ["show", "check", "convert"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("C01/nan.npy", "frame 5, row 1, column 3 (counted from 0) is nan"),
        ("C01/inf.npy", "frame 7, row 0, column 0 (counted from 0) is inf"),
        ("C02/complex64.npy", "dtype complex64, expected float16, float32, float64 or integers"),
        ("C02/bool.npy", "dtype bool, expected float16, float32, float64 or integers"),
        ("C02/poses.txt", "16 columns a line: no trajectory that can be read"),
        ("C02/truncated.npy", "cut short"),
        ("C06/F0.npy", "no poses in this file"),
        ("C07/bad_columns.txt", "line 5 has 18 columns, expected 19"),
    ],
)
def test_refused(command: str, name: str, message: str, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out.npy") if command == "convert" else ()
    refused(camera(command, case(name), *out), 2, case(name).name, message, "\n  fix: ")
    assert not list(tmp_path.iterdir())


def converted(name: str, tmp_path: Path, *flags: object) -> np.ndarray:
    out = tmp_path / "out.npy"
    done = camera("convert", case(name), "-o", out, "--overwrite", *flags)
    assert done.code == 0, done.err
    poses = np.load(out).astype(np.float64)
    return np.linalg.inv(poses[0]) @ poses


def test_c01_clean(tmp_path: Path) -> None:
    assert len(converted("C01/clean.npy", tmp_path, "--num-frames", 25)) == 25


def test_c02_every_dtype_gives_one_path(tmp_path: Path) -> None:
    for name in ("f32", "f64", "f16", "int32", "int64", "f32_fortran"):
        path = converted(f"C02/{name}.npy", tmp_path)
        np.testing.assert_array_equal(path[24, :3, 3], [0, 0, 24])
    np.testing.assert_array_equal(converted("C02/c2w.npz", tmp_path)[24, :3, 3], [0, 0, 24])


@pytest.mark.parametrize(
    ("name", "flags", "rotation", "position"),
    [
        ("C04/c2w_opencv.npy", (), 0.406737, (0.257836, 0, 1.163024)),
        ("C04/w2c_opencv.npy", ("--camera-convention", "w2c"), 0.406737, (0.257836, 0, 1.163024)),
        ("C04/c2w_opengl.npy", ("--camera-axes", "opengl"), 0.406737, (0.257836, 0, 1.163024)),
        ("C07/clip.txt", (), 0.275637, (0.124748, 0, 0.787626)),
        ("C08/transforms.json", (), -0.406737, (-0.370830, 0, 1.544619)),
        ("C09", (), 0.529919, (0.366094, 0, 1.126721)),
    ],
)
def test_stated_last_pose(
    name: str, flags: tuple, rotation: float, position: tuple, tmp_path: Path
) -> None:
    last = converted(name, tmp_path, *flags)[-1]
    assert last[0, 2] == pytest.approx(rotation, abs=2e-5)
    np.testing.assert_allclose(last[:3, 3], position, atol=2e-5)


def test_c04_wrong_reading_is_visible() -> None:
    assert shown(case("C04/w2c_opencv.npy"))["forward"] == pytest.approx(-1.197806, abs=2e-5)
    assert shown(case("C04/c2w_opengl.npy"))["forward"] == pytest.approx(-1.163024, abs=2e-5)
    found = shown(case("C04/c2w_opencv.npy"))
    assert (found["yaw"], found["pitch"]) == pytest.approx((24, 0), abs=1e-3)


def test_c06_lengths() -> None:
    too_many = camera("show", case("C06/F50.npy"), "--num-frames", 100)
    refused(too_many, 2, "the path gives 50 poses, the clip has 100", "--hold-last")
    for wrong in (0, -5, 10**9):
        done = camera("show", case("C06/F50.npy"), "--num-frames", wrong)
        refused(done, 2, f"--num-frames {wrong} cannot be used", "24*k + 1")
    for short in ("F1", "F24"):
        done = camera("check", case(f"C06/{short}.npy"))
        assert done.code == 1
        assert "a clip needs at least 25" in done.out


def test_c07_c08_c09_lenses() -> None:
    size = ("--width", 640, "--height", 360)
    assert shown(case("C07/clip.txt"), *size)["intrinsics"] == pytest.approx([320, 320, 320, 180])
    assert shown(case("C08/transforms.json"))["intrinsics"] == [500, 505, 320, 180]
    assert shown(case("C09"))["intrinsics"] == [512, 514, 320, 180]
    done = camera("show", case("C08/with_distortion.json"))
    assert done.code == 0
    assert "warning: " in done.err
    assert "distortion k1=-0.21 ignored" in done.err


SIZE = ("--width", 640, "--height", 360)


def test_c10_lenses_that_are_one() -> None:
    for name in ("vec4", "mat33", "perframe_F4", "perframe_F33"):
        found = shown("--action", "w-24", "--intrinsics", case(f"C10/{name}.npy"), *SIZE)
        assert found["intrinsics"] == [600, 610, 320, 180]
        assert (found["fov_x"], found["fov_y"]) == pytest.approx((56.14, 32.88), abs=0.005)
    longer = camera("show", "--action", "w-24", "--intrinsics", case("C10/zoom_long_49.npy"), *SIZE)
    assert longer.code == 0
    assert "intrinsics of 49 frames, the first 25 are used" in longer.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero_focal", "expected a positive number of pixels"),
        ("negative_focal", "expected a positive number of pixels"),
        ("nan", "is nan, expected"),
        ("shape_3", "shape (3,), expected (4,) fx fy cx cy, (3, 3), (F, 4) or (F, 3, 3)"),
    ],
)
def test_c10_refused(name: str, words: str) -> None:
    lens = case(f"C10/{name}.npy")
    refused(camera("show", "--action", "w-24", "--intrinsics", lens, *SIZE), 2, str(lens), words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("skew", "skew 3.5 ignored"),
        ("principal_point_outside", "principal point (1200, 900) lies outside the 640x360"),
        ("fov_too_wide", "145.3 x 121.9 degrees on the 640x360 picture is outside 25 to 120"),
    ],
)
def test_c10_warned(name: str, words: str) -> None:
    lens = case(f"C10/{name}.npy")
    done = camera("show", "--action", "w-24", "--intrinsics", lens, *SIZE)
    assert done.code == 0
    assert any(words in line and line.startswith("warning: ") for line in done.err.splitlines())
    checked = camera("check", "--action", "w-24", "--intrinsics", lens, *SIZE)
    assert checked.code == (name == "fov_too_wide")
