"""Frame counts, snapping, and one pose for each frame of a clip."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.camera import Trajectory, fit_to_clip, load_trajectory, plan_frames, poses_available
from sanawm.errors import InputError, UsageError
from sanawm.notes import Notes
from sanawm.shapes import snap_frames

from .places import CAMERA, CASES, make_trajectory, random_poses, seeds

SNAP = json.loads((CAMERA / "snap.json").read_text())["rows"]
C06 = [
    (241, 50, 49, 49),
    (241, 1, 1, 1),
    (241, 242, 241, 241),
    (100, 242, 97, 97),
    (240, 242, 241, 241),
    (13, 242, 25, 17),
    (37, 242, 49, 41),
    (36, 242, 25, 33),
    (25, 242, 25, 25),
    (0, 242, 1, 1),
]


def test_snapping_matches_the_golden() -> None:
    assert len(SNAP) > 100
    for stride, asked, upper, snapped in SNAP:
        assert snap_frames(asked, stride, upper) == snapped, (stride, asked, upper)


@given(st.integers(1, 2000), st.sampled_from([8, 24]), st.none() | st.integers(1, 2000))
def test_snapping_is_nearest_and_never_above(asked: int, stride: int, upper: int | None) -> None:
    wanted = asked if upper is None else min(asked, upper)
    snapped = snap_frames(wanted, stride, upper)
    allowed = [n for n in range(1, 2100, stride) if upper is None or n <= upper]
    best = min(abs(n - wanted) for n in allowed)
    assert snapped == max(n for n in allowed if abs(n - wanted) == best)


@pytest.mark.parametrize(("asked", "poses", "streaming", "plain"), C06)
def test_c06_table(asked: int, poses: int, streaming: int, plain: int) -> None:
    for stride, used in ((24, streaming), (8, plain)):
        assert snap_frames(min(asked, poses), stride, poses) == used
        notes = Notes()

        def plan(stride: int = stride, notes: Notes = notes) -> int:
            return plan_frames(asked, poses=poses, stride=stride, explicit=False, notes=notes)

        if used <= 1:
            with pytest.raises(UsageError, match=str(stride + 1)):
                plan()
            continue
        assert plan() == used
        assert len(notes.changes) == (used != asked)
        for number in {asked, used} if used != asked else ():
            assert f"{number} " in notes.changes[0]


def test_change_of_count_names_the_rule_and_both_neighbours() -> None:
    notes = Notes()
    assert plan_frames(100, poses=None, stride=24, notes=notes) == 97
    assert notes.changes == [
        "100 frames asked: 97 are made, a clip has 24*k + 1 frames (nearest: 97 and 121)"
    ]


def test_a_path_as_long_as_the_clip_is_enough_for_a_few_frames_more() -> None:
    """50 frames make a clip of 49 whatever the path: one of 49 poses does for it."""
    notes = Notes()
    assert plan_frames(50, poses=49, stride=24, notes=notes) == 49
    assert notes.changes == [
        "50 frames asked, the camera path gives 49 poses: 49 frames are made (24*k + 1 frames)"
    ]


@pytest.mark.parametrize(
    ("asked", "poses", "message"),
    [
        (241, 50, "241 frames asked, but the camera path gives 50 poses"),
        (241, 24, "241 frames asked, but the camera path gives 24 poses: a clip needs at least 25"),
        (0, 242, "0 frames asked, expected at least 25"),
        (-5, None, "-5 frames asked, expected at least 25"),
        (10, 242, "10 frames asked, less than one block"),
        (1, None, "1 frames asked, less than one block"),
    ],
)
def test_impossible_counts_are_refused(asked: int, poses: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        plan_frames(asked, poses=poses, stride=24, notes=Notes())
    assert caught.value.exit_code == 2
    assert caught.value.fix


def test_longer_path_gives_its_first_frames() -> None:
    path = CASES / "C06_camera_short" / "F242.npy"
    whole = load_trajectory(path, notes=Notes())
    notes = Notes()
    clip = fit_to_clip(whole, 241, notes=notes)
    np.testing.assert_array_equal(clip.poses, whole.poses[:241])
    assert len(notes.infos) == 1
    assert "242 poses, the first 241 are used" in notes.infos[0]


def test_shorter_path_needs_an_option() -> None:
    whole = make_trajectory(1, 50, lens=True)
    with pytest.raises(UsageError, match="the path gives 50 poses, the clip has 241") as caught:
        fit_to_clip(whole, 241, notes=Notes())
    assert "--hold-last" in str(caught.value)
    assert poses_available(whole) == 50
    assert poses_available(whole, hold_last=True) is None
    assert poses_available(whole, resample="clip") is None


def test_hold_last_repeats_the_last_pose() -> None:
    whole = make_trajectory(1, 50, lens=True, zoom=2.0)
    notes = Notes()
    clip = fit_to_clip(whole, 97, hold_last=True, notes=notes)
    np.testing.assert_array_equal(clip.poses[:50], whole.poses)
    np.testing.assert_array_equal(clip.poses[50:], np.repeat(whole.poses[-1:], 47, axis=0))
    assert clip.intrinsics is not None
    assert whole.intrinsics is not None
    np.testing.assert_array_equal(clip.intrinsics[96], whole.intrinsics[-1])
    assert len(notes.changes) == 1
    assert len(fit_to_clip(whole, 25, hold_last=True, notes=Notes())) == 25


@given(seeds, st.integers(2, 40), st.sampled_from([1, 25, 49]))
@settings(max_examples=30, deadline=None)
def test_resample_clip_keeps_both_ends(seed: int, poses: int, frames: int) -> None:
    whole = make_trajectory(seed, poses, lens=True, zoom=1.5)
    clip = fit_to_clip(whole, frames, resample="clip", notes=Notes())
    assert len(clip) == frames
    assert clip.intrinsics is not None
    assert whole.intrinsics is not None
    np.testing.assert_allclose(clip.poses[0], whole.poses[0], atol=1e-6)
    if frames > 1:
        np.testing.assert_allclose(clip.poses[-1], whole.poses[-1], atol=1e-6)
        np.testing.assert_allclose(clip.intrinsics[-1], whole.intrinsics[-1], rtol=1e-6)
    assert len(fit_to_clip(Trajectory(whole.poses[:1]), frames, resample="clip", notes=Notes())) > 0


def test_resample_time_reads_the_path_at_the_clip_rate() -> None:
    """A path at 8 poses a second gives 2 frames a pose at 16, at any time offset."""
    poses = random_poses(5, 13).astype(np.float32)
    whole = Trajectory(poses, timestamps=100.0 + np.arange(13) / 8)
    assert poses_available(whole, resample="time", fps=16) == 25
    notes = Notes()
    clip = fit_to_clip(whole, 25, resample="time", fps=16, notes=notes)
    np.testing.assert_allclose(clip.poses[::2], poses, atol=1e-6)
    middle = (poses[:-1, :3, 3] + poses[1:, :3, 3]) / 2
    np.testing.assert_allclose(clip.poses[1::2, :3, 3], middle, atol=1e-6)
    assert "13 poses over 1.5 s read at 16 frames a second" in notes.changes[0]
    with pytest.raises(UsageError, match="the path gives 25 frames at 16 a second"):
        fit_to_clip(whole, 26, resample="time", fps=16, notes=Notes())
    held = fit_to_clip(whole, 31, resample="time", hold_last=True, fps=16, notes=notes)
    np.testing.assert_allclose(held.poses[24:], np.repeat(poses[-1:], 7, axis=0), atol=1e-6)
    assert "held for 6 of them" in notes.changes[-1]


def test_resample_time_needs_increasing_timestamps() -> None:
    poses = random_poses(5, 4).astype(np.float32)
    with pytest.raises(InputError, match="no timestamps to sample by"):
        fit_to_clip(Trajectory(poses), 3, resample="time", notes=Notes())
    stuck = Trajectory(poses, timestamps=np.array([0.0, 0.1, 0.1, 0.2]))
    with pytest.raises(InputError, match=r"timestamp of frame 2 \(0.1 s\) is not after that of"):
        fit_to_clip(stuck, 3, resample="time", notes=Notes())


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        fit_to_clip(make_trajectory(0, 5), 9, hold_last=True, resample="clip", notes=Notes())


def test_scale_of_the_clip_is_checked() -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (49, 1, 1))
    poses[:, 2, 3] = np.minimum(np.arange(49), 12) * 2.0  # 2 units a frame, then standing still
    notes = Notes()
    fit_to_clip(Trajectory(poses), 49, notes=notes)
    assert "the camera moves 2 scene units a frame, more than 1" in notes.warnings[0]
    notes = Notes()
    fit_to_clip(Trajectory(poses[:13]), 97, resample="clip", notes=notes)  # 0.25 units a frame
    assert not notes.warnings
    small = poses[:13].copy()
    small[:, 2, 3] /= 40
    fit_to_clip(Trajectory(small), 97, hold_last=True, notes=notes)
    assert not notes.warnings


def test_no_clip_is_longer_than_an_action_string_can_be() -> None:
    path = Trajectory(np.tile(np.eye(4, dtype=np.float32), (25, 1, 1)))
    with pytest.raises(UsageError, match="a clip of 1000001 frames, expected at most 1000000"):
        fit_to_clip(path, 1_000_001, hold_last=True, notes=Notes())


def test_without_a_length_it_is_all_that_the_path_gives() -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (31, 1, 1))
    path = Trajectory(poses, timestamps=np.arange(31) / 10)  # 3 s
    assert len(fit_to_clip(path, None, fps=10, notes=Notes())) == 31
    assert len(fit_to_clip(path, None, resample="time", fps=16, notes=Notes())) == 49
    with pytest.raises(UsageError, match="--hold-last needs the length of the clip"):
        fit_to_clip(path, None, hold_last=True, notes=Notes())
    with pytest.raises(UsageError, match="--resample clip needs the length of the clip"):
        fit_to_clip(path, None, resample="clip", notes=Notes())


def test_times_that_are_not_followed_are_said_once() -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (49, 1, 1))
    poses[:, 2, 3] = 0.025 * np.arange(49)
    at_30 = Trajectory(poses, timestamps=7.0 + np.arange(49) / 30, format="tum", source="a.txt")
    notes = Notes()
    for frames in (49, 25):
        fit_to_clip(at_30, frames, notes=notes)
    (line,) = [line for line in notes.infos if "times" in line]
    assert line == (
        "a.txt: at 16 a second its 49 poses take 3 s; the file's own times (1.6 s) are not "
        "followed, --resample time does"
    )
    quiet = Notes()
    fit_to_clip(at_30, 25, resample="time", notes=quiet)
    fit_to_clip(at_30, 49, resample="clip", notes=quiet)
    fit_to_clip(at_30, 49, fps=30, notes=quiet)
    fit_to_clip(Trajectory(poses, timestamps=np.zeros(49)), 49, notes=quiet)
    assert not quiet.infos


def test_a_time_that_goes_back_is_shown_with_all_its_digits() -> None:
    poses = random_poses(5, 2).astype(np.float32)
    back = Trajectory(poses, timestamps=np.array([1305031102.175304, 1305031102.175204]))
    with pytest.raises(InputError) as caught:
        fit_to_clip(back, 2, resample="time", notes=Notes())
    assert "frame 1 (1305031102.175204 s) is not after that of frame 0 (1305031102.175304 s)" in (
        caught.value.message
    )
