"""RoPE against complex numbers, and the properties that the cache relies on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sanawm.errors import UsageError
from sanawm.ops.rope import (
    RopeKind,
    RopeTable,
    apply_rope,
    check_rope_kind,
    frequencies,
    rotate_into,
    table_from_fractions,
)

KINDS: tuple[RopeKind, ...] = ("split", "interleaved")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_table(heads: int, tokens: int, pairs: int) -> RopeTable:
    angles = 10 * random(heads, tokens, pairs, seed=9)
    return RopeTable(angles.cos(), angles.sin())


def as_complex(x: Tensor, kind: RopeKind) -> Tensor:
    """Return the pairs of `x` as complex numbers, in float64."""
    x = x.double()
    half = x.shape[-1] // 2
    if kind == "split":
        return torch.complex(x[..., :half], x[..., half:])
    return torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous())


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_is_a_complex_product(kind: RopeKind) -> None:
    x, table = random(2, 3, 5, 8), random_table(3, 5, 4)
    turn = torch.complex(table.cos.double(), table.sin.double())
    found = as_complex(apply_rope(x, table, kind), kind)
    assert (found - as_complex(x, kind) * turn).abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_into_a_slice_of_a_buffer(kind: RopeKind) -> None:
    """Equal to the plain call bit for bit, and nothing outside the slice is touched."""
    x, table = random(2, 3, 5, 8), random_table(3, 5, 4)
    buffer = torch.full((2, 3, 11, 8), 7.0)
    out = rotate_into(buffer[:, :, 4:9], x, table, kind)
    assert torch.equal(buffer[:, :, 4:9], apply_rope(x, table, kind))
    assert out.data_ptr() == buffer[:, :, 4:9].data_ptr()
    assert (buffer[:, :, :4] == 7).all()
    assert (buffer[:, :, 9:] == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_rotated_in_float32_and_rounded_once(kind: RopeKind) -> None:
    x, table = random(1, 3, 5, 8).bfloat16(), random_table(3, 5, 4)
    found = apply_rope(x, table, kind)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, apply_rope(x.float(), table, kind).bfloat16())


@pytest.mark.parametrize("kind", KINDS)
def test_input_is_left_alone_whatever_its_strides(kind: RopeKind) -> None:
    x = random(2, 5, 3, 8).transpose(1, 2)
    table, before = random_table(3, 5, 4), x.clone()
    found = apply_rope(x, table, kind)
    assert torch.equal(x, before)
    assert torch.equal(found, apply_rope(x.contiguous(), table, kind))


@settings(max_examples=50, deadline=None)
@given(shift=st.integers(0, 200), q=st.integers(0, 60), k=st.integers(0, 60))
def test_scores_depend_on_the_distance_only(shift: int, q: int, k: int) -> None:
    """Why the sink may be moved: only relative positions enter the scores."""
    freqs = frequencies(4, theta=100.0, double=True)

    def score(a: int, b: int) -> float:
        tables = [
            table_from_fractions(torch.tensor([[p / 100.0]]), freqs, heads=1, width=8)
            for p in (a, b)
        ]
        x, y = (apply_rope(random(1, 1, 1, 8, seed=i), t, "split") for i, t in enumerate(tables))
        return float((x * y).sum())

    assert score(q, k) == pytest.approx(score(q + shift, k + shift), abs=2e-3)


def test_frequencies_are_equally_spaced_powers() -> None:
    found = frequencies(5, theta=10000.0, double=True)
    expected = [math.pi / 2 * 10 ** (j) for j in range(5)]
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, rel=1e-7)
    single = frequencies(5, theta=10000.0, double=False)
    assert single.tolist() == pytest.approx(expected, rel=1e-5)


def test_angles_run_with_the_axis_fastest_behind_the_pairs_that_stand_still() -> None:
    freqs = torch.tensor([1.0, 10.0])
    fractions = torch.tensor([[0.5, 0.6, 0.7]])  # 2p - 1 = 0, 0.2, 0.4
    table = table_from_fractions(fractions, freqs, heads=2, width=16)
    angles = [0.0, 0.0, 0.0, 0.2, 0.4, 0.0, 2.0, 4.0]  # two stand still, then 3j + axis
    assert table.cos.shape == table.sin.shape == (2, 1, 4)
    assert table.sin.flatten().tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-6)
    assert table.cos.flatten().tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-6)


def test_unknown_pairing_is_named() -> None:
    for kind in KINDS:
        check_rope_kind(kind, where="x.json")
    with pytest.raises(
        UsageError, match=r"x\.json: rope_type 'axial' is unknown; expected 'split'"
    ):
        check_rope_kind("axial", where="x.json")
