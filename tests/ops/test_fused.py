"""Every cheaper form equals the plain one; compiled functions make few graphs and no breaks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.ops import compiler, fused
from sanawm.ops.attention import split_heads
from sanawm.ops.compiler import CompileLog
from sanawm.ops.fused import EAGER, PLAIN, BlockOps, WideNorm
from sanawm.ops.norm import rms_norm
from sanawm.ops.rope import RopeKind, RopeTable, halves, rotate_into
from tests.refiner.stream_cases import clip, make, run

DTYPES = [torch.float32, torch.bfloat16]
#: Another order of summation; in bfloat16 that is a rounding step at most.
TOLERANCE = {
    torch.float32: {"atol": 1e-6, "rtol": 2e-6},
    torch.bfloat16: {"atol": 1e-6, "rtol": 0.008},
}
KINDS: tuple[RopeKind, ...] = ("split", "interleaved")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 7, 48), (2, 33, 64), (1, 1, 1024), (1, 0, 8)])
def test_the_norm_by_batch_norm_is_bit_equal_to_scaling(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = random(*shape, dtype=dtype)
    found = EAGER.norm(x, None, 1e-6)
    assert torch.equal(found, (x * torch.rsqrt(fused._mean_square(x) + 1e-6)).to(dtype))
    torch.testing.assert_close(found, rms_norm(x, eps=1e-6), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_a_part_with_a_weight(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "ROW_VALUES", 4 * 32)  # 9 rows in slices of 4
    x, weight = random(2, 9, 96, dtype=dtype)[..., 32:64], random(32, seed=1)
    found, expected = EAGER.norm(x, weight, 1e-6), rms_norm(x, eps=1e-6, weight=weight)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


def test_tiny_rows_keep_their_eps() -> None:
    x = torch.full((1, 2, 4), 1e-3)
    torch.testing.assert_close(EAGER.norm(x, None, 1e-6), rms_norm(x, eps=1e-6))
    assert EAGER.norm(torch.zeros(1, 2, 4), None, 1e-6).abs().max() == 0


def test_the_table_has_the_gelu_of_every_bfloat16() -> None:
    bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    x = bits.view(torch.bfloat16)
    expected = F.gelu(x, approximate="tanh")
    found = EAGER.gelu(x.clone())
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_in_place_in_parts_and_with_gradients(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "GELU_VALUES", 100)
    x = random(3, 7, 64, dtype=dtype)
    expected = F.gelu(x, approximate="tanh")
    assert torch.equal(EAGER.gelu(x.transpose(1, 2).contiguous().transpose(1, 2)), expected)
    kept = x.clone()
    assert EAGER.gelu(kept) is kept
    assert torch.equal(kept, expected)
    wanted = x.clone().requires_grad_()
    assert EAGER.gelu(wanted).requires_grad
    assert torch.equal(wanted, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3, 9])
def test_rotation_in_slices_is_bit_equal(heads: int, dtype: torch.dtype, kind: RopeKind) -> None:
    x = random(2, heads, 5, 8, dtype=dtype)
    angles = random(heads, 5, 4, seed=1)
    table = RopeTable(angles.cos(), angles.sin())
    u, v = halves(x.float(), kind)
    expected = torch.empty_like(x)
    a, b = halves(expected, kind)
    a.copy_(u * table.cos - v * table.sin)
    b.copy_(v * table.cos + u * table.sin)
    assert torch.equal(rotate_into(torch.empty_like(x), x, table, kind), expected)
    plain = PLAIN.rotate_into(torch.empty_like(x), x, table, kind)
    assert torch.allclose(plain.float(), expected.float(), atol=1e-6 if x.itemsize == 4 else 0.03)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_and_eager_bodies_agree(dtype: torch.dtype) -> None:
    x, y = random(1, 6, 32, dtype=dtype), random(1, 6, 32, seed=1, dtype=dtype)
    shift, scale1, gate = (random(1, 1, 32, seed=s, dtype=dtype) for s in (2, 3, 4))
    tolerance = (
        {"atol": 1e-6, "rtol": 1e-6} if dtype == torch.float32 else {"atol": 0.06, "rtol": 0.02}
    )
    for name, args in (
        ("norm", (x, None, 1e-6)),
        ("norm", (x, random(32, seed=5), 1e-6)),
        ("norm_modulate", (x, shift, scale1, 1e-6)),
        ("residual", (x, y, gate)),
        ("residual_norm", (x, y, gate, 1e-6)),
        ("sum_norm_modulate", (x, y, shift, scale1, 1e-6)),
        ("gelu", (x.clone(),)),
    ):
        found = [getattr(ops, name)(*args) for ops in (PLAIN, EAGER)]  # EAGER.gelu is in place
        pairs = zip(*found, strict=True) if isinstance(found[0], tuple) else [found]
        for plain, eager in pairs:
            assert plain.dtype == dtype
            torch.testing.assert_close(eager, plain, **tolerance)


@pytest.mark.parametrize("ops", [EAGER, PLAIN], ids=["eager", "plain"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_two_steps_are_those_steps(dtype: torch.dtype, ops: BlockOps) -> None:
    x, y = random(1, 6, 32, dtype=dtype), random(1, 6, 32, seed=1, dtype=dtype)
    shift, scale1, gate = (random(1, 1, 32, seed=s, dtype=dtype) for s in (2, 3, 4))
    total = ops.residual(x, y, gate)
    for found, step in zip(
        ops.residual_norm(x, y, gate, 1e-6), (total, ops.norm(total, None, 1e-6)), strict=True
    ):
        assert torch.equal(found, step)
    wanted = (x + y, ops.norm_modulate(x + y, shift, scale1, 1e-6))
    for found, step in zip(ops.sum_norm_modulate(x, y, shift, scale1, 1e-6), wanted, strict=True):
        assert torch.equal(found, step)


@pytest.mark.parametrize("rows", [1, 2, 99])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_rotation_together(
    dtype: torch.dtype, kind: RopeKind, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to one step after the other in float32, which is rounded once, at the end."""
    monkeypatch.setattr(fused, "ROW_VALUES", rows * 24)
    x, norm = random(2, 5, 24, dtype=dtype), WideNorm(random(24, seed=2, dtype=dtype), 1e-6)
    angles = random(3, 5, 4, seed=1)
    table = RopeTable(angles.cos(), angles.sin())
    heads = split_heads(EAGER.norm(x.float(), norm.weight, norm.eps), 3)
    expected = rotate_into(torch.empty_like(heads), heads, table, kind).to(dtype)
    buffer = torch.zeros(2, 3, 9, 8, dtype=dtype)  # a slice of a longer cache
    kept = x.clone()
    found = EAGER.norm_rotate_into(buffer[:, :, 2:7], x, norm, table, kind)
    assert torch.equal(found, expected)
    assert torch.equal(x, kept)
    assert buffer[:, :, :2].abs().max() == buffer[:, :, 7:].abs().max() == 0
    plain = PLAIN.norm_rotate_into(torch.empty_like(heads, dtype=dtype), x, norm, table, kind)
    torch.testing.assert_close(plain, expected, **TOLERANCE[dtype])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CompileLog:
    """The functions traced by the compiler's front end, but run as they are: no C++ is needed."""
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    log = CompileLog(inner="eager")
    monkeypatch.setattr(fused, "COMPILED", log)
    monkeypatch.setattr(fused, "compiled_ops", fused.compiled_ops.__wrapped__)
    monkeypatch.setattr("sanawm.refiner.model.compiled_ops", fused.compiled_ops)
    return log


