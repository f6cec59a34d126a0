"""What the model reads of a camera: goldens of upstream, a plain formula, and invariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.camera import ImageSize, camera_rays
from sanawm.errors import UsageError
from sanawm.shapes import VAERatios

from .places import CAMERA, random_poses, seeds

GOLDEN = np.load(CAMERA / "camera_tensors.npz")
RELEASED = VAERatios(8, 32)
LENS = np.array([[300.0, 310.0, 150.0, 100.0]], dtype=np.float32)


@pytest.mark.parametrize("case", ["f25", "f121", "f1", "f5", "full"])
def test_tensors_match_the_golden(case: str) -> None:
    height, width = (int(side) for side in GOLDEN[f"{case}.hw"])
    rays = camera_rays(
        GOLDEN[f"{case}.c2w"],
        GOLDEN[f"{case}.K"],
        size=ImageSize(width, height),
        ratios=RELEASED,
    )
    raymap, plucker = rays.raymap(), rays.chunk_plucker()
    assert raymap.dtype == plucker.dtype == np.float32
    np.testing.assert_allclose(raymap, GOLDEN[f"{case}.raymap"], rtol=0, atol=2e-5)
    if case == "full":
        assert plucker.shape == tuple(GOLDEN["full.chunk_plucker_shape"])
        rows, columns = GOLDEN["full.sample_yx"].T
        plucker, expected = plucker[:, :, rows, columns], GOLDEN["full.chunk_plucker_samples"]
    else:
        expected = GOLDEN[f"{case}.chunk_plucker"]
    np.testing.assert_allclose(plucker, expected, rtol=0, atol=2e-5)


@given(seeds, st.integers(1, 30), st.sampled_from([(8, 32), (4, 16), (1, 8)]))
@settings(max_examples=25, deadline=None)
def test_one_cell_by_the_plain_formula(seed: int, frames: int, ratio: tuple[int, int]) -> None:
    ratios = VAERatios(*ratio)
    rng = np.random.default_rng(seed)
    poses = random_poses(seed, frames)
    lens = (LENS + rng.uniform(0, 30, (frames, 4))).astype(np.float32)
    size = ImageSize(ratios.space * 5, ratios.space * 3)
    rays = camera_rays(poses.astype(np.float32), lens, size=size, ratios=ratios)
    latent = int(rng.integers(rays.latent_frames))
    slot, x, y = int(rng.integers(ratios.time)), int(rng.integers(5)), int(rng.integers(3))
    first = max(0, ratios.time * latent - (ratios.time - 1))
    frame = min(first + slot, frames - 1)
    pose = np.linalg.inv(poses[0]) @ poses[frame]
    fx, fy, cx, cy = lens[frame].astype(float) / ratios.space
    ray = pose[:3, :3] @ np.array([(x - cx) / fx, (y - cy) / fy, 1.0])
    ray = ray / np.linalg.norm(ray)
    expected = np.concatenate([ray, np.cross(pose[:3, 3], ray)])
    found = rays.chunk_plucker()[6 * slot : 6 * slot + 6, latent, y, x]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    row = rays.raymap()[latent]
    at = min(ratios.time * latent, frames - 1)
    np.testing.assert_allclose(
        row[:16].reshape(4, 4), np.linalg.inv(poses[0]) @ poses[at], atol=2e-6
    )
    np.testing.assert_allclose(row[16:], lens[at] / ratios.space, rtol=1e-6)


def test_chunks_are_slices_of_the_whole() -> None:
    poses = random_poses(1, 49).astype(np.float32)
    lens = np.repeat(LENS, 49, axis=0)
    rays = camera_rays(poses, lens, size=ImageSize(320, 192), ratios=RELEASED)
    raymap, plucker = rays.raymap(), rays.chunk_plucker()
    assert plucker.shape == (48, 7, 6, 10)
    for start, stop in ((0, 4), (4, 7), (3, 3)):
        np.testing.assert_array_equal(rays.raymap(start, stop), raymap[start:stop])
        np.testing.assert_array_equal(rays.chunk_plucker(start, stop), plucker[:, start:stop])
    with pytest.raises(UsageError, match="latent frames 4 to 8 asked, the camera path has 7"):
        rays.chunk_plucker(4, 8)


def test_world_frame_does_not_matter() -> None:
    poses, world = random_poses(1, 9), random_poses(2, 1)[0]
    lens = np.repeat(LENS, 9, axis=0)
    size = ImageSize(64, 64)
    here = camera_rays(poses.astype(np.float32), lens, size=size, ratios=RELEASED)
    there = camera_rays((world @ poses).astype(np.float32), lens, size=size, ratios=RELEASED)
    np.testing.assert_allclose(here.chunk_plucker(), there.chunk_plucker(), atol=1e-5)


def test_wrong_sizes_are_refused() -> None:
    poses = random_poses(1, 9).astype(np.float32)
    with pytest.raises(UsageError, match="9 poses but intrinsics of 1 frames"):
        camera_rays(poses, LENS, size=ImageSize(64, 64), ratios=RELEASED)
    with pytest.raises(UsageError, match="a picture of 64x50 does not divide into cells of 32"):
        camera_rays(poses, np.repeat(LENS, 9, axis=0), size=ImageSize(64, 50), ratios=RELEASED)
