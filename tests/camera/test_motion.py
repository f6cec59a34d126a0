"""The motion in words, warnings about scale, the checks, and the plots."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sanawm.camera import (
    ImageSize,
    Trajectory,
    check_trajectory,
    plot_text,
    plot_trajectory,
    roll_out_actions,
    summarise_motion,
    warn_about_steps,
)
from sanawm.camera.motion import warn_about_jumps
from sanawm.errors import OutputError
from sanawm.notes import Notes

from .places import make_trajectory, random_poses, rotation_about


def words(action: str, **options: object) -> str:
    return "\n".join(summarise_motion(roll_out_actions(action, **options)).lines())  # type: ignore[arg-type]


def test_one_action_gives_its_own_words_only() -> None:
    assert "net move   forward 0.600 (scene units)\nnet turn   none" in words("w-24")
    assert "net move   backwards 0.600 (scene units)" in words("s-24")
    assert "net move   none\nnet turn   right 14.4 degrees (yaw +14.4)" in words("d-24")
    assert "net turn   left 14.4 degrees (yaw -14.4)" in words("a-24")
    assert "net move   right 0.600 (scene units)\nnet turn   none" in words("l-24")
    assert "net move   left 0.600 (scene units)" in words("j-24")
    assert "net turn   up 14.4 degrees (pitch +14.4)" in words("i-24")
    assert "net turn   down 14.4 degrees (pitch -14.4)" in words("k-24")
    assert "net move   right 1.200 (scene units)" in words("d-24", scheme="legacy")
    both = words("wd-24")
    assert "forward 0.59" in both
    assert "right 14.4 degrees" in both


def test_numbers_of_a_summary() -> None:
    summary = summarise_motion(roll_out_actions("w-32,d-16"), fps=16)
    assert summary.frames == 49
    assert summary.path_length == pytest.approx(32 * 0.025, rel=1e-5)
    assert summary.step_median == pytest.approx(0.025, rel=1e-4)
    assert summary.turn_max == pytest.approx(0.6, rel=1e-3)
    assert summary.lines()[0] == "frames     49 (3 s at 16 a second)"
    assert summary.as_dict()["frames"] == 49
    assert summary.fov_x is None


def test_full_turns_are_counted() -> None:
    path = roll_out_actions("a-720", rotation_speed_deg=1.0)
    assert summarise_motion(path).yaw == pytest.approx(-720, abs=0.01)


def test_world_frame_does_not_matter() -> None:
    path = roll_out_actions("wd-24,iw-10")
    world = random_poses(4, 1)[0].astype(np.float32)
    moved = replace(path, poses=world @ path.poses)
    here, there = summarise_motion(path), summarise_motion(moved)
    assert here.lines() == there.lines()


def test_vertical_looks_and_single_poses_do_not_fail() -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    poses[1:, :3, :3] = rotation_about(np.array([1.0, 0, 0]), np.pi / 2)
    summary = summarise_motion(Trajectory(poses))
    assert summary.pitch == pytest.approx(90, abs=1e-3)
    assert summary.yaw == pytest.approx(0, abs=1e-3)
    assert summarise_motion(Trajectory(poses[:1])).lines()[1] == "net move   none"


def test_lens_in_the_summary() -> None:
    lines = summarise_motion(make_trajectory(0, 3, lens=True)).lines()
    assert "lens       field of view 65.2 x 38.9 degrees" in lines
    angle = replace(make_trajectory(0, 3), fov_x_deg=64.0)
    assert "lens       field of view 64.0 degrees across" in summarise_motion(angle).lines()


@pytest.mark.parametrize(
    ("step", "kind", "message"),
    [
        (1.5, "npy", "moves 1.5 scene units a frame, more than 1"),
        (1.5, "action", "moves 1.5 scene units a frame, more than 1"),
        (1e-6, "npy", "moves 1e-06 scene units a frame, less than 1e-05"),
        (1e-6, "action", None),
        (0.05, "npy", None),
    ],
)
def test_scale_warning(step: float, kind: str, message: str | None) -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (9, 1, 1))
    poses[:, 2, 3] = np.arange(9) * step
    notes = Notes()
    warn_about_steps(Trajectory(poses, format=kind), notes=notes)
    assert len(notes.warnings) == (message is not None)
    if message:
        assert message in notes.warnings[0]
        assert "--translation-scale" in notes.warnings[0]


def failed(trajectory: Trajectory) -> list[str]:
    return [check.name for check in check_trajectory(trajectory) if not check.passed]


def test_checks() -> None:
    good = roll_out_actions("wd-48")
    assert failed(good) == []
    assert failed(replace(good, poses=good.poses[:24])) == ["length"]
    jump = good.poses.copy()
    jump[20:, 0, 3] += 5
    assert failed(replace(good, poses=jump)) == ["jumps"]
    found = next(c.found for c in check_trajectory(replace(good, poses=jump)) if c.name == "jumps")
    assert "from frame 19 to 20 the camera jumps 5" in found
    large = good.poses.copy()
    large[:, :3, 3] *= 1000
    assert failed(replace(good, poses=large)) == ["step"]
    narrow = np.tile(np.array([5000, 5000, 320, 180], dtype=np.float32), (49, 1))
    assert failed(replace(good, intrinsics=narrow, source_size=ImageSize(640, 360))) == [
        "field of view"
    ]
    assert failed(replace(good, fov_x_deg=150.0)) == ["field of view"]
    assert failed(replace(good, timestamps=np.zeros(49))) == ["timestamps"]
    timed = check_trajectory(replace(good, timestamps=np.arange(49) / 30))[-1]
    assert timed.passed
    assert "30 poses a second" in timed.found


@pytest.mark.parametrize("action", ["w-72", "d-24", "none-3", "wd-100,iw-40"])
def test_plot_is_a_picture(action: str, tmp_path: Path) -> None:
    path = plot_trajectory(roll_out_actions(action), tmp_path / "plot.png")
    from PIL import Image

    with Image.open(path) as picture:
        assert picture.size == (1280, 660)
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    for wanted in ((0x1A, 0x98, 0x50), (0xD7, 0x30, 0x27)):  # start and end marks
        assert (colours == wanted).all(axis=1).sum() > 20


def test_plot_with_intrinsics_and_bad_folder(tmp_path: Path) -> None:
    lens = make_trajectory(0, 30, lens=True)
    assert plot_trajectory(lens, tmp_path / "a.png", title="日本" * 100).stat().st_size > 1000
    with pytest.raises(OutputError, match="cannot be written"):
        plot_trajectory(lens, tmp_path / "none" / "a.png")


def test_text_plot() -> None:
    assert plot_text(roll_out_actions("w-4"), height=4) == (
        "E\n^\n^\nS\ntop view: S start, E end, signs show where the camera looks; "
        "10 columns = 0.167 scene units"
    )
    assert plot_text(roll_out_actions("d-24")).splitlines()[0] == "S"
    assert "it does not move" in plot_text(roll_out_actions("d-24"))
    lines = plot_text(make_trajectory(5, 200), width=40, height=12).splitlines()
    assert len(lines) <= 13
    assert max(map(len, lines[:-1])) <= 40
    assert "\n".join(lines).isascii()


def test_camera_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys, sanawm.camera; print({'torch', 'matplotlib', 'scipy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"


def test_a_jump_of_a_file_is_warned_about_and_an_action_never() -> None:
    good = roll_out_actions("wd-48")
    poses = good.poses.copy()
    poses[20:, 0, 3] += 86
    notes = Notes()
    warn_about_jumps(replace(good, poses=poses), notes=notes)
    assert notes.warnings == []  # it is an action still
    warn_about_jumps(replace(good, poses=poses, format="npy", source="a.npy"), notes=notes)
    (line,) = notes.warnings
    assert line.startswith("a.npy: from frame 19 to 20 the camera jumps 86")
    assert "frames in the wrong order" in line
