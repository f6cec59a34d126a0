"""The case files of the field log: the stated value or the stated refusal for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from sanawm.camera import ImageSize, fit_to_clip, load_trajectory, plan_frames, summarise_motion
from sanawm.errors import InputError, UsageError
from sanawm.notes import Notes

from .places import CASES


def relative(name: str, frame: int, **options: object) -> np.ndarray:
    whole = load_trajectory(CASES / name, notes=Notes(), **options)  # type: ignore[arg-type]
    return whole.relative()[frame]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("C01_camera_nan/nan.npy", r"frame 5, row 1, column 3 \(counted from 0\) is nan"),
        ("C01_camera_nan/inf.npy", r"frame 7, row 0, column 0 \(counted from 0\) is inf"),
        ("C02_camera_dtypes/complex64.npy", "dtype complex64, expected float16, float32, float64"),
        (
            "C02_camera_dtypes/bool.npy",
            "dtype bool, expected float16, float32, float64 or integers",
        ),
        ("C02_camera_dtypes/poses.txt", "16 columns a line: no trajectory .* RealEstate10K"),
        ("C02_camera_dtypes/truncated.npy", "cut short: .* needs 3200 bytes of data, 3160 are"),
        ("C06_camera_short/F0.npy", "no poses in this file"),
        ("C07_realestate10k_txt/bad_columns.txt", "line 5 has 18 columns, expected 19"),
    ],
)
def test_refused(name: str, message: str) -> None:
    notes = Notes()
    with pytest.raises(InputError, match=message) as caught:
        load_trajectory(CASES / name, notes=notes)
    assert name in caught.value.message
    assert caught.value.fix
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) <= 3


def test_c01_clean_gives_a_clip_of_25() -> None:
    whole = load_trajectory(CASES / "C01_camera_nan/clean.npy", notes=Notes())
    frames = plan_frames(25, poses=len(whole), stride=24, notes=Notes())
    assert len(fit_to_clip(whole, frames, notes=Notes())) == 25


def test_c02_all_dtypes_are_one_trajectory() -> None:
    first = load_trajectory(CASES / "C02_camera_dtypes/f32.npy", notes=Notes()).poses
    np.testing.assert_array_equal(first[:, 2, 3], np.arange(25))
    names = ("f64.npy", "f16.npy", "int32.npy", "int64.npy", "f32_fortran.npy", "c2w.npz")
    for name in names:
        poses = load_trajectory(CASES / "C02_camera_dtypes" / name, notes=Notes()).poses
        assert poses.dtype == np.float32
        np.testing.assert_array_equal(poses, first)
    np.testing.assert_array_equal(
        relative("C02_camera_dtypes/f64.npy", 24)[:3, 3], np.array([0, 0, 24])
    )


C04 = [[0.913545, 0, 0.406737, 0.257836], [0, 1, 0, 0], [-0.406737, 0, 0.913545, 1.163024]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("c2w_opencv.npy", {}),
        ("c2w_opencv.npy", {"convention": "c2w", "axes": "opencv"}),
        ("w2c_opencv.npy", {"convention": "w2c"}),
        ("c2w_opengl.npy", {"axes": "opengl"}),
    ],
)
def test_c04_right_switch(name: str, options: dict) -> None:
    path = f"C04_camera_convention/{name}"
    np.testing.assert_allclose(relative(path, 24, **options)[:3], C04, atol=2e-5)
    whole = load_trajectory(CASES / path, notes=Notes(), **options)
    lines = summarise_motion(whole).lines()
    assert lines[1] == "net move   forward 1.163, right 0.258 (scene units)"
    assert lines[2] == "net turn   right 24.0 degrees (yaw +24.0)"


@pytest.mark.parametrize(
    ("name", "position", "words"),
    [
        ("w2c_opencv.npy", (1.094200, 0, -1.197806), "backwards 1.198"),
        ("c2w_opengl.npy", (0.257836, 0, -1.163024), "backwards 1.163"),
    ],
)
def test_c04_wrong_reading_shows_in_the_summary(name: str, position: tuple, words: str) -> None:
    path = CASES / "C04_camera_convention" / name
    whole = load_trajectory(path, notes=Notes())
    np.testing.assert_allclose(whole.relative()[24, :3, 3], position, atol=2e-5)
    assert words in summarise_motion(whole).lines()[1]


def test_c07_realestate10k() -> None:
    name, size = "C07_realestate10k_txt/clip.txt", ImageSize(640, 360)
    expected = [[0.961262, 0, 0.275637, 0.124748], [0, 1, 0, 0], [-0.275637, 0, 0.961262, 0.787626]]
    np.testing.assert_allclose(relative(name, 8)[:3], expected, atol=1e-5)
    whole = load_trajectory(CASES / name, image_size=size, notes=Notes())
    assert whole.intrinsics is not None
    np.testing.assert_allclose(whole.intrinsics[0], [320, 320, 320, 180], rtol=1e-6)


def test_c08_nerfstudio() -> None:
    name = "C08_nerfstudio_transforms/transforms.json"
    expected = [
        [0.913545, 0, -0.406737, -0.370830],
        [0, 1, 0, 0],
        [0.406737, 0, 0.913545, 1.544619],
    ]
    np.testing.assert_allclose(relative(name, 8)[:3], expected, atol=1e-5)
    np.testing.assert_allclose(relative(name, 1)[:3, 3], (-0.010467, 0, 0.199726), atol=1e-5)
    whole = load_trajectory(CASES / name, notes=Notes())
    assert whole.intrinsics is not None
    np.testing.assert_array_equal(whole.intrinsics[0], [500, 505, 320, 180])
    assert whole.source_size == ImageSize(640, 360)


def test_c08_distortion_is_said_and_one_pose_makes_no_clip() -> None:
    notes = Notes()
    whole = load_trajectory(CASES / "C08_nerfstudio_transforms/with_distortion.json", notes=notes)
    assert "lens distortion k1=-0.21 ignored" in notes.warnings[0]
    with pytest.raises(UsageError, match="the camera path gives 1 pose: a clip needs at least 25"):
        plan_frames(241, poses=len(whole), stride=24, explicit=False, notes=notes)


def test_c09_colmap() -> None:
    name = "C09_colmap_text/images.txt"
    expected = [[0.848048, 0, 0.529919, 0.366094], [0, 1, 0, 0], [-0.529919, 0, 0.848048, 1.126721]]
    np.testing.assert_allclose(relative(name, 8)[:3], expected, atol=1e-5)
    whole = load_trajectory(CASES / "C09_colmap_text", notes=Notes())
    assert whole.intrinsics is not None
    np.testing.assert_array_equal(whole.intrinsics[0], [512, 514, 320, 180])
    assert whole.source_size == ImageSize(640, 360)
