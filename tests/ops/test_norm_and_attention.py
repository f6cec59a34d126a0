"""Norms, modulation and attention against float64 formulas, and where they round."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sanawm.ops.attention import attention, merge_heads, split_heads
from sanawm.ops.norm import block_norm, gated_add, modulate, rms_norm


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm_formula() -> None:
    x, weight = random(2, 3, 16), random(16, seed=1)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert (rms_norm(x, eps=1e-6, weight=weight) - expected).abs().max() < 1e-6


def test_rms_norm_eps_counts() -> None:
    x = torch.full((1, 4), 1e-3)
    assert rms_norm(x, eps=1e-6)[0, 0] == pytest.approx(1 / 2**0.5, rel=1e-5)
    assert rms_norm(torch.zeros(1, 4), eps=1e-6).tolist() == [[0.0] * 4]


def test_query_key_norm_rounds_once_and_block_norm_twice() -> None:
    """Both in bfloat16, on values where the two ways give other bits."""
    x, weight = random(64, 32).bfloat16(), random(32, seed=1).bfloat16()
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    once, twice = (y * weight.float()).bfloat16(), y.bfloat16() * weight
    assert not torch.equal(once, twice)
    assert torch.equal(rms_norm(x, eps=1e-6, weight=weight), once)
    assert torch.equal(block_norm(x, eps=1e-6, weight=weight), twice)
    assert torch.equal(block_norm(x, eps=1e-6), y.bfloat16())


def test_statistics_are_taken_in_float32() -> None:
    x = torch.full((1, 4096), 300.0).half()  # squares overflow float16
    assert torch.equal(rms_norm(x, eps=1e-6), torch.ones(1, 4096).half())


def test_modulation_and_gate() -> None:
    x, shift, scale = (torch.tensor([v]) for v in (2.0, 10.0, 0.5))
    assert modulate(x, shift, scale).tolist() == [13.0]
    assert gated_add(x, shift, scale).tolist() == [7.0]
    low = [v.bfloat16() for v in (random(99), random(99, seed=1), random(99, seed=2))]
    assert torch.equal(modulate(*low), (low[0] * (1 + low[2]).bfloat16()).bfloat16() + low[1])


def test_heads_are_consecutive_slices() -> None:
    x = torch.arange(12.0).reshape(1, 2, 6)
    heads = split_heads(x, 3)
    assert heads.shape == (1, 3, 2, 2)
    assert heads[0, 1].tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_formula(masked: bool) -> None:
    q, k, v = random(2, 3, 5, 8), random(2, 3, 7, 8, seed=1), random(2, 3, 7, 8, seed=2)
    bias = torch.zeros(2, 1, 1, 7)
    if masked:
        bias[1, :, :, 4:] = -10000.0
    scores = q.double() @ k.double().transpose(-1, -2) / 8**0.5 + bias.double()
    expected = scores.softmax(-1) @ v.double()
    found = attention(q, k, v, bias=bias if masked else None)
    assert (found - expected).abs().max() < 1e-6
    if masked:
        assert (found[1] - attention(q[1:], k[1:, :, :4], v[1:, :, :4])[0]).abs().max() < 1e-6


def test_attention_over_slices_of_a_buffer() -> None:
    """What the cache hands out: strided keys and values give the bits of contiguous ones."""
    buffer_k, buffer_v = random(2, 3, 20, 8, seed=1), random(2, 3, 20, 8, seed=2)
    q, k, v = random(2, 3, 5, 8), buffer_k[:, :, :11], buffer_v[:, :, :11]
    assert torch.equal(attention(q, k, v), attention(q, k.contiguous(), v.contiguous()))
