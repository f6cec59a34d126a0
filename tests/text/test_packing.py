"""Packing against the reference implementation's tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sanawm.errors import UsageError
from sanawm.text import packing
from sanawm.text.packing import pack_states


@pytest.fixture(scope="module")
def case(golden: Path) -> dict[str, Tensor]:
    """Hidden states of 3 prompts (10 tokens, 6 channels, 4 layers) and their packed forms."""
    return load_file(golden / "refiner/text_packing.safetensors")


def side_mask(lengths: Tensor, total: int, *, side: str) -> Tensor:
    """0/1 mask `(B, L)` with `lengths` ones at the right end (left padding) or the left end."""
    positions = torch.arange(total)
    if side == "left":
        return (positions >= total - lengths[:, None]).long()
    return (positions < lengths[:, None]).long()


def packed(case: dict[str, Tensor], *, side: str, dtype: torch.dtype = torch.float32) -> Tensor:
    mask = side_mask(case["lengths"], 10, side=side)
    return pack_states(case["hidden_states"].to(dtype).unbind(-1), mask)


@pytest.mark.parametrize("side", ["left", "right"])
def test_packing_equals_the_reference(case: dict[str, Tensor], side: str) -> None:
    error = (packed(case, side=side) - case[f"packed_{side}"]).abs().max()
    assert error < 1e-5


def test_packing_twice_changes_nothing(case: dict[str, Tensor]) -> None:
    mask = side_mask(case["lengths"], 10, side="left")
    once = pack_states(case["hidden_states"].unbind(-1), mask)
    twice = pack_states(once.unflatten(-1, (6, 4)).unbind(-1), mask)
    assert (twice - case["packed_left_twice"]).abs().max() < 1e-4
    assert (twice - once).abs().max() < 1e-4


def test_packing_in_bfloat16(case: dict[str, Tensor]) -> None:
    result = packed(case, side="left", dtype=torch.bfloat16)
    assert result.dtype == torch.bfloat16
    assert (result.float() - case["packed_left_bf16"].float()).abs().max() < 0.05


def test_bfloat16_statistics_are_rounded_as_in_the_reference() -> None:
    # one token, values around 1000: the range is rounded to bfloat16, the mean is not
    state = torch.tensor([[[1000.0, 1004.0, 1048.0, 1100.0]]]).bfloat16()
    exact = state.double()
    total = exact.sum().float().bfloat16().double()  # 4144 or so: rounded to a multiple of 16
    spread = (exact.max() - exact.min()).float().bfloat16().double()
    expected = (exact - total / 4) / spread * 8
    result = pack_states([state], torch.ones(1, 1))
    torch.testing.assert_close(result, expected.bfloat16(), rtol=0, atol=0)
    assert total != exact.sum()  # the rounding of the sum is what this test sees


def test_values_in_padding_do_not_matter(case: dict[str, Tensor]) -> None:
    mask = side_mask(case["lengths"], 10, side="left")
    states = case["hidden_states"].clone()
    states[mask == 0] = torch.nan
    result = pack_states(states.unbind(-1), mask)
    assert torch.equal(result, packed(case, side="left"))
    assert not result[mask == 0].any()


def test_a_prompt_without_tokens_is_refused() -> None:
    mask = torch.tensor([[1, 1], [0, 0]])
    with pytest.raises(UsageError, match="without any valid token"):
        pack_states([torch.zeros(2, 2, 3)], mask)


class TestMistakesAreSeen:
    """Each usual mistake moves the result further from the reference than the limit allows."""

    def test_layer_index_slowest(self, case: dict[str, Tensor]) -> None:
        wrong = packed(case, side="left").unflatten(-1, (6, 4)).transpose(-1, -2).flatten(2)
        assert (wrong - case["packed_left"]).abs().max() > 0.1

    def test_padding_counted_in_the_mean(self, case: dict[str, Tensor]) -> None:
        h = case["hidden_states"]
        mask = side_mask(case["lengths"], 10, side="left")
        right = packed(case, side="left").unflatten(-1, (6, 4))
        valid = mask.bool()[..., None, None]
        total = h.masked_fill(~valid, 0).sum((1, 2), keepdim=True)
        spread = h.masked_fill(~valid, -9e9).amax((1, 2), True) - h.masked_fill(~valid, 9e9).amin(
            (1, 2), True
        )
        n = case["lengths"].view(3, 1, 1, 1)
        wrong = right + (total / (n * 6) - total / 60) / spread * 8 * valid
        assert (wrong.flatten(2) - case["packed_left"]).abs().max() > 1e-3

    def test_padding_on_the_other_side(self, case: dict[str, Tensor]) -> None:
        assert (packed(case, side="right") - case["packed_left"]).abs().max() > 0.1

    def test_another_spread(self, case: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packing, "SPREAD", 8.01)
        assert (packed(case, side="left") - case["packed_left"]).abs().max() > 1e-3
