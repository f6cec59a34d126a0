"""The camera of a clip that is still being steered: a path that grows while the clip is made.

Latent frame t needs the poses of pixel frames up to `ratio * t` and no later ones (`camera.md`,
section 6), so a chunk can be made as soon as its own poses are there. What was made of a path that
grew equals what is made of the same path given in advance.
"""

from __future__ import annotations

import numpy as np

from sanawm.errors import UsageError
from sanawm.shapes import VAERatios

from .framing import ImageSize
from .geometry import Float32, rotation_errors
from .rays import CameraRays, camera_rays

#: Largest `max |R R^T - I|` of a matrix that still counts as a rotation.
_ROTATION_TOLERANCE = 1e-3


class LiveRays:
    """`CameraRays` of a growing path. Poses are kept (64 bytes a frame): they are the clip's path.

    intrinsics: `(4,)` fx fy cx cy in pixels of the target picture of `size`, for every frame.
    """

    def __init__(self, intrinsics: Float32, *, size: ImageSize, ratios: VAERatios) -> None:
        self._lens = np.asarray(intrinsics, dtype=np.float32).reshape(1, 4)
        self._size, self._ratios = size, ratios
        self._poses = np.empty((0, 4, 4), dtype=np.float32)
        self._rays: CameraRays | None = None

    @property
    def poses(self) -> Float32:
        """The path so far, `(F, 4, 4)` camera-to-world, OpenCV axes, as it was given."""
        return self._poses

    def append(self, poses: Float32) -> None:
        """Add poses `(n, 4, 4)`; the first pose ever added is that of the first image.

        Raises `UsageError`, with the path unchanged, for anything that is no rigid pose.
        """
        given = np.asarray(poses, dtype=np.float32)
        if given.ndim != 3 or given.shape[1:] != (4, 4) or not len(given):
            raise UsageError(f"camera poses have shape {given.shape}, expected (n, 4, 4)")
        if not np.isfinite(given).all():
            raise UsageError("camera poses hold NaN or infinity")
        rigid = np.allclose(given[:, 3], (0, 0, 0, 1)) and np.all(np.linalg.det(given) > 0)
        if not rigid or rotation_errors(given[:, :3, :3]).max() > _ROTATION_TOLERANCE:
            raise UsageError(
                "a camera pose is no rotation and translation",
                fix="give camera-to-world matrices with a last row of 0 0 0 1",
            )
        self._poses = np.concatenate([self._poses, given])
        self._rays = None

    def raymap(self, start: int, stop: int) -> Float32:
        """Return `(t, 20)` for latent frames `start .. stop - 1` (see `CameraRays.raymap`)."""
        return self._up_to(stop).raymap(start, stop)

    def chunk_plucker(self, start: int, stop: int) -> Float32:
        """Return `(6 * ratio, t, h, w)` for these latent frames (see `CameraRays`)."""
        return self._up_to(stop).chunk_plucker(start, stop)

    def _up_to(self, stop: int) -> CameraRays:
        """Return the rays of the path so far; raise `UsageError` when it is too short."""
        needed, found = self._ratios.frames_of(stop), len(self._poses)
        if found < needed:
            raise UsageError(
                f"the next chunk needs {needed} camera poses from the start on, "
                f"the path has {found}",
                fix=f"append {needed - found} more",
            )
        if self._rays is None:
            lens = np.repeat(self._lens, found, axis=0)
            self._rays = camera_rays(self._poses, lens, size=self._size, ratios=self._ratios)
        return self._rays
