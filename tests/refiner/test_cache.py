"""The cache's states: what it hands out, what it refuses, and that refusing changes nothing."""

from __future__ import annotations

import pytest
import torch

from sanawm.errors import IncompletePass, MissingCapturedKV, UnsupportedCaptureMode, UsageError
from sanawm.shapes import BlockSpan, Window

from .cache_cases import (
    SINK,
    M,
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


@pytest.mark.parametrize("mode", ["pre_rope", "post_rope"])
@pytest.mark.parametrize("method", ["collect", "commit"])
def test_reading_before_any_pass(mode: str, method: str) -> None:
    cache = make_cache()
    with pytest.raises(MissingCapturedKV) as caught:
        getattr(cache, method)(mode)
    assert isinstance(caught.value, RuntimeError)
    assert f"mode {mode}" in caught.value.message
    assert "layers 0..2" in caught.value.message
    assert "block 0" in caught.value.message
    assert f"capture='{mode}'" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("ran", "asked", "words"),
    [
        ("pre_rope", "post_rope", "the sink, ran in mode pre_rope"),
        ("post_rope", "pre_rope", "block 2, ran in mode post_rope"),
        (None, "post_rope", "block 2, ran without capture"),
    ],
)
def test_reading_after_a_pass_in_another_mode(ran: str | None, asked: str, words: str) -> None:
    if ran == "pre_rope":
        cache, span = make_cache(), SINK
    else:
        cache, span = started(blocks=2), BlockSpan(2, 7, 10)
        place(cache, span)
    run_pass(cache, span, ran)
    before = snapshot(cache)
    for method in (cache.collect, cache.commit):
        with pytest.raises(MissingCapturedKV) as caught:
            method(asked)
        assert f"mode {asked} of layers 0..2" in caught.value.message
        assert words in caught.value.message
        assert caught.value.fix
    assert_same(snapshot(cache), before)


def test_captured_views_are_handed_out_once() -> None:
    cache = started(blocks=1)
    span = BlockSpan(1, 4, 7)
    place(cache, span)
    run_pass(cache, span, "post_rope", seed=50)
    before = snapshot(cache)
    captured = cache.collect("post_rope")
    assert len(captured) == M
    for layer, (keys, values) in enumerate(captured):
        k, v = random_kv(3, 50 + layer)
        assert torch.equal(keys, rotate(k, table([4, 5, 6])))
        assert torch.equal(values, v)
    for _ in range(2):
        with pytest.raises(MissingCapturedKV, match=r"no pass has run since block 1 was collected"):
            cache.collect("post_rope")
        with pytest.raises(MissingCapturedKV, match=r"mode post_rope of layers 0\.\.2"):
            cache.commit("post_rope")
    assert torch.equal(captured[2].values, random_kv(3, 52)[1])  # nothing was cleared
    assert_same(snapshot(cache), before)
    run_pass(cache, span, "post_rope", seed=50)  # and the block can be run again
    cache.commit("post_rope")
    assert cache.history_frames == 6


def test_sink_keys_are_handed_out_before_rotation() -> None:
    cache = make_cache()
    run_pass(cache, SINK, "pre_rope", seed=7)
    for layer, (keys, values) in enumerate(cache.collect("pre_rope")):
        k, v = random_kv(1, 7 + layer)
        assert torch.equal(keys, k)
        assert torch.equal(values, v)


def test_second_commit_changes_nothing() -> None:
    cache = started(blocks=2)
    before = snapshot(cache)
    with pytest.raises(MissingCapturedKV, match="block 1 was collected"):
        cache.commit("post_rope")
    assert_same(snapshot(cache), before)


@pytest.mark.parametrize("mode", ["clean", "", "inject_and_capture_post_rope"])
def test_unknown_mode_lists_the_known_ones(mode: str) -> None:
    cache = started(blocks=1)
    calls = (
        lambda: cache.begin(BlockSpan(1, 4, 7), capture=mode),
        lambda: cache.collect(mode),
        lambda: cache.commit(mode),
    )
    for call in calls:
        with pytest.raises(
            UnsupportedCaptureMode, match=f"'{mode}'.*pre_rope, post_rope"
        ) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("skip", "words"),
    [((1,), "layer 1 of 12"), ((0, 2), "layers 0, 2 of 12"), (tuple(range(10)), "7 … of 12")],
)
def test_a_layer_that_did_not_write_is_named(skip: tuple[int, ...], words: str) -> None:
    cache = started(blocks=3, layers=12)
    span = BlockSpan(3, 10, 13)
    place(cache, span)
    before = snapshot(cache)
    run_pass(cache, span, "post_rope", skip=skip)
    for method in (cache.collect, cache.commit):
        with pytest.raises(IncompletePass) as caught:
            method("post_rope")
        assert words in caught.value.message
        assert "post_rope pass of block 3" in caught.value.message
        assert caught.value.fix
    assert_same(snapshot(cache), before)


