"""What must not change a bit: resuming, other streams, clip length, and the passes left out."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sanawm.errors import UsageError
from sanawm.refiner.cache import CachePass
from sanawm.refiner.model import Modulation, RefinerModel, TextContext
from sanawm.refiner.noise import GivenNoise, SeededNoise
from sanawm.refiner.sampler import SigmaSchedule, euler_update, mix_noise, predict_clean
from sanawm.shapes import Window

from .golden_cases import golden_model
from .stream_cases import (
    CANONICAL,
    SMALL,
    H,
    W,
    assert_equal,
    assert_same_state,
    clip,
    flat,
    make,
    run,
    spans,
)

MODELS = ["split", "inter_gated", "split_gated48"]


def round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """Write and read a state as a file of plain tensors and numbers."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("done", range(6))
def test_resumed_stream_goes_on_bit_for_bit(done: int, dtype: torch.dtype) -> None:
    clean = clip(18, dtype=dtype)  # 5 blocks and one of 2 frames; the window slides from block 2 on
    expected = run(make(18, dtype=dtype), clean)
    first = make(18, dtype=dtype)
    blocks = run(first, clean[:, :, : 1 + 3 * done])
    assert len(blocks) == done
    second = make(18, dtype=dtype, noise=SeededNoise(7))  # its noise position comes from the file
    second.load_state_dict(round_trip(first.state_dict()))
    assert second.next_frame == 1 + 3 * done
    assert_equal(blocks + run(second, clean), expected)


def test_loading_over_a_used_stream_forgets_it() -> None:
    clean, other = clip(14), clip(14, seed=9)
    first = make(14)
    run(first, clean[:, :, :7])
    used = make(14)
    run(used, other)
    used.load_state_dict(round_trip(first.state_dict()))
    assert_equal(run(used, clean), run(make(14), clean)[2:])


def test_an_ended_stream_stays_ended_when_resumed() -> None:
    first, second = make(7), make(7)
    run(first, clip(7))
    second.load_state_dict(round_trip(first.state_dict()))
    with pytest.raises(UsageError, match="the clip has ended at latent frame 7"):
        second.refine(clip(3))


@pytest.mark.parametrize("changes", [{"window": CANONICAL}, {"window": Window(1, 2, 4)}])
def test_state_of_another_window_is_refused_and_nothing_is_loaded(changes: dict[str, Any]) -> None:
    saved = make(18, window=CANONICAL if changes["window"] != CANONICAL else Window(2, 3, 11))
    run(saved, clip(18))
    stream = make(18, noise=SeededNoise(1), **changes)
    before = flat(stream.state_dict())
    with pytest.raises(UsageError, match="saved cache has"):
        stream.load_state_dict(saved.state_dict())
    assert_same_state(flat(stream.state_dict()), before)


def test_state_of_another_noise_source_is_refused_and_nothing_is_loaded() -> None:
    saved = make(7, noise=GivenNoise.of(torch.zeros(1, 8, 6, H, W), sink=1))
    run(saved, clip(4))
    stream = make(7)
    before = flat(stream.state_dict())
    with pytest.raises(UsageError, match="not of a seeded generator"):
        stream.load_state_dict(saved.state_dict())
    assert_same_state(flat(stream.state_dict()), before)


@pytest.mark.parametrize("model", MODELS)
def test_second_stream_in_a_process_equals_a_fresh_one(model: str) -> None:
    clean = clip(12)
    fresh = run(make(12, model=model), clean)
    run(make(9, model=model, window=Window(2, 2, 7)), clip(9, seed=3))
    assert_equal(run(make(12, model=model), clean), fresh)


FRESH = """
import hashlib, torch
torch.set_num_threads(1)
from tests.refiner.stream_cases import clip, make, run
print(hashlib.sha256(torch.cat(run(make(12), clip(12)), dim=2).numpy().tobytes()).hexdigest())
"""


def test_a_stream_of_this_process_equals_one_of_a_new_process() -> None:
    run(make(9, window=Window(2, 2, 7)), clip(9, seed=3))
    latents = torch.cat(run(make(12), clip(12)), dim=2)
    found = hashlib.sha256(latents.numpy().tobytes()).hexdigest()
    command = [sys.executable, "-c", FRESH]
    root = Path(__file__).parents[2]
    fresh = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == found


def test_two_streams_at_once_do_not_meet() -> None:
    a, b = clip(12), clip(12, seed=4)
    alone = run(make(12), a), run(make(12, noise=SeededNoise(3)), b)
    first, second = make(12), make(12, noise=SeededNoise(3))
    first.start(a[:, :, :1])
    second.start(b[:, :, :1])
    together: tuple[list[Tensor], list[Tensor]] = ([], [])
    for span in SMALL.blocks(12):
        for stream, clean, out in ((first, a, together[0]), (second, b, together[1])):
            out.append(stream.refine(clean[:, :, span.start : span.stop]).latents)
    assert_equal(together[0], alone[0])
    assert_equal(together[1], alone[1])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("window", [SMALL, CANONICAL, Window(0, 1, 4)])
def test_first_blocks_of_a_long_run_equal_a_shorter_run(model: str, window: Window) -> None:
    count = 3
    short = window.sink + window.block * count
    clean = clip(short + 5)
    long = run(make(short + 5, model=model, window=window), clean)
    assert len(long) > count
    shorter = run(make(short, model=model, window=window), clean[:, :, :short])
    assert_equal(long[:count], shorter)


@pytest.mark.parametrize("model", MODELS)
def test_the_last_blocks_capture_may_be_left_out(model: str) -> None:
    clean = clip(12)
    stream, captured = make(12, model=model), make(12, model=model, open_ended=True)
    assert_equal(run(stream, clean), run(captured, clean))
    assert stream.cache._pass is not None  # a denoising pass: nothing was captured after it
    assert captured.cache._pass is None


