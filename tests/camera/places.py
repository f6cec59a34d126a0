"""Where the fixtures of the camera tests lie, and trajectories made for them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from sanawm.camera import ImageSize, Trajectory, load_trajectory
from sanawm.notes import Notes

TESTS = Path(__file__).parent.parent
CAMERA = TESTS / "golden" / "stage1" / "camera"
FORMATS = TESTS / "golden" / "stage1" / "formats"
DEMO = TESTS / "golden" / "release_demo"
CASES = TESTS / "cases"


def rotation_about(axis: np.ndarray, angle: float) -> np.ndarray:
    """Return Rodrigues' rotation matrix about a unit `axis`."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def random_poses(seed: int, frames: int, *, step: float = 0.1, turn: float = 0.2) -> np.ndarray:
    """Return poses `(frames, 4, 4)` float64 of a random walk that starts anywhere."""
    rng = np.random.default_rng(seed)
    poses = np.tile(np.eye(4), (frames, 1, 1))
    rotation, position = np.eye(3), rng.normal(size=3) * 3
    for frame in range(frames):
        axis = rng.normal(size=3)
        angle = rng.uniform(0, math.pi) if frame == 0 else turn * rng.uniform()
        rotation = rotation @ rotation_about(axis / np.linalg.norm(axis), angle)
        position = position + step * rng.normal(size=3)
        poses[frame, :3, :3], poses[frame, :3, 3] = rotation, position
    return poses


def make_trajectory(
    seed: int, frames: int, *, lens: bool = False, zoom: float = 1.0, size: ImageSize | None = None
) -> Trajectory:
    """Return a random trajectory; with `lens` it has intrinsics that zoom in by `zoom`."""
    picture = size or ImageSize(640, 360)
    rows = None
    if lens:
        focal = 500.0 * np.linspace(1.0, zoom, frames)
        ones = np.ones(frames)
        rows = np.stack([focal, focal * 1.02, 317 * ones, 183 * ones], axis=1).astype(np.float32)
    poses = random_poses(seed, frames).astype(np.float32)
    return Trajectory(poses, rows, picture if lens else None)


seeds = st.integers(0, 2**32 - 1)
frame_counts = st.integers(1, 12)


def load(path: Path, **options: object) -> tuple[Trajectory, Notes]:
    """Return the trajectory in a file and the notes that loading it left."""
    notes = Notes()
    return load_trajectory(path, notes=notes, **options), notes  # type: ignore[arg-type]
