"""Poses, quaternions and interpolation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.camera import ImageSize, Trajectory
from sanawm.camera.geometry import (
    interpolate_poses,
    invert_poses,
    nearest_rotations,
    quaternions_from_rotations,
    relative_poses,
    rotation_errors,
    rotations_from_quaternions,
)
from sanawm.errors import UsageError

from .places import FORMATS, frame_counts, random_poses, rotation_about, seeds


@given(seeds, frame_counts)
@settings(max_examples=50, deadline=None)
def test_inverse_and_relative(seed: int, frames: int) -> None:
    poses = random_poses(seed, frames)
    np.testing.assert_allclose(invert_poses(poses), np.linalg.inv(poses), atol=1e-12)
    relative = relative_poses(poses)
    assert relative.dtype == np.float32
    np.testing.assert_array_equal(relative[0], np.eye(4))
    np.testing.assert_allclose(relative, np.linalg.inv(poses[0]) @ poses, atol=1e-6)


@given(seeds, seeds)
@settings(max_examples=30, deadline=None)
def test_relative_poses_do_not_see_the_world(seed: int, world: int) -> None:
    poses, frame = random_poses(seed, 5), random_poses(world, 1)[0]
    np.testing.assert_allclose(relative_poses(frame @ poses), relative_poses(poses), atol=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: np.hypot(*q[:2]) > 1e-3))
@settings(max_examples=100, deadline=None)
def test_quaternions_round_trip(values: list[float]) -> None:
    q = np.array([values]) / np.linalg.norm(values)
    back = quaternions_from_rotations(rotations_from_quaternions(q))
    assert back[0, 0] >= 0
    assert min(np.abs(back - q).max(), np.abs(back + q).max()) < 1e-12


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.6, 0, -0.8)])
@pytest.mark.parametrize("angle", [0.0, 1e-7, 1.0, np.pi - 1e-7, np.pi])
def test_quaternions_of_known_turns(axis: tuple[float, ...], angle: float) -> None:
    rotation = rotation_about(np.array(axis), angle)
    q = quaternions_from_rotations(rotation[None])[0]
    expected = np.array([np.cos(angle / 2), *(np.sin(angle / 2) * np.array(axis))])
    assert min(np.abs(q - expected).max(), np.abs(q + expected).max()) < 1e-12
    np.testing.assert_allclose(rotations_from_quaternions(3.0 * q[None])[0], rotation, atol=1e-12)


@pytest.mark.parametrize("frames", [25, 4])
def test_resampling_matches_the_golden(frames: int) -> None:
    golden = np.load(FORMATS / "resample.npz")
    positions = np.arange(frames) * (5 / (frames - 1))
    poses = interpolate_poses(golden["c2w_in"], positions)
    np.testing.assert_allclose(poses, golden[f"c2w_out_{frames}"], rtol=0, atol=1e-12)


@given(seeds, st.integers(2, 6), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_interpolation_keeps_given_poses_and_turns_evenly(
    seed: int, frames: int, share: float
) -> None:
    poses = random_poses(seed, frames, turn=2.5)
    whole = interpolate_poses(poses, np.arange(frames))
    np.testing.assert_allclose(whole, poses, atol=1e-9)
    between = interpolate_poses(poses, np.array([share]))[0]
    assert rotation_errors(between[None, :3, :3])[0] < 1e-12
    total, part = (angle_of(poses[0, :3, :3].T @ p[:3, :3]) for p in (poses[1], between))
    assert part == pytest.approx(share * total, abs=2e-4)  # a chord stands for tiny arcs


def angle_of(rotation: np.ndarray) -> float:
    return float(np.arccos(np.clip((np.trace(rotation) - 1) / 2, -1, 1)))


def test_nearest_rotation_removes_noise() -> None:
    rotations = random_poses(3, 8)[:, :3, :3]
    noisy = rotations + np.random.default_rng(0).normal(size=rotations.shape) * 1e-4
    assert rotation_errors(noisy).max() > 1e-5
    assert rotation_errors(nearest_rotations(noisy)).max() < 1e-12
    np.testing.assert_allclose(nearest_rotations(noisy), rotations, atol=1e-3)


def test_trajectory_refuses_other_arrays() -> None:
    poses = random_poses(0, 3).astype(np.float32)
    assert len(Trajectory(poses)) == 3
    lens = np.full((3, 4), 100, dtype=np.float32)
    Trajectory(poses, lens, ImageSize(64, 32), timestamps=np.arange(3.0))
    for wrong in (
        lambda: Trajectory(poses.astype(np.float64)),
        lambda: Trajectory(poses[:, :3]),
        lambda: Trajectory(poses[:0]),
        lambda: Trajectory(poses * np.float32(np.nan)),
        lambda: Trajectory(poses, lens[:2]),
        lambda: Trajectory(poses, timestamps=np.array([0.0, np.inf, 1.0])),
    ):
        with pytest.raises(UsageError):
            wrong()