def full_capture(
    self: RefinerModel,
    tokens: Tensor,
    text: TextContext,
    modulation: Modulation,
    rope: Any,
    cache: CachePass,
) -> None:
    """Capture with a whole forward pass, its velocity thrown away."""
    self(tokens, text, modulation, rope, cache=cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", MODELS)
def test_the_capture_pass_may_end_at_the_last_layers_keys(
    model: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = clip(16, dtype=dtype)
    stream = make(16, model=model, dtype=dtype, open_ended=True)
    short = run(stream, clean)
    monkeypatch.setattr(RefinerModel, "capture", full_capture)
    other = make(16, model=model, dtype=dtype, open_ended=True)
    assert_equal(run(other, clean), short)
    assert_same_state(flat(other.cache.state_dict()), flat(stream.cache.state_dict()))


def test_an_all_ones_mask_is_no_mask() -> None:
    model = golden_model("split")
    prompt = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(1))
    assert model.prepare_text(prompt, torch.ones(1, 5)).bias is None
    assert model.prepare_text(prompt, torch.ones(1, 5, dtype=torch.bool)).bias is None
    bias = model.prepare_text(prompt, torch.tensor([[1, 1, 1, 0, 0]])).bias
    assert bias is not None
    assert bias.flatten().tolist() == [0, 0, 0, -10000, -10000]


def test_one_prompt_serves_every_item_of_a_batch() -> None:
    """A batch of two equals two runs of one: items never meet (and prompts are not split)."""
    eps = torch.randn(2, 8, 8, H, W, generator=torch.Generator().manual_seed(2))
    clean = clip(9, batch=2)
    both = run(make(9, batch=2, noise=GivenNoise.of(eps, sink=1)), clean)
    for item in range(2):
        one = slice(item, item + 1)
        alone = run(make(9, noise=GivenNoise.of(eps[one], sink=1)), clean[one])
        for found, expected in zip(both, alone, strict=True):
            torch.testing.assert_close(found[one], expected, rtol=0, atol=2e-5)


def attributes(model: nn.Module) -> dict[str, Any]:
    """Return every attribute of every module: names, plain values, addresses and hooks."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, dict):
                found[f"{name}.{key}"] = {k: id(v) for k, v in value.items()}
            else:
                found[f"{name}.{key}"] = value
    for name, tensor in model.state_dict(keep_vars=True).items():
        found[f"{name}:tensor"] = (tensor.data_ptr(), tensor._version, tensor.grad is None)
    return found


def test_modules_neither_gain_nor_lose_attributes_in_a_run() -> None:
    model = golden_model("inter_gated")
    before = attributes(model)
    assert len(before) > 500
    run(make(12, model="inter_gated"), clip(12))
    found = attributes(model)
    assert found.keys() == before.keys()
    assert found == before
    model.transformer_blocks[0].attn1.captured = None
    try:  # the comparison sees what the public refiners do
        assert attributes(model) != before
    finally:
        del model.transformer_blocks[0].attn1.captured


def test_cache_size_does_not_depend_on_the_clip() -> None:
    sizes = {frames: make(frames).cache.nbytes for frames in (2, 12, 500)}
    layers, heads, head_size = 2, 2, 16
    per_frame = layers * heads * head_size * H * W * 4
    assert set(sizes.values()) == {per_frame * (2 * (SMALL.kv_max + SMALL.block) + SMALL.sink)}
    stream = make(30)
    run(stream, clip(30))
    assert stream.cache.nbytes == sizes[12]


def test_noise_is_drawn_once_a_block_in_order() -> None:
    drawn: list[tuple[int, tuple[int, ...]]] = []

    class Spy(SeededNoise):
        def draw(self, span: Any, shape: tuple[int, ...]) -> Tensor:
            drawn.append((span.number, shape))
            return super().draw(span, shape)

    stream = make(9, noise=Spy(42))
    run(stream, clip(9))
    expected = [(i, (1, 8, s.frames, H, W)) for i, s in enumerate(SMALL.blocks(9))]
    assert drawn == expected
    assert list(spans(stream, 9)) == []


def test_euler_walk_against_its_formula() -> None:
    schedule = SigmaSchedule((0.909375, 0.725, 0.421875, 0.0))
    # Exactly representable: the scaled timesteps of the release are whole or eighths.
    times = [float(schedule.timestep(s, multiplier=1000.0)) for s in schedule.sigmas]
    assert times == [909.375, 725.0, 421.875, 0.0]
    generator = torch.Generator().manual_seed(0)
    z, eps, v = torch.randn(3, 1, 4, 5, generator=generator)
    x = mix_noise(z, eps, sigma=schedule.sigmas[0])
    torch.testing.assert_close(x, 0.090625 * z + 0.909375 * eps, rtol=0, atol=1e-6)
    step, last = schedule.steps[0], schedule.steps[-1]
    x0 = predict_clean(x, v, sigma=step.sigma)
    torch.testing.assert_close(x0, x - 0.909375 * v, rtol=0, atol=1e-6)
    moved = euler_update(x, x0, step)
    torch.testing.assert_close(moved, x + (0.725 - 0.909375) * v, rtol=0, atol=1e-6)
    assert torch.equal(euler_update(x, x0, last), x0)
    half = x.bfloat16()
    assert predict_clean(half, v.bfloat16(), sigma=0.5).dtype == torch.bfloat16


def test_a_tiny_last_sigma_takes_the_clean_block() -> None:
    schedule = SigmaSchedule((0.5, 1e-7, 0.0))
    assert [s.ratio for s in schedule.steps] == [pytest.approx(2e-7), 0.0]
