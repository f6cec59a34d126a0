"""The cache's buffer: equal to plain concatenation bit for bit, of fixed size, saved and loaded."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.errors import MissingCapturedKV, UsageError
from sanawm.shapes import BlockSpan, Window

from .cache_cases import (
    CANONICAL,
    TOKENS,
    B,
    K,
    M,
    N,
    assert_same,
    make_cache,
    place,
    random_kv,
    rotate,
    run_pass,
    snapshot,
    started,
    table,
)

WINDOWS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "cases" / "C23_kv_window" / "windows.json").read_text()
)


@pytest.mark.parametrize("name", list(WINDOWS))
def test_buffer_equals_plain_concatenation(name: str) -> None:
    """Attention through the cache against `torch.cat` of frames, each rotated by itself (R37)."""
    spec = WINDOWS[name]
    window = Window(spec["sink"], spec["block"], spec["kv_max_frames"])
    cache = started(window, layers=2)
    sink = random_kv(window.sink, 1 + 1)  # what `started` wrote into layer 1
    frames: dict[int, tuple[Tensor, Tensor]] = {}
    for number, block in enumerate(spec["blocks"]):
        active = block["active"]
        span = BlockSpan(number, active[0], active[-1] + 1)
        cache.place_sink(table(block["sink_rope_positions"]))
        for capture in (None, "post_rope"):
            seed = 1000 * number + (capture is not None)
            running = run_pass(cache, span, capture, skip=(1,), seed=seed)
            k, v = random_kv(span.frames, seed)
            found_k, found_v = running.write(1, k, v, table(active), "split")
            for i, frame in enumerate(active):
                part = slice(i * TOKENS, (i + 1) * TOKENS)
                frames[frame] = rotate(k[:, :, part], table([frame])), v[:, :, part]
            seen = [frames[f] for f in (*block["history"], *active)]
            keys = [rotate(sink[0], table(block["sink_rope_positions"])), *(k for k, _ in seen)]
            expected_k = torch.cat(keys, dim=2)
            expected_v = torch.cat((sink[1], *(v for _, v in seen)), dim=2)
            assert found_k.shape[2] == block["frames_attended"] * TOKENS
            assert torch.equal(found_k, expected_k)
            assert torch.equal(found_v, expected_v)
            through_cache = F.scaled_dot_product_attention(k, found_k, found_v)
            plain = F.scaled_dot_product_attention(k, expected_k, expected_v)
            assert torch.equal(through_cache, plain)
        cache.commit("post_rope")


def test_size_in_bytes() -> None:
    cache = make_cache(Window(2, 3, 11), dtype=torch.bfloat16)
    per_frame = M * B * N * TOKENS * K * 2  # bfloat16
    assert cache.nbytes == per_frame * (2 * (11 + 3) + 2)


def test_buffers_stay_where_they_are() -> None:
    cache = started()
    addresses = (cache._keys.data_ptr(), cache._values.data_ptr(), cache._sink_keys.data_ptr())
    size = cache.nbytes
    for span in CANONICAL.blocks(40):
        place(cache, span)
        run_pass(cache, span, "post_rope")
        cache.commit("post_rope")
        assert cache.nbytes == size
    found = (cache._keys.data_ptr(), cache._values.data_ptr(), cache._sink_keys.data_ptr())
    assert found == addresses


def test_reset_forgets_everything() -> None:
    cache = started(blocks=5)
    cache.reset()
    assert (cache.history_frames, cache.sink_ready) == (0, False)
    with pytest.raises(MissingCapturedKV, match="no pass has run yet"):
        cache.collect("post_rope")
    with pytest.raises(MissingCapturedKV):
        cache.begin(BlockSpan(0, 1, 4))


@pytest.mark.parametrize("blocks", [0, 2, 5])
def test_saved_and_loaded_cache_goes_on_equally(blocks: int) -> None:
    cache, other = started(blocks=blocks), make_cache()
    file = io.BytesIO()
    torch.save(cache.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for span in list(CANONICAL.blocks(22))[blocks:]:
        for each in (cache, other):
            place(each, span)
            run_pass(each, span, "post_rope", seed=span.number)
            each.commit("post_rope")
        assert_same(snapshot(other), snapshot(cache))


def test_a_saved_cache_is_a_copy() -> None:
    cache = started(blocks=2)
    state = cache.state_dict()
    before = state["keys"].clone()
    place(cache, BlockSpan(2, 7, 10))
    run_pass(cache, BlockSpan(2, 7, 10), "post_rope")
    cache.reset()
    assert torch.equal(state["keys"], before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": Window(1, 3, 9)}, "9 history frames, this window keeps at most 8"),
        ({"window": Window(2, 3, 12)}, r"values .* expected \(3, 2, 2, 33, 8\)"),
        ({"dtype": torch.bfloat16}, "float32, expected .* torch.bfloat16"),
        ({"tokens_per_frame": 4}, r"expected \(3, 2, 2, 36, 8\)"),
        ({"batch": 1}, r"expected \(3, 1, 2, 27, 8\)"),
        ({"layers": 2}, r"expected \(2, 2, 2, 27, 8\)"),
    ],
)
def test_a_cache_of_another_run_is_refused(changes: dict[str, Any], words: str) -> None:
    state = started(blocks=3).state_dict()  # 9 frames of history
    other = make_cache(**changes)
    before = snapshot(other)
    with pytest.raises(UsageError, match=words) as caught:
        other.load_state_dict(state)
    assert "window of the saved run" in (caught.value.fix or "")
    assert_same(snapshot(other), before)
