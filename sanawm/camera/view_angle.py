"""The field of view of a lens on a picture, and the range of it that the model was made for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sanawm.errors import InputError
from sanawm.notes import Notes

from .framing import ImageSize
from .geometry import Float32, Float64

#: Field of view that the release accepts, degrees, both ends excluded.
FOV_RANGE_DEG = (25.0, 120.0)
#: Degrees within which an angle is the end of that range: float32 intrinsics are not exact.
ROUNDING_DEG = 1e-4


def field_of_view(intrinsics: NDArray[np.floating], size: ImageSize) -> Float64:
    """Return the horizontal and vertical field of view in degrees, `(F, 2)`."""
    focal = np.asarray(intrinsics, dtype=np.float64)[:, :2]
    return np.degrees(2.0 * np.arctan(np.array(size) / (2.0 * focal)))


def outside_range(fov: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Tell of each angle in degrees whether it is 25 or less, or 120 or more."""
    low, high = FOV_RANGE_DEG
    return (fov <= low + ROUNDING_DEG) | (fov >= high - ROUNDING_DEG)


def check_field_of_view(
    intrinsics: Float32,
    size: ImageSize,
    *,
    image: tuple[Float32, ImageSize] | None = None,
    angle: float | None = None,
    source: str,
    allow: bool = False,
    notes: Notes,
) -> None:
    """Raise `InputError` when a frame's field of view leaves 25 to 120 degrees; warn with `allow`.

    The angle across and the one upright both count, the ends of the range are excluded.
    `intrinsics` are those on the picture of `size`; for the message, `image` holds the ones before
    the image was resized and cropped, and `angle` the degrees across when the lens was given so.
    """
    low, high = FOV_RANGE_DEG
    fov = field_of_view(intrinsics, size)
    outside = outside_range(fov).any(axis=1)
    if not outside.any():
        return
    frame = int(np.argmax(outside))
    found = f"{fov[frame, 0]:.1f} x {fov[frame, 1]:.1f} degrees on the {size} picture"
    fix = "check that fx fy are pixels of the image file, or give --fov-x DEGREES across it"
    if angle is not None:
        fix = _angles_that_fit(angle, fov[frame], size)
    if image is not None and image[1] != size:
        before = field_of_view(image[0][frame : frame + 1], image[1])[0]
        found += f" ({before[0]:.1f} x {before[1]:.1f} on the {image[1]} image)"
        if low < before.min() and before.max() < high:
            fix = f"give an image of about the shape of {size}: the crop is what narrows the view"
    line = (
        f"{source}: frame {frame}: field of view {found} is outside {low:g} to {high:g} degrees; "
        f"expected both angles, across and upright, above {low:g} and below {high:g}"
    )
    if allow:
        notes.warn(line)
        return
    raise InputError(
        line,
        fix=f"{fix}; --allow-extreme-fov goes on regardless",
    )


def _angles_that_fit(angle: float, fov: Float64, size: ImageSize) -> str:
    """Return the fix for an `angle` across the image that gives `fov` `(2,)` on the picture.

    The tangents of all half angles grow in step with that of `angle`, so the limits follow.
    """
    low, high = np.tan(np.radians(FOV_RANGE_DEG) / 2)
    tangents = np.tan(np.radians(fov) / 2)
    unit = math.tan(math.radians(angle) / 2)
    least = math.degrees(2 * math.atan(unit * low / tangents.min()))
    most = math.degrees(2 * math.atan(unit * high / tangents.max()))
    first, last = math.floor(least + ROUNDING_DEG) + 1, math.ceil(most - ROUNDING_DEG) - 1
    if first > last:
        return f"no angle across keeps both in this range on a picture of {size}: use another size"
    return f"give --fov-x {first} to {last}, with which both angles stay in this range"
