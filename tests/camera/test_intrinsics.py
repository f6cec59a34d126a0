"""Intrinsics: shapes, fitting to a clip, moving with resize and crop, field of view."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sanawm.camera import (
    FRACTIONS,
    ImageSize,
    Trajectory,
    field_of_view,
    fit_intrinsics,
    frame_image,
    load_trajectory,
    read_intrinsics,
    resolve_intrinsics,
)
from sanawm.camera.intrinsics import intrinsics_from_array
from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.notes import Notes

from .places import CAMERA, CASES, make_trajectory

CROP = json.loads((CAMERA / "crop.json").read_text())
GOLDEN = np.load(CAMERA / "intrinsics.npz")
C10 = CASES / "C10_intrinsics"
IMAGE, TARGET = ImageSize(640, 360), ImageSize(1280, 704)


@pytest.mark.parametrize("name", sorted(n[3:] for n in GOLDEN.files if n.startswith("in_")))
def test_fitting_matches_the_golden(name: str) -> None:
    rows = intrinsics_from_array(GOLDEN[f"in_{name}"], source=name, notes=Notes())
    np.testing.assert_array_equal(fit_intrinsics(rows, 9), GOLDEN[f"out_{name}"])


@pytest.mark.parametrize("case", CROP, ids=lambda case: "x".join(map(str, case["src"])))
def test_crop_matches_the_golden(case: dict) -> None:
    source = ImageSize(*case["src"])
    framing = frame_image(source, ImageSize(*case["target"]))
    assert list(framing.resized) == case["resized"]
    assert [framing.left, framing.top] == case["crop_offset_left_top"]
    moved = framing.move_intrinsics(np.array([case["K_in"]], dtype=np.float32))
    np.testing.assert_array_equal(moved[0], np.array(case["K_out"], dtype=np.float32))
    small = frame_image(source, ImageSize(*case["small_target"]))
    assert list(small.resized) == case["small_resized"]
    assert [small.left, small.top] == case["small_offset"]
    assert 0 <= small.cut_share < 1


def test_r15_example() -> None:
    framing = frame_image(IMAGE, TARGET)
    assert (framing.resized, framing.left, framing.top) == (ImageSize(1280, 720), 0, 8)
    moved = framing.move_intrinsics(np.array([[600, 610, 320, 180]], dtype=np.float32))
    np.testing.assert_array_equal(moved, [[1200, 1220, 640, 352]])
    with pytest.raises(UsageError, match="0x5 pixels"):
        frame_image(ImageSize(0, 5), TARGET)


def resolve(name: str, notes: Notes, *, allow: bool = False) -> np.ndarray:
    supplied = read_intrinsics(C10 / f"{name}.npy", notes=notes)
    return resolve_intrinsics(
        None,
        25,
        image_size=IMAGE,
        target=TARGET,
        supplied=supplied,
        allow_extreme_fov=allow,
        notes=notes,
    )


@pytest.mark.parametrize("name", ["vec4", "mat33", "perframe_F4", "perframe_F33"])
def test_c10_shapes_agree(name: str) -> None:
    notes = Notes()
    result = resolve(name, notes)
    np.testing.assert_array_equal(result, np.tile([1200, 1220, 640, 352], (25, 1)))
    assert result.dtype == np.float32
    assert not notes.warnings
    assert not notes.changes


def test_c10_field_of_view() -> None:
    fov = field_of_view(np.array([[600, 610, 320, 180]]), IMAGE)[0]
    np.testing.assert_allclose(fov, (56.14, 32.88), atol=0.005)


def test_c10_zoom() -> None:
    notes = Notes()
    assert resolve("zoom_F4", notes)[24, 0] == pytest.approx(1800)
    long = read_intrinsics(C10 / "zoom_long_49.npy", notes=notes)
    np.testing.assert_array_equal(
        resolve("zoom_long_49", notes), frame_image(IMAGE, TARGET).move_intrinsics(long[:25])
    )
    assert any("intrinsics of 49 frames, the first 25 are used" in line for line in notes.infos)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zero_focal", r"zero_focal.npy: frame 0: f[xy] is 0, expected a positive number"),
        ("negative_focal", r"negative_focal.npy: frame 0: f[xy] is -\d+, expected a positive"),
        ("nan", r"nan.npy: frame 0: \w\w is nan, expected a"),
        ("shape_3", r"shape_3.npy: intrinsics of shape \(3,\), expected \(4,\) fx fy cx cy"),
        (
            "fov_too_wide",
            r"field of view 145.3 x 120.8 degrees on the 1280x704 picture \(145.3 x 121.9 on the "
            r"640x360 image\) is outside 25 to 120 degrees",
        ),
    ],
)
def test_c10_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        resolve(name, Notes())
    assert caught.value.exit_code == 2
    assert caught.value.fix


def test_c10_warned() -> None:
    notes = Notes()
    resolve("skew", notes)
    assert "skew 3.5 ignored" in notes.warnings[0]
    resolve("principal_point_outside", notes)
    assert "principal point (1200, 900) lies outside the 640x360 image" in notes.warnings[1]
    resolve("fov_too_wide", notes, allow=True)
    assert "outside 25 to 120 degrees" in notes.warnings[2]


def test_default_is_ninety_degrees_across_the_target_and_says_so() -> None:
    notes = Notes()
    rows = resolve_intrinsics(None, 3, image_size=IMAGE, target=TARGET, notes=notes)
    np.testing.assert_allclose(rows, np.tile([640, 640, 640, 352], (3, 1)), rtol=1e-6)
    assert "90 degrees across the picture are assumed" in notes.warnings[0]
    assert "fx fy cx cy = 640 640 640 352 on the 1280x704 picture" in notes.warnings[0]
    assert "90.0 x 57.6 degrees" in notes.warnings[0]


def test_fov_flag() -> None:
    notes = Notes()
    rows = resolve_intrinsics(None, 2, image_size=IMAGE, target=TARGET, fov_x_deg=60.0, notes=notes)
    focal = 640 / (2 * np.tan(np.radians(30)))
    np.testing.assert_allclose(rows[1], [2 * focal, 2 * focal, 640, 352], rtol=1e-6)
    for angle in (0.0, 180.0, -3.0, float("nan")):
        with pytest.raises(UsageError, match="field of view"):
            resolve_intrinsics(
                None, 2, image_size=IMAGE, target=TARGET, fov_x_deg=angle, notes=notes
            )
    with pytest.raises(InputError, match="outside 25 to 120"):
        resolve_intrinsics(None, 2, image_size=IMAGE, target=TARGET, fov_x_deg=20.0, notes=notes)


def test_flags_beat_the_file_and_exclude_each_other() -> None:
    whole = make_trajectory(2, 4, lens=True)
    rows = np.array([[600, 610, 320, 180]], dtype=np.float32)
    notes = Notes()
    supplied = resolve_intrinsics(
        whole, 4, image_size=IMAGE, target=TARGET, supplied=rows, notes=notes
    )
    assert supplied[0, 0] == 1200
    from_file = resolve_intrinsics(whole, 4, image_size=IMAGE, target=TARGET, notes=notes)
    assert from_file[0, 0] == 1000
    with pytest.raises(UsageError, match="both intrinsics and a field of view"):
        resolve_intrinsics(
            whole,
            4,
            image_size=IMAGE,
            target=TARGET,
            supplied=rows,
            fov_x_deg=60.0,
            notes=notes,
        )


def test_intrinsics_of_another_size_are_scaled_with_a_line() -> None:
    whole = make_trajectory(2, 2, lens=True)  # 640x360
    notes = Notes()
    rows = resolve_intrinsics(
        whole, 2, image_size=ImageSize(1280, 720), target=ImageSize(1280, 720), notes=notes
    )
    np.testing.assert_allclose(rows[0], [1000, 1020, 634, 366])
    assert "intrinsics of 640x360 pixels scaled to the image's 1280x720" in notes.infos[0]
    assert not notes.warnings
    resolve_intrinsics(
        whole, 2, image_size=ImageSize(640, 480), target=ImageSize(640, 480), notes=notes
    )
    assert "different shapes" in notes.warnings[0]


def test_lens_known_as_fractions_or_as_an_angle() -> None:
    poses = make_trajectory(1, 2).poses
    rows = np.tile(np.array([0.5, 8 / 9, 0.5, 0.5], dtype=np.float32), (2, 1))
    notes = Notes()
    shares = Trajectory(poses, rows, FRACTIONS)
    result = resolve_intrinsics(shares, 2, image_size=IMAGE, target=IMAGE, notes=notes)
    np.testing.assert_allclose(result[0], [320, 320, 320, 180], rtol=1e-6)
    angle = Trajectory(poses, fov_x_deg=90.0)
    result = resolve_intrinsics(angle, 2, image_size=IMAGE, target=IMAGE, notes=notes)
    np.testing.assert_allclose(result[0], [320, 320, 320, 180], rtol=1e-6)
    assert not notes.warnings


def test_text_and_archives(tmp_path: Path) -> None:
    notes = Notes()
    rows = read_intrinsics("600, 610,320,180", notes=notes)
    np.testing.assert_array_equal(rows, [[600, 610, 320, 180]])
    with pytest.raises(InputError, match=r"intrinsics '600,610': intrinsics of shape \(2,\)"):
        read_intrinsics("600,610", notes=notes)
    archive = tmp_path / "lens.npz"
    np.savez(archive, intrinsics=np.diag([100.0, 100.0, 1.0]))
    np.testing.assert_array_equal(read_intrinsics(archive, notes=notes), [[100, 100, 0, 0]])
    np.savez(archive, lens=np.eye(3))
    with pytest.raises(InputError, match="no intrinsics among its keys lens; expected one of"):
        read_intrinsics(archive, notes=notes)
    with pytest.raises(MissingFile, match=r"absent.npy: no such file"):
        read_intrinsics(tmp_path / "absent.npy", notes=notes)
    np.save(tmp_path / "words.npy", np.array(["a", "b", "c", "d"]))
    with pytest.raises(InputError, match="dtype <U1, expected real numbers"):
        read_intrinsics(tmp_path / "words.npy", notes=notes)


def test_short_sequences_are_stretched_with_a_line() -> None:
    notes = Notes()
    rows = np.array([[600, 600, 320, 180], [700, 700, 320, 180]], dtype=np.float32)
    result = resolve_intrinsics(
        None, 25, image_size=IMAGE, target=IMAGE, supplied=rows, notes=notes
    )
    np.testing.assert_allclose(result[:, 0], np.linspace(600, 700, 25), rtol=1e-6)
    assert "intrinsics of 2 frames stretched over 25 frames" in notes.changes[0]


def test_file_intrinsics_come_out_in_image_pixels_when_asked() -> None:
    path = CASES / "C08_nerfstudio_transforms" / "transforms.json"
    notes = Notes()
    whole = load_trajectory(path, image_size=ImageSize(1280, 720), notes=notes)
    assert whole.source_size == ImageSize(1280, 720)
    assert whole.intrinsics is not None
    np.testing.assert_allclose(whole.intrinsics[0], [1000, 1010, 640, 360])


def test_without_an_image_the_file_speaks_of_its_own_picture() -> None:
    whole = make_trajectory(2, 2, lens=True)  # 640x360
    notes = Notes()
    rows = resolve_intrinsics(whole, 2, image_size=None, target=TARGET, notes=notes)
    np.testing.assert_allclose(rows[0], [1000, 1020, 634, 366 - 8])
    assert not notes.warnings
    rows = np.array([[640, 640, 640, 352]], dtype=np.float32)
    same = resolve_intrinsics(whole, 2, image_size=None, target=TARGET, supplied=rows, notes=notes)
    np.testing.assert_array_equal(same, np.repeat(rows, 2, axis=0))


@pytest.mark.parametrize("frames", [None, 3])
def test_a_matrix_must_end_with_0_0_1(frames: int | None, tmp_path: Path) -> None:
    lens = np.array([[70.0, 0, 48], [0, 70, 32], [0, 0, 1]])
    whole = lens if frames is None else np.tile(lens, (frames, 1, 1))
    path = tmp_path / "k.npy"
    np.save(path, whole)
    assert read_intrinsics(path, notes=Notes())[0].tolist() == [70, 70, 48, 32]
    np.save(path, np.swapaxes(whole, -1, -2))
    with pytest.raises(
        InputError, match=r"frame 0: the last row .* is 48 32 1, expected 0 0 1"
    ) as c:
        read_intrinsics(path, notes=Notes())
    assert c.value.fix == "the matrices are stored column by column: transpose each of them"
    bad = whole.copy()
    bad[..., 2, 2] = 0
    archive = tmp_path / "k.npz"
    np.savez(archive, K=bad)
    with pytest.raises(InputError, match=r"k.npz \[K\]: frame 0: the last row .* is 0 0 0") as c:
        read_intrinsics(archive, notes=Notes())
    assert "0 fy cy" in str(c.value.fix)
    np.savez(archive, K=np.swapaxes(whole, -1, -2), c2w=np.tile(np.eye(4), (frames or 1, 1, 1)))
    with pytest.raises(InputError, match="the last row of the 3x3 matrix is 48 32 1"):
        load_trajectory(archive, notes=Notes())


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("70 70 48 32", "70,70,48,32"),
        ("70;70;48;32", "70,70,48,32"),
        ("[7e1, 70, 48, 32]", "7e1,70,48,32"),
        ("70,70,48,a", "600,600,320,180"),
        ("", "600,600,320,180"),
    ],
)
def test_numbers_in_another_spelling_are_no_file(text: str, fix: str) -> None:
    with pytest.raises(UsageError, match="neither fx,fy,cx,cy nor the name of a file") as caught:
        read_intrinsics(text, notes=Notes())
    assert caught.value.fix == f"write --intrinsics {fix}"
    for name in ("lens.npy", "my lens 2.npy", "70"):
        with pytest.raises(MissingFile):
            read_intrinsics(name, notes=Notes())


@pytest.mark.parametrize("angle", [25.0, 26.0, 120.0])
def test_an_angle_out_of_range_is_told_which_ones_fit(angle: float) -> None:
    size = ImageSize(96, 64)

    def lens(degrees: float) -> np.ndarray:
        return resolve_intrinsics(
            None, 1, image_size=size, target=size, fov_x_deg=degrees, notes=Notes()
        )

    with pytest.raises(InputError, match=f"--fov-x {angle:g}: frame 0: field of view ") as caught:
        lens(angle)
    assert "expected both angles, across and upright, above 25 and below 120" in str(caught.value)
    assert "give --fov-x 37 to 119, with which both" in str(caught.value.fix)
    for fits in (37, 119):
        assert lens(fits).shape == (1, 4)
    with pytest.raises(InputError):
        lens(36)
