"""What the video model receives of the camera: raymap and Pluecker rays per latent frame.

| what | precision |
|---|---|
| poses relative to frame 0 | float64, then float32 |
| intrinsics on the latent grid, raymap | float32 |
| rays | float64 for a few latent frames at a time, then float32 |

Formulas: `camera.md`, section 6. The released VAE has ratios 8 in time and 32 in space; another
VAE's ratios `(r, s)` take their place. Torch-free: the model casts these arrays to its own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanawm.errors import UsageError
from sanawm.shapes import VAERatios

from .framing import ImageSize, scale_intrinsics
from .geometry import Float32, relative_poses


@dataclass(frozen=True, eq=False)
class CameraRays:
    """The camera of a clip in the form the model reads, latent frame by latent frame.

    `relative` `(F, 4, 4)` and `grid_intrinsics` `(F, 4)`, float32; `grid` is the latent grid, width
    and height in cells; `ratio` the pixel frames of a latent frame.
    """

    relative: Float32
    grid_intrinsics: Float32
    grid: ImageSize
    ratio: int

    @property
    def latent_frames(self) -> int:
        """Latent frames T of the clip: `(F - 1) // ratio + 1`."""
        return (len(self.relative) - 1) // self.ratio + 1

    def raymap(self, start: int = 0, stop: int | None = None) -> Float32:
        """Return `(t, 20)` for latent frames `start .. stop - 1`.

        16 numbers of the pose of pixel frame `ratio * t`, row by row, then its grid intrinsics.
        """
        latents = self._latents(start, stop)
        poses = self.relative[latents * self.ratio].reshape(-1, 16)
        return np.concatenate([poses, self.grid_intrinsics[latents * self.ratio]], axis=1)

    def chunk_plucker(self, start: int = 0, stop: int | None = None) -> Float32:
        """Return Pluecker rays `(6 * ratio, t, h, w)` for latent frames `start .. stop - 1`.

        Latent 0 looks at pixel frames `0 .. ratio - 1`, latent t at the `ratio` frames that end at
        `ratio * t`; beyond the clip the last pose is repeated. Channel `6 * f + c` is component c
        of (direction x y z, moment x y z) of frame f of the group, at cells x = 0 .. w-1,
        y = 0 .. h-1.
        """
        latents = self._latents(start, stop)
        width, height = self.grid
        rays = np.empty((6 * self.ratio, len(latents), height, width), dtype=np.float32)
        for column, latent in enumerate(latents):
            first = max(0, self.ratio * int(latent) - (self.ratio - 1))
            frames = np.minimum(first + np.arange(self.ratio), len(self.relative) - 1)
            rays[:, column] = self._rays_of(frames).reshape(-1, height, width)
        return rays

    def _latents(self, start: int, stop: int | None) -> np.ndarray:
        """Return the latent indices asked for; raise `UsageError` outside the clip."""
        end = self.latent_frames if stop is None else stop
        if not 0 <= start <= end <= self.latent_frames:
            raise UsageError(
                f"latent frames {start} to {end} asked, the camera path has {self.latent_frames}"
            )
        return np.arange(start, end)

    def _rays_of(self, frames: np.ndarray) -> np.ndarray:
        """Return direction and moment `(f, 6, h, w)` of each grid cell in pixel frames `frames`."""
        width, height = self.grid
        poses = self.relative[frames].astype(np.float64)
        fx, fy, cx, cy = self.grid_intrinsics[frames].astype(np.float64).T[:, :, None, None]
        y, x = np.mgrid[:height, :width]  # integer cells: no half-pixel shift anywhere
        ones = np.ones((len(frames), height, width))
        in_camera = np.stack([(x - cx) / fx * ones, (y - cy) / fy * ones, ones], axis=1)
        direction = np.einsum("fij,fjhw->fihw", poses[:, :3, :3], in_camera)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        origin = np.broadcast_to(poses[:, :3, 3, None, None], direction.shape)
        return np.concatenate([direction, np.cross(origin, direction, axis=1)], axis=1)


def camera_rays(
    poses: Float32, intrinsics: Float32, *, size: ImageSize, ratios: VAERatios
) -> CameraRays:
    """Return the model's view of a camera.

    `poses` `(F, 4, 4)` camera-to-world, OpenCV axes, in any common world; `intrinsics` `(F, 4)`
    `fx fy cx cy` in pixels of the target picture of `size`.

    Raises `UsageError` when the two differ in length or `size` is no multiple of the VAE's ratio.
    """
    if len(poses) != len(intrinsics):
        raise UsageError(
            f"{len(poses)} poses but intrinsics of {len(intrinsics)} frames",
            fix="fit the intrinsics to the clip first",
        )
    if size.width % ratios.space or size.height % ratios.space:
        raise UsageError(
            f"a picture of {size} does not divide into cells of {ratios.space} pixels",
            fix=f"use multiples of {ratios.space}",
        )
    grid = ImageSize(size.width // ratios.space, size.height // ratios.space)
    scaled = scale_intrinsics(
        intrinsics.astype(np.float32), grid.width / size.width, grid.height / size.height
    )
    return CameraRays(relative_poses(poses), scaled, grid, ratios.time)
