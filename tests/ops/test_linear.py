"""Packed and joined products equal the plain ones, and the plain ones take over without them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sanawm.ops import linear
from sanawm.ops.linear import JoinedLinear, Linear, packed_product

TOLERANCE = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 0.03, "rtol": 0.02},
}


def layer(width: int, out: int, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> Linear:
    torch.manual_seed(width + out)
    return Linear(width, out, bias=bias).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 24])
def test_a_prepared_layer_equals_the_plain_one(rows: int, bias: bool, dtype: torch.dtype) -> None:
    made = layer(32, 48, bias=bias, dtype=dtype)
    x = torch.randn(2, rows, 32).to(dtype)
    expected = F.linear(x, made.weight, made.bias)
    made.prepare(rows=24)
    torch.testing.assert_close(made(x), expected, **TOLERANCE[dtype])
    assert made(x[:, :0]).shape == (2, 0, 48)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
def test_without_the_private_operators_the_plain_product_runs(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise error("no such operator")

    monkeypatch.setattr(linear, "_mkl", missing)
    monkeypatch.setattr(linear, "_onednn", missing)
    for dtype in TOLERANCE:
        made = layer(32, 48, dtype=dtype)
        made.prepare(rows=8)
        assert made.product is None
        x = torch.randn(1, 8, 32).to(dtype)
        assert torch.equal(made(x), F.linear(x, made.weight, made.bias))


def test_no_packing_elsewhere_than_on_a_cpu_or_with_gradients() -> None:
    assert packed_product(torch.empty(4, 4, device="meta"), None, rows=2) is None
    assert packed_product(torch.empty(4, 4, dtype=torch.float64), None, rows=2) is None
    wanted = Linear(8, 8)
    wanted.prepare(rows=4)
    assert wanted.product is None


def test_a_moved_layer_forgets_its_packed_weights() -> None:
    made = layer(32, 48)
    made.prepare(rows=8)
    made.to(torch.bfloat16)
    assert made.product is None
    assert made(torch.zeros(1, 2, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
def test_joined_layers_equal_their_parts_and_store_nothing_twice(
    bias: bool, dtype: torch.dtype
) -> None:
    layers = [layer(32, out, bias=bias, dtype=dtype) for out in (48, 16, 16)]
    x = torch.randn(1, 9, 32).to(dtype)
    expected = [part(x) for part in layers]
    joined = JoinedLinear(layers, rows=9)
    for found, one in zip(joined(x), expected, strict=True):
        torch.testing.assert_close(found, one, **TOLERANCE[dtype])
    storage = joined.weight.untyped_storage().data_ptr()
    assert all(part.weight.untyped_storage().data_ptr() == storage for part in layers)
    for part, one in zip(layers, expected, strict=True):
        torch.testing.assert_close(part(x), one, **TOLERANCE[dtype])