def test_graphs_do_not_depend_on_the_history_and_none_breaks(counted: CompileLog) -> None:
    """Six blocks: the history grows until the window slides, and the last block is short."""
    stream = make(18)
    expected = run(stream, clip(18))
    fresh = make(18)
    fresh.model.prepare(rows=18, compiled=True)
    fresh.cache._ops = fresh.model.ops
    try:
        found = run(fresh, clip(18)[:, :, :7])
        graphs = counted.graphs
        found += run(fresh, clip(18)[:, :, :16])
        assert counted.graphs == graphs
        assert 5 <= graphs <= 20
        found += run(fresh, clip(18))
    finally:
        fresh.model.prepare(rows=18)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert counted.failed == 0
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_the_report_says_what_compiling_cost_and_gained(counted: CompileLog) -> None:
    ops = fused.compiled_ops()
    x = random(1, 6, 32)
    with torch.no_grad():
        for _ in range(3):
            ops.norm(x, None, 1e-6)
    report = counted.report(enabled=True)
    assert report["graphs"] == 1
    assert report["calls"] == 3
    assert report["seconds"] == round(counted.seconds, 3)
    assert counted.seconds > 0
    assert isinstance(report["saved_seconds"], float)
    off = counted.report(enabled=False)
    assert off == {
        "enabled": False, "graphs": 0, "failed_graphs": 0, "seconds": 0.0, "calls": 0,
        "saved_seconds": 0,
    }  # fmt: skip


def test_a_graph_that_cannot_be_compiled_runs_as_it_is(
    counted: CompileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("torch._dynamo.lookup_backend", lambda name: broken)
    x = random(1, 6, 32)
    assert torch.equal(fused.compiled_ops().gelu(x), PLAIN.gelu(x))
    assert counted.failed == counted.graphs == 1


def test_layouts_of_arguments_can_be_made_again() -> None:
    table = RopeTable(random(2, 3, 4), random(2, 3, 4))
    made = compiler._made(
        compiler._layout((random(1, 2, 3, 8).transpose(1, 2), table, "split", 1e-6))
    )
    assert made[0].stride() == random(1, 2, 3, 8).transpose(1, 2).stride()
    assert isinstance(made[1], RopeTable)
    assert made[1].cos.shape == (2, 3, 4)
    assert made[2:] == ("split", 1e-6)
