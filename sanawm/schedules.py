"""Noise schedules: the refiner's sigma list and stage 1's step list. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from numbers import Real

from .errors import UsageError

#: The distilled schedule that the released refiner was trained for.
RELEASED_SIGMAS = (0.909375, 0.725, 0.421875, 0.0)
#: The distilled schedule that the released stage 1 was trained for.
RELEASED_STEPS = (1000, 960, 889, 727, 0)


def check_sigmas(sigmas: Sequence[float]) -> tuple[float, ...]:
    """Return `sigmas` as floats; they must descend from (0, 1] to exactly 0 (`UsageError`)."""
    shown = ", ".join(str(s) for s in sigmas)
    fix = f"use a list such as {', '.join(str(s) for s in RELEASED_SIGMAS)}"
    try:
        values = tuple(_real(s) for s in sigmas)
    except ValueError:
        raise UsageError(f"sigmas [{shown}]: every value must be a number", fix=fix) from None
    if len(values) < 2:
        raise UsageError(f"sigmas [{shown}]: at least one step and the final 0 are needed", fix=fix)
    if not all(math.isfinite(v) for v in values):
        raise UsageError(f"sigmas [{shown}]: every value must be finite", fix=fix)
    if values[-1] != 0.0:
        raise UsageError(f"sigmas [{shown}]: the list must end in 0", fix=fix)
    if any(a <= b for a, b in pairwise(values)):
        raise UsageError(f"sigmas [{shown}]: values must be strictly descending", fix=fix)
    if not 0.0 < values[0] <= 1.0:
        raise UsageError(f"sigmas [{shown}]: the first value must lie in (0, 1]", fix=fix)
    return values


def check_steps(steps: Sequence[float]) -> tuple[int, ...]:
    """Return `steps` as integers; they must descend from 1..1000 to exactly 0 (`UsageError`)."""
    shown = ", ".join(str(s) for s in steps)
    fix = f"use a list such as {', '.join(str(s) for s in RELEASED_STEPS)}"
    try:
        reals = tuple(_real(s) for s in steps)
    except ValueError:
        raise UsageError(f"steps [{shown}]: every value must be a number", fix=fix) from None
    if not all(math.isfinite(v) and v == int(v) for v in reals):
        raise UsageError(f"steps [{shown}]: every value must be a whole number", fix=fix)
    values = tuple(int(v) for v in reals)
    if len(values) < 2:
        raise UsageError(f"steps [{shown}]: at least one step and the final 0 are needed", fix=fix)
    if values[-1] != 0:
        raise UsageError(f"steps [{shown}]: the list must end in 0", fix=fix)
    if any(a <= b for a, b in pairwise(values)):
        raise UsageError(f"steps [{shown}]: values must be strictly descending", fix=fix)
    if not 1 <= values[0] <= 1000:
        raise UsageError(f"steps [{shown}]: values before the final 0 must be 1..1000", fix=fix)
    return values


def _real(value: object) -> float:
    """Return a number, or a text that reads as one, as a float; `ValueError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise ValueError(value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(value) from None