def test_an_incomplete_sink_pass_is_not_a_sink() -> None:
    cache = make_cache()
    run_pass(cache, SINK, "pre_rope", skip=(2,))
    with pytest.raises(IncompletePass, match="layer 2 of 3 did not write in the pre_rope pass"):
        cache.commit("pre_rope")
    assert not cache.sink_ready
    with pytest.raises(MissingCapturedKV, match="mode pre_rope of layers"):
        cache.place_sink(table([0]))
    run_pass(cache, SINK, "pre_rope", seed=1)
    cache.commit("pre_rope")
    assert_same(snapshot(cache), snapshot(started()))


def test_denoising_passes_can_be_checked_too() -> None:
    cache = started()
    place(cache, BlockSpan(0, 1, 4))
    running = run_pass(cache, BlockSpan(0, 1, 4), None, skip=(1, 2))
    with pytest.raises(IncompletePass, match=r"layers 1, 2 of 3 .* denoising pass of block 0"):
        running.check_complete()
    run_pass(cache, BlockSpan(0, 1, 4), None).check_complete()


def test_a_pass_that_was_replaced_cannot_write() -> None:
    cache = started()
    place(cache, BlockSpan(0, 1, 4))
    old = cache.begin(BlockSpan(0, 1, 4))
    cache.begin(BlockSpan(0, 1, 4), capture="post_rope")
    with pytest.raises(MissingCapturedKV, match="layer 0 wrote into a pass over block 0"):
        old.write(0, *random_kv(3, 0), table([1, 2, 3]), "split")
    with pytest.raises(IncompletePass, match="layers 0, 1, 2 of 3"):
        cache.commit("post_rope")


def test_a_block_needs_the_sink_and_its_place() -> None:
    cache, first = make_cache(), BlockSpan(0, 1, 4)
    for capture in (None, "post_rope"):
        with pytest.raises(MissingCapturedKV, match="pass over block 0 before block 0 needs the 1"):
            cache.begin(first, capture=capture)
    cache = started()
    with pytest.raises(UsageError, match="no place for block 0"):
        cache.begin(first)
    place(cache, first)
    run_pass(cache, first, None)
    run_pass(cache, first, "post_rope")
    cache.commit("post_rope")
    with pytest.raises(UsageError, match="no place for block 1"):
        cache.begin(BlockSpan(1, 4, 7))


def test_the_sink_is_captured_once_and_whole() -> None:
    cache = make_cache(Window(2, 3, 11))
    for frames in (0, 1, 3):
        with pytest.raises(UsageError, match=f"{frames} sink frames does not fit.* sink of 2"):
            cache.begin(BlockSpan(-1, 0, frames), capture="pre_rope")
    with pytest.raises(UsageError, match="sink of 0"):
        make_cache(Window(0, 3, 9)).begin(BlockSpan(-1, 0, 0), capture="pre_rope")
    cache = started(blocks=1)
    before = snapshot(cache)
    with pytest.raises(UsageError, match="captured already"):
        cache.begin(SINK, capture="pre_rope")
    assert_same(snapshot(cache), before)


@pytest.mark.parametrize("frames", [0, 4])
def test_a_block_must_fit_the_window(frames: int) -> None:
    cache = started()
    place(cache, BlockSpan(0, 1, 4))
    with pytest.raises(UsageError, match=f"{frames} latent frames does not fit: expected 1 to 3"):
        cache.begin(BlockSpan(0, 1, 1 + frames))


def test_writes_of_other_sizes_are_refused() -> None:
    cache = started()
    place(cache, BlockSpan(0, 1, 4))
    running = cache.begin(BlockSpan(0, 1, 4))
    k, v = random_kv(3, 0)
    rope = table([1, 2, 3])
    for layer in (-1, M):
        with pytest.raises(UsageError, match=f"layer {layer} wrote into a cache of 3 layers"):
            running.write(layer, k, v, rope, "split")
    # Each of these would broadcast into the slot in silence.
    for wrong in (k[:1], k[:, :1], k[:, :, :1], k[..., :1]):
        with pytest.raises(UsageError, match=r"layer 0 wrote keys .* for block 0, expected"):
            running.write(0, wrong, v, rope, "split")
        with pytest.raises(UsageError, match=r"layer 0 wrote values .* for block 0, expected"):
            running.write(0, k, wrong, rope, "split")
    assert running.silent_layers == [0, 1, 2]
