"""How the first image is brought to the target size, and what that does to its intrinsics.

The image is enlarged or reduced with its aspect kept until it covers the target, then cropped in
the middle. Sizes are rounded to even halves as Python's `round` does, so the two axes can be scaled
by slightly different factors; the intrinsics follow each axis (`camera.md`, section 5).
"""

from __future__ import annotations

from typing import NamedTuple

from sanawm.errors import UsageError

from .geometry import Float32


class ImageSize(NamedTuple):
    """Size of a picture in pixels, width first."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


class Framing(NamedTuple):
    """Resize `source` to `resized`, then cut `target` out at `(left, top)`. All in pixels."""

    source: ImageSize
    resized: ImageSize
    left: int
    top: int
    target: ImageSize

    @property
    def cut_share(self) -> float:
        """Share of the image's area that the crop throws away, 0 to 1."""
        kept = self.target.width * self.target.height
        return 1.0 - kept / (self.resized.width * self.resized.height)

    def move_intrinsics(self, intrinsics: Float32) -> Float32:
        """Return `(F, 4)` fx fy cx cy in pixels of `target`, given them in pixels of `source`."""
        scale_x = self.resized.width / self.source.width
        scale_y = self.resized.height / self.source.height
        moved = scale_intrinsics(intrinsics, scale_x, scale_y)
        moved[:, 2] -= self.left
        moved[:, 3] -= self.top
        return moved


def frame_image(source: ImageSize, target: ImageSize) -> Framing:
    """Return how an image of size `source` is resized and cropped to `target`.

    Raises `UsageError` for sizes below one pixel.
    """
    for size in (source, target):
        if size.width < 1 or size.height < 1:
            raise UsageError(
                f"a picture of {size.width}x{size.height} pixels does not exist",
                fix="use a width and a height of at least 1",
            )
    scale = max(target.height / source.height, target.width / source.width)
    width = max(target.width, round(source.width * scale))
    height = max(target.height, round(source.height * scale))
    left, top = (width - target.width) // 2, (height - target.height) // 2
    return Framing(source, ImageSize(width, height), left, top, target)


def scale_intrinsics(intrinsics: Float32, scale_x: float, scale_y: float) -> Float32:
    """Return `(F, 4)` fx fy cx cy with the x axis times `scale_x`, the y axis times `scale_y`."""
    scaled = intrinsics.copy()
    scaled[:, (0, 2)] *= scale_x
    scaled[:, (1, 3)] *= scale_y
    return scaled
