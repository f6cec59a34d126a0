"""Written files: the same relative poses whichever format is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sanawm.camera import FRACTIONS, ImageSize, Trajectory, load_trajectory, save_trajectory
from sanawm.camera.geometry import GL_TO_CV, invert_poses
from sanawm.camera.write import OUTPUT_FORMATS
from sanawm.errors import OutputError, UsageError
from sanawm.notes import Notes

from .places import frame_counts, make_trajectory, seeds

NAMES = {
    "npy": "a.npy",
    "nerfstudio": "a.json",
    "colmap": "model",
    "re10k": "re10k.txt",
    "tum": "tum.txt",
    "kitti": "kitti.txt",
}
SIZE = ImageSize(640, 360)


@given(seeds, frame_counts, st.sampled_from([1.0, 1.7]))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_one_trajectory_in_every_format(
    tmp_path: Path, seed: int, frames: int, zoom: float
) -> None:
    whole = make_trajectory(seed, frames, lens=True, zoom=zoom)
    assert whole.intrinsics is not None
    expected = whole.relative()
    for kind in OUTPUT_FORMATS:
        path = tmp_path / NAMES[kind]
        assert save_trajectory(whole, path, to=kind, overwrite=True, notes=Notes()) == path
        back = load_trajectory(path, image_size=SIZE, notes=Notes())
        assert back.format == kind
        np.testing.assert_allclose(back.relative(), expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(back.poses, whole.poses, rtol=0, atol=2e-6)
        if kind in ("npy", "tum", "kitti"):
            assert back.intrinsics is None
        else:
            np.testing.assert_allclose(back.intrinsics, whole.intrinsics, rtol=1e-6)
        if kind in ("tum", "re10k"):
            np.testing.assert_allclose(back.timestamps, np.arange(frames) / 16, atol=1e-6)


@given(seeds, frame_counts)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_formats_that_are_only_read(tmp_path: Path, seed: int, frames: int) -> None:
    """The same trajectory as LLFF, Blender, viewer path and archive, written here by hand."""
    whole = make_trajectory(seed, frames)
    c2w = whole.poses.astype(np.float64)
    gl = c2w @ GL_TO_CV
    right, down, forward = c2w[:, :3, 0], c2w[:, :3, 1], c2w[:, :3, 2]
    hwf = np.tile(np.array([360.0, 640.0, 500.0]), (frames, 1))
    block = np.stack([down, right, -forward, c2w[:, :3, 3], hwf], axis=2).reshape(frames, 15)
    np.save(tmp_path / "poses_bounds.npy", np.concatenate([block, np.ones((frames, 2))], axis=1))
    np.savez(
        tmp_path / "vggt.npz",
        extrinsic=invert_poses(c2w)[:, :3],
        intrinsic=np.diag([9.0, 9.0, 1.0]),
    )
    matrices = [{"file_path": f"./r_{i}", "transform_matrix": m.tolist()} for i, m in enumerate(gl)]
    blender = {"camera_angle_x": 1.1, "frames": matrices}
    (tmp_path / "transforms_train.json").write_text(json.dumps(blender))
    path = {
        "render_width": 640,
        "render_height": 360,
        "seconds": 2,
        "camera_path": [{"camera_to_world": m.ravel().tolist(), "fov": 40} for m in gl],
    }
    (tmp_path / "camera_path.json").write_text(json.dumps(path))
    for name, kind in (
        ("poses_bounds.npy", "llff"),
        ("vggt.npz", "npz"),
        ("transforms_train.json", "blender"),
        ("camera_path.json", "camera-path"),
    ):
        back = load_trajectory(tmp_path / name, notes=Notes())
        assert back.format == kind
        np.testing.assert_allclose(back.relative(), whole.relative(), rtol=0, atol=1e-5)


def test_format_by_suffix(tmp_path: Path) -> None:
    whole = make_trajectory(1, 3, lens=True)
    for name, kind in (
        ("x.npy", "npy"),
        ("x.json", "nerfstudio"),
        ("model", "colmap"),
        ("m2/images.txt", "colmap"),
    ):
        written = save_trajectory(whole, tmp_path / name, notes=Notes())
        assert load_trajectory(written, notes=Notes()).format == kind
    for name in ("x.txt", "x.csv"):
        with pytest.raises(UsageError, match="does not tell the format") as caught:
            save_trajectory(whole, tmp_path / name, notes=Notes())
        assert "--to npy|nerfstudio|colmap|re10k|tum|kitti" in str(caught.value)
    with pytest.raises(UsageError, match="output format 'bvh' does not exist"):
        save_trajectory(whole, tmp_path / "x", to="bvh", notes=Notes())


def test_npy_is_the_documented_contract(tmp_path: Path) -> None:
    whole = make_trajectory(1, 3)
    save_trajectory(whole, tmp_path / "x.npy", notes=Notes())
    array = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, whole.poses)


def test_existing_files_and_bad_folders(tmp_path: Path) -> None:
    whole = make_trajectory(1, 3, lens=True)
    save_trajectory(whole, tmp_path / "x.npy", notes=Notes())
    with pytest.raises(OutputError, match=r"x.npy exists already") as caught:
        save_trajectory(whole, tmp_path / "x.npy", notes=Notes())
    assert caught.value.exit_code == 5
    save_trajectory(whole, tmp_path / "x.npy", overwrite=True, notes=Notes())
    save_trajectory(whole, tmp_path / "model", notes=Notes())
    with pytest.raises(OutputError, match=r"images.txt exists already"):
        save_trajectory(whole, tmp_path / "model", notes=Notes())
    with pytest.raises(OutputError, match="cannot be written"):
        save_trajectory(whole, tmp_path / "x.npy" / "y.npy", notes=Notes())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "x.npy"]


def test_formats_with_intrinsics_need_them(tmp_path: Path) -> None:
    bare = make_trajectory(1, 3)
    for kind in ("colmap", "re10k"):
        with pytest.raises(UsageError, match=f"{kind} files hold intrinsics") as caught:
            save_trajectory(bare, tmp_path / kind, to=kind, notes=Notes())
        assert "--intrinsics" in str(caught.value)
    notes = Notes()
    save_trajectory(bare, tmp_path / "x.json", notes=notes)
    assert "no intrinsics to write, the file holds poses alone" in notes.warnings[0]
    assert load_trajectory(tmp_path / "x.json", notes=Notes()).intrinsics is None
    notes = Notes()
    save_trajectory(make_trajectory(1, 3, lens=True), tmp_path / "k", to="kitti", notes=notes)
    assert "kitti files hold no intrinsics" in notes.infos[0]


def test_pictures_of_unknown_size(tmp_path: Path) -> None:
    whole = make_trajectory(1, 3, lens=True)
    unknown = replace(whole, source_size=None)
    notes = Notes()
    save_trajectory(unknown, tmp_path / "a.json", notes=notes)
    assert "the picture's size is not known; 634x366 is written" in notes.warnings[0]
    save_trajectory(unknown, tmp_path / "b.json", size=SIZE, notes=notes)
    back = load_trajectory(tmp_path / "b.json", notes=Notes())
    assert back.source_size == SIZE
    shares = replace(
        whole,
        intrinsics=np.tile(np.array([0.5, 0.9, 0.5, 0.5], dtype=np.float32), (3, 1)),
        source_size=FRACTIONS,
    )
    with pytest.raises(UsageError, match="fractions of a picture of unknown size"):
        save_trajectory(shares, tmp_path / "c.json", notes=notes)
    save_trajectory(shares, tmp_path / "c.json", size=SIZE, notes=notes)
    save_trajectory(shares, tmp_path / "c.txt", to="re10k", notes=notes)
    for name in ("c.json", "c.txt"):
        back = load_trajectory(tmp_path / name, image_size=SIZE, notes=Notes())
        assert back.intrinsics is not None
        np.testing.assert_allclose(back.intrinsics[0], [320, 324, 320, 180], rtol=1e-6)
    angle = Trajectory(whole.poses, fov_x_deg=90.0)
    save_trajectory(angle, tmp_path / "d.json", size=SIZE, notes=notes)
    back = load_trajectory(tmp_path / "d.json", notes=Notes())
    assert back.intrinsics is not None
    np.testing.assert_allclose(back.intrinsics[0], [320, 320, 320, 180], rtol=1e-6)


def test_times_that_a_format_cannot_hold_are_said(tmp_path: Path) -> None:
    whole = make_trajectory(1, 9)
    words = "npy files hold no times: those of an array are left out"
    for rate, kind, said in ((30, "npy", [words]), (16, "npy", []), (30, "tum", [])):
        notes = Notes()
        timed = replace(whole, timestamps=5.0 + np.arange(9) / rate)
        save_trajectory(timed, tmp_path / f"{rate}.{kind}", to=kind, notes=notes)
        assert notes.infos == said
