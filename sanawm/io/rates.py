"""Frame rates as exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction

from sanawm.errors import UsageError

#: Rates outside this range are taken for mistakes. Frames per second.
MIN_FPS = Fraction(1, 10)
MAX_FPS = Fraction(1000)

#: Broadcast rates that people write as rounded decimals: 23.976 means 24000/1001.
_NTSC = tuple(Fraction(n * 1000, 1001) for n in (24, 30, 48, 60, 90, 120, 240))
#: A decimal this close to a broadcast rate (relative) means that rate: 2 parts in a million.
_NTSC_TOLERANCE = Fraction(2, 1_000_000)
#: Largest denominator kept, so that the container's 32-bit time base holds the rate.
_MAX_DENOMINATOR = 100_000

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_RATIO = re.compile(r"([+-]?\d{1,12})\s*/\s*([+-]?\d{1,12})", re.ASCII)
_HINT = "use a number such as 16 or 29.97, or a fraction such as 24000/1001"


def parse_fps(value: str | int | float | Fraction) -> Fraction:
    """Return frames per second as an exact fraction.

    Text is a whole number, a decimal or `a/b`. Decimals within 2 ppm of a broadcast rate give that
    rate (`29.97` -> 30000/1001, `23.976` -> 24000/1001); other decimals are taken as written
    (`12.5` -> 25/2). Raises `UsageError` for zero, negative, not finite, outside 0.1 .. 1000, or
    no number at all.
    """
    rate = value if isinstance(value, Fraction) else _parse(str(value).strip())
    if rate <= 0:
        raise UsageError(f"frame rate {value} is not above zero", fix=_HINT)
    if not MIN_FPS <= rate <= MAX_FPS:
        raise UsageError(
            f"frame rate {value} is out of range: expected {float(MIN_FPS)} to {MAX_FPS} "
            "frames per second",
            fix=_HINT,
        )
    return rate.limit_denominator(_MAX_DENOMINATOR)


def _parse(text: str) -> Fraction:
    ratio = _RATIO.fullmatch(text)
    if ratio:
        top, bottom = int(ratio[1]), int(ratio[2])
        if bottom == 0:
            raise UsageError(f"frame rate {text} divides by zero", fix=_HINT)
        return Fraction(top, bottom)
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        raise UsageError(f"frame rate {text[:40]!a} is no number", fix=_HINT)
    rate = Fraction(text)
    for standard in _NTSC:
        if abs(rate / standard - 1) <= _NTSC_TOLERANCE:
            return standard
    return rate
