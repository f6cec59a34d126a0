"""Trajectory files: goldens of every format, options, conversions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sanawm.camera import FRACTIONS, ImageSize
from sanawm.camera.geometry import GL_TO_CV
from sanawm.camera.load import natural_key
from sanawm.errors import InputError

from .places import FORMATS, load, random_poses

EXPECTED = np.load(FORMATS / "expected.npz")
WH = ImageSize(*(int(side) for side in EXPECTED["wh"]))
MATRIX = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
IMAGE = "1 1 0 0 0 0 0 0 1 a.png"
CAMERA = "1 PINHOLE 640 360 500 500 320 180"
SHUFFLED = "transforms_perframe_shuffled.json"
GOLDEN = [
    ("nerfstudio_transforms.json", "nerfstudio", "nerfstudio_transforms.{}", {}),
    ("blender_transforms.json", "blender", "blender_transforms.{}", {"image_size": WH}),
    ("nerfstudio_camera_path.json", "camera-path", "nerfstudio_camera_path.{}", {}),
    ("colmap_images.txt", "colmap", "colmap.{}_name_order", {}),
    ("re10k.txt", "re10k", "re10k.{}", {"image_size": WH}),
    ("tum.txt", "tum", "tum.{}", {}),
    ("kitti.txt", "kitti", "kitti.{}", {}),
    ("c2w_3x4.npy", "npy", "c2w_3x4.{}", {}),
    ("w2c.npz", "npz", "w2c_npz.{}", {}),
    ("llff_poses_bounds.npy", "llff", "llff.{}", {}),
    (SHUFFLED, "nerfstudio", "transforms_perframe_shuffled.{}_natural_name_order", {}),
    (SHUFFLED, "nerfstudio", "transforms_perframe_shuffled.{}_file_order", {"sort": "file"}),
]


@pytest.mark.parametrize(("name", "kind", "prefix", "options"), GOLDEN)
@pytest.mark.parametrize("forced", [False, True])
def test_formats_match_the_golden(
    name: str, kind: str, prefix: str, options: dict, forced: bool
) -> None:
    more = {"camera_format": kind} if forced else {}
    whole, _ = load(FORMATS / name, **options, **more)
    assert whole.format == kind
    poses, lens = prefix.format("c2w"), prefix.format("K")
    np.testing.assert_allclose(whole.poses, EXPECTED[poses], rtol=0, atol=1e-6)
    if name in ("tum.txt", "kitti.txt", "c2w_3x4.npy"):
        assert whole.intrinsics is None
        return
    if lens not in EXPECTED:
        lens += "_for_wh"  # the file holds fractions or an angle
    assert whole.intrinsics is not None
    np.testing.assert_allclose(whole.intrinsics, EXPECTED[lens], rtol=1e-7)
    assert whole.source_size in (WH, None)


def test_timestamps_and_lens_without_a_picture() -> None:
    whole, _ = load(FORMATS / "re10k.txt")
    assert whole.source_size == FRACTIONS
    np.testing.assert_allclose(whole.timestamps, np.arange(6) / 30, atol=1e-5)
    whole, _ = load(FORMATS / "nerfstudio_camera_path.json")
    np.testing.assert_allclose(whole.timestamps, np.arange(6) / 24)
    whole, _ = load(FORMATS / "tum.txt")
    np.testing.assert_allclose(whole.timestamps, np.arange(6) / 16)
    whole, _ = load(FORMATS / "blender_transforms.json")
    assert whole.intrinsics is None
    assert whole.fov_x_deg == pytest.approx(np.degrees(1.1171986306870249))


def test_colmap_warns_of_distortion_and_says_how_it_sorted() -> None:
    _, notes = load(FORMATS / "colmap_images.txt")
    assert "camera 2 (SIMPLE_RADIAL): lens distortion 0.01 ignored" in notes.warnings[0]
    assert "put in the order of their names (im000.png first)" in notes.infos[0]
    whole, notes = load(FORMATS / "colmap_images.txt", sort="file")
    assert not notes.infos
    np.testing.assert_allclose(whole.poses[2], EXPECTED["colmap.c2w_name_order"][0], atol=1e-6)


def test_switches_undo_other_conventions(tmp_path: Path) -> None:
    c2w = random_poses(3, 7)
    for name, array, options in (
        ("w2c", np.linalg.inv(c2w), {"convention": "w2c"}),
        ("gl", c2w @ GL_TO_CV, {"axes": "opengl"}),
        ("w2c_gl", np.linalg.inv(c2w @ GL_TO_CV), {"convention": "w2c", "axes": "opengl"}),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        whole, notes = load(tmp_path / f"{name}.npy", **options)
        np.testing.assert_allclose(whole.poses, c2w, atol=1e-6)
        assert not notes.warnings
    whole, notes = load(FORMATS / "kitti.txt", axes="opengl", translation_scale=0.1)
    expected = EXPECTED["kitti.c2w"] @ GL_TO_CV
    expected[:, :3, 3] *= 0.1
    np.testing.assert_allclose(whole.poses, expected, atol=1e-6)
    assert "kitti files are opencv, this one is read as opengl as asked" in notes.infos[0]
    assert "positions times 0.1" in whole.source


def test_npz_keys(tmp_path: Path) -> None:
    c2w, path = random_poses(3, 5), tmp_path / "poses.npz"
    w2c = np.linalg.inv(c2w)
    for key, array in (("cam_c2w", c2w), ("data", c2w), ("extrinsic", w2c[:, :3])):
        np.savez(path, **{key: array, "K": np.diag([50.0, 50.0, 1.0])})
        whole, _ = load(path)
        np.testing.assert_allclose(whole.poses, c2w, atol=1e-6)
        assert whole.intrinsics is not None
        assert whole.intrinsics.shape == (5, 4)
    np.savez(path, w2c=w2c, poses=c2w)
    whole, notes = load(path)
    np.testing.assert_allclose(whole.poses, c2w, atol=1e-6)
    assert "poses taken from poses; not read: w2c" in notes.infos[0]
    np.savez(path, w2c=c2w, poses=c2w)
    with pytest.raises(InputError, match="are not inverse to each other") as caught:
        load(path)
    assert "--camera-convention" in str(caught.value)
    whole, _ = load(path, convention="w2c")
    np.testing.assert_allclose(whole.poses, w2c, atol=1e-6)
    np.savez(path, camera=c2w, time=np.arange(5))
    with pytest.raises(InputError, match="no poses among its keys camera, time; expected one of"):
        load(path)
    np.savez(path, data=c2w, inds=np.array([0, 1, 2, 5, 6]))
    assert "inds are not consecutive" in load(path)[1].warnings[0]
    np.savez(path, c2w=c2w, intrinsics=np.full((3, 4), 9.0))
    assert "intrinsics of 3 frames stretched over the file's 5 poses" in load(path)[1].warnings[0]


def test_nearly_exact_rotations_are_repaired_and_others_refused(tmp_path: Path) -> None:
    poses, path = random_poses(3, 5), tmp_path / "p.npy"
    poses[2, :3, :3] *= 1 + 1e-4
    np.save(path, poses)
    whole, notes = load(path)
    rotation = whole.poses[2, :3, :3].astype(np.float64)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-6)
    assert "rotations of 1 frame were off by up to 2.0e-04" in notes.infos[0]
    poses[2, :3, :3] *= 1.5
    np.save(path, poses)
    with pytest.raises(InputError, match=r"frame 2: the 3x3 part is no rotation \(R R\^T is off"):
        load(path)
    mirrored = random_poses(3, 5) @ np.diag([-1.0, 1, 1, 1])
    np.save(path, mirrored)
    with pytest.raises(InputError, match="frame 0: the 3x3 part mirrors space"):
        load(path)
    np.save(path, random_poses(3, 5).transpose(0, 2, 1))
    with pytest.raises(InputError, match="transpose each of them"):
        load(path)
    broken = random_poses(3, 5)
    broken[4, 3, 3] = 2
    np.save(path, broken)
    with pytest.raises(InputError, match="frame 4: the last row is 0 0 0 2, expected 0 0 0 1"):
        load(path)


def test_paths_far_from_the_origin_keep_their_digits(tmp_path: Path) -> None:
    poses, path = random_poses(3, 9), tmp_path / "utm.npy"
    far = poses.copy()
    far[:, :3, 3] += (4.5e5, -5.2e6, 120.0)
    np.save(path, far)
    whole, notes = load(path)
    expected = np.linalg.inv(poses[0]) @ poses
    np.testing.assert_allclose(whole.relative(), expected, atol=1e-5)
    assert "positions up to 5.2e+06 units from the origin were moved" in notes.infos[0]


@pytest.mark.parametrize("offset", [0.0, 10.0, 20.0, 50.0, 100.0, 500.0, 900.0, 1100.0])
def test_relative_poses_keep_their_digits_at_any_offset(offset: float, tmp_path: Path) -> None:
    poses, path = np.tile(np.eye(4), (49, 1, 1)), tmp_path / "p.npy"
    poses[:, 2, 3] = 0.025 * np.arange(49)
    exact = poses[-1, 2, 3]
    poses[:, :3, 3] += offset
    np.save(path, poses)
    whole, notes = load(path)
    error = np.abs(whole.relative()[:, 2, 3] - 0.025 * np.arange(49)).max()
    assert error < 1e-5 * exact
    assert bool(notes.infos) == (offset >= 50)
    if offset <= 20:
        np.testing.assert_allclose(whole.poses, poses, rtol=1e-7)


@pytest.mark.parametrize("name", ["tum.txt", "re10k.txt", "kitti.txt", "colmap_images.txt"])
def test_text_with_mark_windows_lines_or_commas(name: str, tmp_path: Path) -> None:
    plain, _ = load(FORMATS / name, camera_format=None)
    text = (FORMATS / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    np.testing.assert_array_equal(load(path)[0].poses, plain.poses)
    if name == "tum.txt":
        path.write_text(text.replace(" ", ","), encoding="utf-8")
        np.testing.assert_array_equal(load(path)[0].poses, plain.poses)
    path.write_text(text, encoding="utf-16")
    with pytest.raises(InputError, match="the text is UTF-16, expected UTF-8"):
        load(path)


def test_natural_order() -> None:
    names = ["im10.png", "im2.png", "im0002b.png", "a/im1.png", "im2.png"]
    assert sorted(names, key=natural_key) == [
        "a/im1.png",
        "im2.png",
        "im2.png",
        "im0002b.png",
        "im10.png",
    ]


def test_colmap_camera_lists(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text(f"{IMAGE}\n\n2 1 0 0 0 1 0 0 2 b c.png\n")
    whole, notes = load(tmp_path)
    assert len(whole) == 2
    assert "no cameras.txt beside it, so no intrinsics" in notes.infos[0]
    cameras = tmp_path / "cameras.txt"
    cameras.write_text(f"{CAMERA}\n")
    with pytest.raises(InputError, match=r"line 3 \(b c.png\) names camera 2, which cameras.txt"):
        load(tmp_path)
    cameras.write_text(f"{CAMERA}\n2 OPENCV_FISHEYE 1280 720 900 900 640 360 0 0 0 0\n")
    whole, notes = load(tmp_path)
    assert whole.intrinsics is not None
    np.testing.assert_allclose(whole.intrinsics[1], [450, 450, 320, 180])
    assert "camera 2 is OPENCV_FISHEYE, no pinhole" in notes.warnings[0]
    assert "cameras of several sizes, intrinsics are brought to 640x360" in notes.infos[0]
    for line, message in (
        ("1 ODD 1 1 1", "found 1 ODD 1 1, expected CAMERA_ID MODEL WIDTH HEIGHT"),
        ("1 PINHOLE 640 360 500 500 320", "with 3 parameters, expected a size in pixels and 4"),
        ("1 PINHOLE 640 360 -500 500 320 180", "line 1: fx is -500, expected a positive number"),
    ):
        cameras.write_text(f"{line}\n")
        with pytest.raises(InputError, match=message):
            load(tmp_path)


def test_distortion_and_odd_cameras_in_json(tmp_path: Path) -> None:
    path = tmp_path / "transforms.json"
    document = {
        "camera_model": "OPENCV_FISHEYE",
        "fl_x": 50,
        "w": 64,
        "h": 32,
        "frames": [
            {"transform_matrix": MATRIX},
            {"transform_matrix": MATRIX, "k2": 0.5, "w": 128, "h": 64},
        ],
    }
    path.write_text(json.dumps(document))
    whole, notes = load(tmp_path)
    assert any("lens distortion k2=0.5 ignored" in line for line in notes.warnings)
    assert any("camera model OPENCV_FISHEYE is no pinhole" in line for line in notes.warnings)
    assert any("frames without file_path" in line for line in notes.warnings)
    assert whole.intrinsics is not None
    np.testing.assert_allclose(whole.intrinsics, [[50, 50, 32, 16], [25, 25, 32, 16]])


def test_doubled_image_names_are_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "transforms.json"
    frames = []
    for number, name in enumerate(["b.png", "a.png", "b.png", "a.png", "b.png"]):
        matrix = np.eye(4)
        matrix[0, 3] = number
        frames.append({"file_path": name, "transform_matrix": matrix.tolist()})
    path.write_text(json.dumps({"frames": frames}))
    whole, notes = load(path)
    assert whole.poses[:, 0, 3].tolist() == [1, 3, 0, 2, 4]  # the file's order among equals
    assert notes.warnings == [
        f"{path}: the image name b.png stands for 3 frames (doubled names: 2); among equal names "
        "the file's order is used"
    ]
    whole, notes = load(path, sort="file")
    assert whole.poses[:, 0, 3].tolist() == [0, 1, 2, 3, 4]
    assert len(notes.warnings) == 1


def test_doubled_names_and_numbers_of_colmap_are_warned_about(tmp_path: Path) -> None:
    images = tmp_path / "images.txt"
    images.write_text(f"{IMAGE}\n\n{IMAGE.replace('1 1', '2 1', 1)}\n\n2 1 0 0 0 1 0 0 1 b.png\n")
    _, notes = load(tmp_path)
    assert notes.warnings == [
        f"{images}: IMAGE_ID 2 stands for 2 images; all of them are read as poses of their own",
        f"{images}: the image name a.png stands for 2 frames; among equal names the file's order "
        "is used",
    ]


def test_llff_is_shown_with_its_own_axes() -> None:
    whole, _ = load(FORMATS / "llff_poses_bounds.npy")
    assert whole.source.endswith("(llff, c2w, axes down, right, backwards)")
