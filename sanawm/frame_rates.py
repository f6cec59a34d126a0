"""Frame rates of the settings, whose errors say who set them."""

from __future__ import annotations

from fractions import Fraction

from .config import Resolved
from .errors import UsageError
from .io.rates import parse_fps


def rate_of(settings: Resolved, key: str = "video.fps") -> Fraction:
    """Return the frame rate that `key` holds. Raises `UsageError` for one that cannot be."""
    try:
        return parse_fps(settings.get(key))
    except UsageError as e:
        raise UsageError(f"{settings.named(key)}: {e.message}", fix=e.fix) from None
