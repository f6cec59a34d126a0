"""Damaged files of every kind: read or refused in words. `python -m tests.bench.fuzz` does more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sanawm.camera import parse_actions
from sanawm.config import resolve
from sanawm.errors import SanawmError
from sanawm.io.files import check_stem
from sanawm.io.rates import parse_fps
from sanawm.locations import HubLocation

from .fuzzing import EDITS, KINDS, TOKENS, Edit, attempt, damage, judge

#: 17 kinds of files of 40 examples, and 5 kinds of texts of 40.
FILES, TEXTS = 40, 40

edits = st.lists(
    st.builds(
        Edit,
        st.sampled_from(EDITS),
        st.floats(0, 1),
        st.sampled_from([0, 1, 2, 3, 8, 64, 300]),
        st.sampled_from(TOKENS) | st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)
#: The same examples in every run: a default suite that finds something new by chance is no help.
steady = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_read_or_refused(
    name: str, tmp_path: Path, record_property: object
) -> None:
    kind = KINDS[name]
    samples = kind.samples()
    count = 0

    @settings(steady, max_examples=FILES)
    @given(st.sampled_from(range(len(samples))), edits)
    def damaged(number: int, changes: list[Edit]) -> None:
        nonlocal count
        count += 1
        sample = samples[number]
        outcome = attempt(kind, sample, damage(sample.data, changes), tmp_path)
        assert not outcome.fault, (sample.name, outcome.fault)

    damaged()
    record_property("damaged inputs", count)  # type: ignore[operator]


@pytest.mark.parametrize("name", KINDS)
def test_the_samples_are_good(name: str, tmp_path: Path) -> None:
    """Undamaged, at least one sample of each kind is read, so that the damage reaches deep code."""
    kind = KINDS[name]
    outcomes = [attempt(kind, sample, sample.data, tmp_path) for sample in kind.samples()]
    assert not [o.fault for o in outcomes if o.fault]
    assert [o for o in outcomes if not o.refused]


def test_a_fault_would_be_found(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    def litters() -> None:
        (tmp_path / "left").touch()

    def silent() -> None:
        raise SanawmError("no name of a file")

    assert judge(broken, tmp_path).fault.startswith("KeyError: 'x'")
    assert "the file is not named" in judge(lambda: _refuse("nothing", 2), tmp_path).fault
    assert "exit code 1" in judge(silent, tmp_path).fault
    assert judge(lambda: _refuse(f"{tmp_path}: bad", 2), tmp_path).fault == ""
    kind = KINDS["prompt"]
    (sample, *_) = kind.samples()
    leaves = type(kind)("leaves", kind.samples, lambda path: litters())
    assert attempt(leaves, sample, sample.data, tmp_path).fault == "files left: ['left']"


def _refuse(message: str, code: int) -> None:
    error = SanawmError(message)
    error.exit_code = code
    raise error


PIECES = (
    "w-24", " ", ",dw-", "1e9", "0.9", "nan", "/", "../", "=", "hf://", "a", "[", "]", '"', "\0",
    "港", "-1", "24000/1001", "@",
)  # fmt: skip
NOISE = st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
#: Readers of what is typed. Their messages repeat it, or name the flag.
READERS = {
    "actions": lambda text: parse_actions(text),
    "rate": lambda text: parse_fps(text),
    "stem": lambda text: check_stem(text),
    "location": lambda text: HubLocation.parse(text),
    "--set": lambda text: resolve(["tiny"], sets=[text]),
}


@pytest.mark.parametrize("name", READERS)
@settings(steady, max_examples=TEXTS)
@given(text=NOISE)
def test_a_typed_value_is_read_or_refused(name: str, text: str) -> None:
    outcome = judge(lambda: READERS[name](text), Path())
    assert not outcome.fault or outcome.fault.startswith("the file is not named"), outcome.fault


@pytest.mark.slow
def test_many_damaged_files(tmp_path: Path) -> None:
    """The bench: 12,000 inputs, the same ones in every run. New ones are for the bench to try."""
    from .bench import fuzz

    assert fuzz.main(12_000, seed=7) == 0
