"""Read a picture as RGB and fit it to a target size the way SANA-WM does.

What `read_image` does to the many kinds of pictures:

* the EXIF orientation is applied, so sizes and intrinsics are those of the picture as shown;
* transparency is blended over white, with a warning;
* palette, grey, 1-bit, 16-bit grey and CMYK become 8-bit RGB; colour profiles are not applied
  (as in the public SANA-WM scripts);
* of an animation the first frame is taken, with a warning.
"""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import imageio.v3 as iio
import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.notes import Notes

#: Endings of files that are taken for pictures.
PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
#: What shows through transparent pixels.
BACKGROUND = (255, 255, 255)
#: Cutting more than this share of the picture is worth a warning.
LARGE_CUT = 0.2
#: Pictures of which less than this share would be left are refused: resizing them takes memory
#: without bound.
SMALLEST_KEPT = 0.01


#: What Pillow's readers raise for damaged bytes.
BROKEN = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip


class Fit(NamedTuple):
    """How a picture of `source` size becomes one of `width x height`: resize, then crop.

    `resized_w x resized_h` after the resize, of which the crop starts at (`left`, `top`). Pixels.
    """

    source_w: int
    source_h: int
    resized_w: int
    resized_h: int
    left: int
    top: int
    width: int
    height: int

    @property
    def scale_x(self) -> float:
        """Factor of the resize along x, to move `fx` and `cx`."""
        return self.resized_w / self.source_w

    @property
    def scale_y(self) -> float:
        """Factor of the resize along y, to move `fy` and `cy`."""
        return self.resized_h / self.source_h

    @property
    def cut(self) -> float:
        """Share of the picture's area that the crop removes, 0 .. 1."""
        return 1 - self.width * self.height / (self.resized_w * self.resized_h)


def fit_size(width: int, height: int, target_w: int, target_h: int) -> Fit:
    """Return how a `width x height` picture fits the target: cover it, keep the aspect, centre.

    The scale is the larger of both ratios and the resized size is rounded half to even (Python's
    `round`), never below the target; source: SANA-WM's image loader. Raises `UsageError` for sizes
    below one pixel.
    """
    if min(width, height, target_w, target_h) < 1:
        raise UsageError(
            f"cannot fit a {width}x{height} picture to {target_w}x{target_h}: "
            "expected 1 pixel or more on every side"
        )
    scale = max(target_h / height, target_w / width)
    resized_w = max(target_w, round(width * scale))
    resized_h = max(target_h, round(height * scale))
    left = (resized_w - target_w) // 2
    top = (resized_h - target_h) // 2
    return Fit(width, height, resized_w, resized_h, left, top, target_w, target_h)


