"""Contact sheet of a clip: one row a block, so that jumps between blocks are easy to see."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sanawm.errors import UsageError

from .files import atomic_write, check_output
from .image import png_bytes

#: Longer side of a thumbnail, pixels.
THUMB_SIDE = 192
#: Rows kept at most; longer clips show every 2nd, 4th, … block, so that memory stays flat.
MAX_ROWS = 64

_GAP = 4
_LABEL_WIDTH = 132
_HEAD_HEIGHT = 40
_LINE_HEIGHT = 15
_BACKGROUND = (24, 24, 28)
_TEXT = (235, 235, 235)
_FAINT = (160, 160, 168)
_BOUNDARY = (255, 150, 30)
_BOUNDARY_HEIGHT = 3


class _Row(NamedTuple):
    """Thumbnails of one block, uint8 `(h, w, 3)` each, and the numbers of their frames."""

    block: int
    first: int
    last: int
    numbers: list[int]
    thumbs: list[np.ndarray]


class ContactSheet:
    """Collect up to `per_row` thumbnails a block and draw them as one PNG.

    The first and the last frame of every block are among them: a boundary lies between the last
    picture of a row and the first of the next. `about` are lines above the pictures that say what
    they show; what does not fit the width is cut off.
    """

    def __init__(self, *, per_row: int = 6, about: Sequence[str] = ()) -> None:
        if per_row < 2:
            raise UsageError(f"{per_row} pictures a row, expected 2 or more (first and last)")
        self._per_row = per_row
        self._about = tuple(about)
        self._rows: list[_Row] = []
        self._stride = 1
        self._blocks = 0
        self._frames = 0

    def add_block(self, block: int, first_frame: int, frames: np.ndarray) -> None:
        """Add the frames of block `block`, uint8 `(T, H, W, 3)`, `first_frame` on.

        Only thumbnails are kept.
        """
        count = len(frames)
        self._blocks += 1
        self._frames += count
        if count == 0 or (self._blocks - 1) % self._stride:
            return
        picks = np.unique(np.rint(np.linspace(0, count - 1, self._per_row)).astype(int))
        row = _Row(
            block,
            first_frame,
            first_frame + count - 1,
            [first_frame + int(i) for i in picks],
            [_thumbnail(frames[i]) for i in picks],
        )
        self._rows.append(row)
        if len(self._rows) > MAX_ROWS:
            self._rows = self._rows[::2]
            self._stride *= 2

    def save(self, path: Path, *, overwrite: bool = False) -> Path:
        """Draw the sheet into the PNG `path` and return it.

        Raises `UsageError` when no block was added, `OutputError` when it cannot be written.
        """
        check_output(path, overwrite=overwrite, suffixes=(".png",))
        if not self._rows:
            raise UsageError(f"{path}: the contact sheet is empty, no block was added")
        pixels = np.asarray(self._draw())
        with atomic_write(path) as temporary:
            temporary.write_bytes(png_bytes(pixels))
        return path

    def _draw(self) -> Image.Image:
        height = max(t.shape[0] for r in self._rows for t in r.thumbs)
        width = max(t.shape[1] for r in self._rows for t in r.thumbs)
        caption = 16
        row_height = height + caption + 2 * _GAP + _BOUNDARY_HEIGHT
        head = _HEAD_HEIGHT + _LINE_HEIGHT * len(self._about)
        size = (
            max(_LABEL_WIDTH + self._per_row * (width + _GAP) + _GAP, 460),
            head + len(self._rows) * row_height + _GAP,
        )
        sheet = Image.new("RGB", size, _BACKGROUND)
        pen = ImageDraw.Draw(sheet)
        large, small = ImageFont.load_default(size=15), ImageFont.load_default(size=11)
        pen.text((_GAP * 2, 6), self._title(), font=large, fill=_TEXT)
        lines = (*self._about, "orange lines are block boundaries")
        for number, line in enumerate(lines):
            fits = _cut(line, small, size[0] - 4 * _GAP)
            pen.text((_GAP * 2, 24 + _LINE_HEIGHT * number), fits, font=small, fill=_FAINT)
        for number, row in enumerate(self._rows):
            top = head + number * row_height
            if number:
                pen.rectangle((0, top, size[0], top + _BOUNDARY_HEIGHT - 1), fill=_BOUNDARY)
            top += _BOUNDARY_HEIGHT + _GAP
            pen.text((_GAP * 2, top), f"block {row.block}", font=large, fill=_TEXT)
            span = (
                f"frames {row.first}-{row.last}" if row.last > row.first else f"frame {row.first}"
            )
            pen.text((_GAP * 2, top + 20), span, font=small, fill=_FAINT)
            for i, (frame, thumb) in enumerate(zip(row.numbers, row.thumbs, strict=True)):
                left = _LABEL_WIDTH + i * (width + _GAP)
                sheet.paste(Image.fromarray(thumb), (left, top))
                pen.text((left, top + height + 2), str(frame), font=small, fill=_FAINT)
        return sheet

    def _title(self) -> str:
        text = f"{self._blocks} blocks, {self._frames} frames"
        return text if self._stride == 1 else f"{text}; one block in {self._stride} is shown"


def _cut(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Return as much of `line` as is at most `width` pixels wide."""
    if font.getlength(line) <= width:
        return line
    fitting = bisect_right(
        range(len(line)), width, key=lambda count: ceil(font.getlength(f"{line[:count]}…"))
    )
    return f"{line[: fitting - 1]}…"


def _thumbnail(pixels: np.ndarray) -> np.ndarray:
    """Return the frame with its longer side at `THUMB_SIDE`; small ones are enlarged blockwise."""
    height, width = pixels.shape[:2]
    scale = THUMB_SIDE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    method = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, method))
