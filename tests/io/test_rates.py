"""Frame rates given by people."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanawm.errors import UsageError
from sanawm.io.rates import parse_fps

from .clips import CASES

RATES = json.loads((CASES / "C20_frames_to_mp4" / "fps.json").read_text())


@pytest.mark.parametrize("case", RATES, ids=lambda c: c["fps"])
def test_cases(case: dict[str, object]) -> None:
    if case.get("error"):
        with pytest.raises(UsageError, match="frame rate") as caught:
            parse_fps(str(case["fps"]))
        assert caught.value.fix is not None
    else:
        assert parse_fps(str(case["fps"])) == Fraction(str(case["rate"]))


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        (16, Fraction(16)),
        (29.97, Fraction(30000, 1001)),
        (23.98, Fraction(1199, 50)),  # not within 2 ppm of 24000/1001: taken as written
        (" 24 ", Fraction(24)),
        ("24000 / 1001", Fraction(24000, 1001)),
        (Fraction(2997, 100), Fraction(2997, 100)),
        ("119.88", Fraction(120000, 1001)),
        (".5", Fraction(1, 2)),
    ],
)
def test_values(value: str | int | float | Fraction, rate: Fraction) -> None:
    assert parse_fps(value) == rate


@pytest.mark.parametrize(
    "value", ["", "0", 0, "0.01", "1e9", "1e999999999", "٣", "16:9", "1/2/3", "1_6", "9" * 5000]
)
def test_refused(value: str | int) -> None:
    with pytest.raises(UsageError, match="frame rate"):
        parse_fps(value)


@given(st.fractions(min_value=Fraction(1, 5), max_value=1000, max_denominator=1001))
def test_fractions_stay_exact(rate: Fraction) -> None:
    assert parse_fps(f"{rate.numerator}/{rate.denominator}") == rate