def check_size(height: int, width: int, ratio: int) -> None:
    """Raise `UsageError` unless both sides are multiples of `ratio` and two latents or more.

    `ratio` is the VAE's pixels per latent along a side. The message names the nearest valid sizes.
    """
    for name, size in (("height", height), ("width", width)):
        smallest = 2 * ratio
        if size >= smallest and size % ratio == 0:
            continue
        below = max(smallest, size // ratio * ratio)
        nearest = f"{below} or {below + ratio}" if size > smallest else f"{smallest}"
        raise UsageError(
            f"{name} {size} does not fit the VAE: expected a multiple of {ratio}, "
            f"at least {smallest} (two latents)",
            fix=f"use --{name} {nearest}",
        )


def read_image(path: Path, *, notes: Notes) -> np.ndarray:
    """Return the picture in a file, uint8 `(H, W, 3)` RGB, upright.

    Raises `MissingFile` when it cannot be opened and `InputError` when it is broken, no picture, or
    larger than Pillow's limit against decompression bombs (about 179 megapixels).
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns from half its limit on (itself an error), and of tags that it skips.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)
            with Image.open(path) as image:
                return _to_rgb(image, path, notes)
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except IsADirectoryError:
        raise MissingFile(f"{path}: a folder, not a picture") from None
    except PermissionError as error:
        raise MissingFile(f"{path}: cannot be read ({error.strerror})") from None
    except Image.DecompressionBombError as error:
        found, limit, *_ = (*re.findall(r"\d+", str(error)), "?", "?")
        raise InputError(
            f"{path}: the picture is too large: {found} pixels, at most {limit} are read",
            fix="shrink it to about the video's size",
        ) from None
    except UnidentifiedImageError:
        size = path.stat().st_size
        what = "the file is empty" if size == 0 else f"not a picture that can be read ({size} B)"
        raise InputError(f"{path}: {what}", fix="give a PNG or JPEG file") from None
    except InputError:  # a ValueError too, but it has said already what is wrong
        raise
    except BROKEN as error:
        raise InputError(
            f"{path}: the picture is broken or cut short ({error})", fix="fetch the file again"
        ) from None


def _to_rgb(image: Image.Image, path: Path, notes: Notes) -> np.ndarray:
    count = getattr(image, "n_frames", 1)
    if count > 1:
        notes.warn(f"{path}: an animation of {count} pictures; only the first is used")
        image.seek(0)
    image.load()
    upright = ImageOps.exif_transpose(image)
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        notes.info(f"{path}: turned upright as its EXIF data says")
    if upright.mode in ("F", "LAB", "HSV"):
        raise InputError(
            f"{path}: a picture of mode {upright.mode} has no known range",
            fix="save it as 8-bit PNG",
        )
    if upright.mode.startswith("I"):  # 16-bit grey, in one of Pillow's integer modes
        wide = np.asarray(upright, dtype=np.int64)
        if wide.min() < 0 or wide.max() > 65535:
            raise InputError(
                f"{path}: grey values {wide.min()} to {wide.max()}, expected 16 bits (0 to 65535)",
                fix="save it as 8-bit PNG",
            )
        grey = np.rint(wide / 257).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if upright.has_transparency_data:
        return _blend(upright.convert("RGBA"), path, notes)
    return np.array(upright.convert("RGB"))


def _blend(image: Image.Image, path: Path, notes: Notes) -> np.ndarray:
    """Blend over `BACKGROUND`; say so when any pixel lets it through."""
    if np.asarray(image)[..., 3].min() < 255:
        notes.warn(f"{path}: transparent parts are shown over white")
    canvas = Image.new("RGBA", image.size, (*BACKGROUND, 255))
    canvas.alpha_composite(image)
    return np.array(canvas.convert("RGB"))


def fit_image(
    pixels: np.ndarray, *, width: int, height: int, notes: Notes, name: str = "picture"
) -> np.ndarray:
    """Resize (Lanczos) and crop uint8 `(H, W, 3)` to `(height, width, 3)`; see `fit_size`.

    A line in `notes` says what was resized and cut off, a warning when it is more than a fifth.
    Raises `InputError` when less than a hundredth of the picture would be left.
    """
    fit = fit_size(pixels.shape[1], pixels.shape[0], width, height)
    check_fit(fit, notes=notes, name=name)
    return apply_fit(pixels, fit)


def check_fit(fit: Fit, *, notes: Notes, name: str) -> None:
    """Write the lines that `fit_image` owes the user; refuse a fit that leaves next to nothing."""
    if fit.cut > 1 - SMALLEST_KEPT:
        raise InputError(
            f"{name}: of {fit.source_w}x{fit.source_h} only {100 * (1 - fit.cut):.2g} % would be "
            f"left at {fit.width}x{fit.height}",
            fix="crop it to about the target's shape first",
        )
    steps = []
    if (fit.resized_w, fit.resized_h) != (fit.source_w, fit.source_h):
        steps.append(f"resized {fit.source_w}x{fit.source_h} to {fit.resized_w}x{fit.resized_h}")
    if fit.cut > 0:
        steps.append(f"cropped to {fit.width}x{fit.height}: {_percent(fit.cut)} is cut off")
    if steps:
        notes.change(f"{name}: {', '.join(steps)}")
    if fit.cut > LARGE_CUT:
        notes.warn(
            f"{name}: {_percent(fit.cut)} of the picture is cut off to fit {fit.width}x{fit.height}"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


def apply_fit(pixels: np.ndarray, fit: Fit) -> np.ndarray:
    """Return uint8 `(fit.height, fit.width, 3)` from uint8 `(fit.source_h, fit.source_w, 3)`."""
    if (fit.resized_w, fit.resized_h) != (fit.source_w, fit.source_h):
        image = Image.fromarray(pixels)
        pixels = np.asarray(image.resize((fit.resized_w, fit.resized_h), Image.Resampling.LANCZOS))
    crop = pixels[fit.top : fit.top + fit.height, fit.left : fit.left + fit.width]
    return np.ascontiguousarray(crop)


def png_bytes(pixels: np.ndarray) -> bytes:
    """Return uint8 `(H, W, 3)` as the bytes of a PNG file.

    The caller writes them, so that a full disk is an ordinary `OSError`.
    """
    encoded: bytes = iio.imwrite(
        "<bytes>", np.ascontiguousarray(pixels), extension=".png", compress_level=3
    )
    return encoded
