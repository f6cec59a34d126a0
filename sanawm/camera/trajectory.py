"""A camera trajectory: one pose a frame, and what its file knew about lens and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanawm.errors import UsageError

from .framing import ImageSize
from .geometry import Float32, Float64, relative_poses

#: Source size of intrinsics given as fractions of the picture: pixels of a 1x1 picture.
FRACTIONS = ImageSize(1, 1)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Poses of a camera, one a frame: camera-to-world, OpenCV axes (+X right, +Y down, +Z forward).

    `poses` `(F, 4, 4)` float32, in scene units; pose 0 belongs to the first image.
    `intrinsics` `(F, 4)` float32 `fx fy cx cy`, pixels of a picture of `source_size`; without a
    size, pixels of the user's image; with `FRACTIONS`, fractions of its width and height.
    `fov_x_deg` is the angle across the picture's width when the file knows no more than that.
    `timestamps` `(F,)` float64 seconds, as in the file. `format` is the kind of file (or `action`),
    `source` words for messages: where this came from and how it was read.

    Raises `UsageError` for arrays of another shape or with values that are not finite.
    """

    poses: Float32
    intrinsics: Float32 | None = None
    source_size: ImageSize | None = None
    fov_x_deg: float | None = None
    timestamps: Float64 | None = None
    format: str = "array"
    source: str = "an array"

    def __post_init__(self) -> None:
        _check_array("poses", self.poses, (len(self.poses), 4, 4), np.float32)
        frames = len(self.poses)
        if frames == 0:
            raise UsageError(f"{self.source}: no poses", fix="give at least one pose")
        if self.intrinsics is not None:
            _check_array("intrinsics", self.intrinsics, (frames, 4), np.float32)
        if self.timestamps is not None:
            _check_array("timestamps", self.timestamps, (frames,), np.float64)

    def __len__(self) -> int:
        return len(self.poses)

    @property
    def holds_lens(self) -> bool:
        """True when the file knew the lens: in pixels, in fractions, or as an angle."""
        return self.intrinsics is not None or self.fov_x_deg is not None

    def relative(self) -> Float32:
        """Return the poses `(F, 4, 4)` float32 seen from the first one, which is exactly I."""
        return relative_poses(self.poses)


def _check_array(
    name: str, array: object, shape: tuple[int, ...], dtype: type[np.floating]
) -> None:
    """Raise `UsageError` unless `array` has this shape and dtype and is finite."""
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array)
        raise UsageError(
            f"trajectory {name}: found {found}, expected {np.dtype(dtype)} {shape}",
            fix="convert the array before making a Trajectory",
        )
    if not np.isfinite(array).all():
        raise UsageError(
            f"trajectory {name} holds NaN or infinity", fix="remove or repair these frames"
        )
