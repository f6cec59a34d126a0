"""Run states: whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sanawm.errors import InputError, MissingFile, OutputError
from sanawm.io.run_state import is_state, load_state, read_recipe, save_state


def example() -> dict[str, object]:
    generator = torch.Generator().manual_seed(1)
    return {
        "block": 3,
        "recipe": {"prompt": "é", "sigmas": [0.9, 0.0], "none": None},
        "refiner": {
            "cache": {"keys": torch.randn(2, 3, generator=generator), "frames": 9},
            "noise": {"generator": torch.Generator().manual_seed(2).get_state()},
        },
        "decoder": {"tail.a.b": torch.randn(2, 2).to(torch.bfloat16), "empty": torch.zeros(0, 4)},
    }


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "out.state"
    state = example()
    assert save_state(path, state) == path.stat().st_size
    assert same(load_state(path), state)
    assert is_state(path)
    assert read_recipe(path)["recipe"] == state["recipe"]
    assert [f.name for f in tmp_path.iterdir()] == ["out.state"]


def test_a_second_save_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "out.state"
    save_state(path, {"block": 1, "x": torch.zeros(4)})
    save_state(path, {"block": 2, "x": torch.ones(4)})
    assert load_state(path)["block"] == 2


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        load_state(tmp_path / "none.state")
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(InputError, match="not a run state"):
        load_state(tmp_path / "plain.safetensors")
    with pytest.raises(OutputError):
        save_state(tmp_path / "gone" / "out.state", {"a": 1})


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_damaged_state_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "out.state"
    state = example()
    save_state(path, state)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"out\.state"):
        load_state(path)
