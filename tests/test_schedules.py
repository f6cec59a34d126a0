"""Sigma and step lists: the published cases, and every rule by its own message."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.errors import UsageError
from sanawm.refiner.sampler import SigmaSchedule
from sanawm.schedules import RELEASED_SIGMAS, RELEASED_STEPS, check_sigmas, check_steps

#: The machine may be busy: no example is too slow.
relaxed = settings(deadline=None)
LISTS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "cases" / "C22_sigma_and_step_lists" / "lists.json").read_text()
)
#: The rule that each refused list breaks, as the message must say it.
RULES = {
    "no_terminal_zero": "must end in 0",
    "not_descending": "strictly descending",
    "duplicate": "strictly descending",
    "above_one": r"first value must lie in \(0, 1\]",
    "negative": "strictly descending",
    "only_zero": "at least one step",
    "empty": "at least one step",
    "nan": "must be finite",
    "no_zero": "must end in 0",
    "float": "whole number",
    "ascending": "must end in 0",
    "over_1000": r"must be 1\.\.1000",
    "double_zero": "strictly descending",
}


def ids(name: str) -> list[Any]:
    return [pytest.param(entry, id=entry["id"]) for entry in LISTS[name]]


@pytest.mark.parametrize("entry", ids("refiner_sigmas"))
def test_published_sigma_lists(entry: dict[str, Any]) -> None:
    if not entry["ok"]:
        with pytest.raises(UsageError, match=RULES[entry["id"]]) as caught:
            check_sigmas(entry["value"])
        assert "0.909375, 0.725, 0.421875, 0.0" in (caught.value.fix or "")
        with pytest.raises(UsageError):
            SigmaSchedule(entry["value"])
        return
    assert list(check_sigmas(entry["value"])) == entry["value"]
    schedule = SigmaSchedule(entry["value"])
    assert len(schedule.steps) == entry["steps"]
    assert list(schedule.sigmas) == [float(np.float32(v)) for v in entry["value"]]


@pytest.mark.parametrize("entry", ids("stage1_steps"))
def test_published_step_lists(entry: dict[str, Any]) -> None:
    values = entry["value"].strip().removesuffix(",").split(",") if entry["value"] else []
    if not entry["ok"]:
        with pytest.raises(UsageError, match=RULES[entry["id"]]) as caught:
            check_steps(values)
        assert "1000, 960, 889, 727, 0" in (caught.value.fix or "")
        return
    found = check_steps(values)
    assert found == (1000, 960, 889, 727, 0)
    assert all(type(v) is int for v in found)
    assert len(found) - 1 == entry["steps"]


def test_released_lists() -> None:
    assert check_sigmas(RELEASED_SIGMAS) == (0.909375, 0.725, 0.421875, 0.0)
    assert check_steps(RELEASED_STEPS) == (1000, 960, 889, 727, 0)
    assert check_sigmas((1.0, 0.0)) == (1.0, 0.0)
    assert check_steps((1, 0)) == (1, 0)


@pytest.mark.parametrize("check", [check_sigmas, check_steps])
@pytest.mark.parametrize("value", [True, None, "high", [0.5], 10**400, 1j])
def test_values_that_are_no_numbers(check: Any, value: Any) -> None:
    with pytest.raises(UsageError, match="every value must be a number"):
        check([value, 0])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_values_that_are_not_finite(value: float) -> None:
    with pytest.raises(UsageError, match="must be finite"):
        check_sigmas([0.9, value, 0.0])
    with pytest.raises(UsageError, match="whole number"):
        check_steps([900, value, 0])


def test_numpy_scalars_are_numbers() -> None:
    assert check_sigmas(np.float32([0.5, 0.25, 0.0])) == (0.5, 0.25, 0.0)
    assert check_steps(np.int32([900, 0])) == (900, 0)


@relaxed
@given(st.lists(st.floats(0.0078125, 1.0, width=32), min_size=1, max_size=12, unique=True))
def test_any_descending_list_is_used_as_it_is(values: list[float]) -> None:
    sigmas = [*sorted(values, reverse=True), 0.0]
    schedule = SigmaSchedule(sigmas)
    assert list(schedule.sigmas) == sigmas
    assert [s.sigma for s in schedule.steps] == sigmas[:-1]
    for step, following in zip(schedule.steps, sigmas[1:], strict=True):
        assert step.ratio == float(np.float32(following) / np.float32(step.sigma))
    assert schedule.steps[-1].ratio == 0.0


@relaxed
@given(st.lists(st.floats(-2, 2) | st.just(0.0), max_size=6))
def test_whatever_is_accepted_keeps_the_rules(values: list[float]) -> None:
    keeps = (
        len(values) >= 2
        and values[-1] == 0
        and 0 < values[0] <= 1
        and all(a > b for a, b in pairwise(values))
    )
    if keeps:
        assert list(check_sigmas(values)) == values
    else:
        with pytest.raises(UsageError, match=r"^sigmas \["):
            check_sigmas(values)


@relaxed
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12, unique=True))
def test_any_descending_step_list_is_accepted(values: list[int]) -> None:
    steps = (*sorted(values, reverse=True), 0)
    assert check_steps(steps) == steps
    with pytest.raises(UsageError, match="strictly descending"):
        check_steps((*steps, 0))
    with pytest.raises(UsageError, match=r"1\.\.1000"):
        check_steps((1001, *steps))
