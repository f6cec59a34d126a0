"""A model laid out for its block size computes the same: whole streams, both ways."""

from __future__ import annotations

import copy

import pytest
import torch

from sanawm.refiner.model import RefinerModel

from .golden_cases import golden_model
from .stream_cases import H, W, clip, make, run

ROWS = 3 * H * W


def prepared(name: str, dtype: torch.dtype) -> RefinerModel:
    model = copy.deepcopy(golden_model(name, dtype))
    model.prepare(rows=ROWS)
    return model


@pytest.mark.parametrize("name", ["split", "inter_gated", "split_gated48"])
def test_a_prepared_model_gives_the_same_stream(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(make(18, model=name), clip(18))
    model = prepared(name, torch.float32)
    monkeypatch.setattr("tests.refiner.stream_cases.golden_model", lambda *_: model)
    found = run(make(18, model=name), clip(18))
    assert all(b.attn1.joined is not None for b in model.transformer_blocks)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_prepared_bfloat16_stream_stays_within_its_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clean = clip(18, dtype=torch.bfloat16)
    expected = torch.cat(run(make(18, dtype=torch.bfloat16), clean), dim=2).float()
    model = prepared("split", torch.bfloat16)
    monkeypatch.setattr("tests.refiner.stream_cases.golden_model", lambda *_: model)
    found = torch.cat(run(make(18, dtype=torch.bfloat16), clean), dim=2).float()
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 2e-2
