"""The stream's order of blocks: every refusal, and that a failed block can be tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sanawm.errors import (
    BlockOrderError,
    IncompletePass,
    InputError,
    NumericsError,
    SanawmError,
    UsageError,
)
from sanawm.refiner.cache import CachePass, RefinerCache
from sanawm.refiner.model import RefinerBlock, RefinerModel
from sanawm.refiner.noise import GivenNoise, SeededNoise
from sanawm.refiner.single_shot import refine_single_shot
from sanawm.refiner.stream import RefinerStream
from sanawm.schedules import RELEASED_SIGMAS
from sanawm.shapes import BlockSpan, LatentShape, Window

from .golden_cases import golden_model
from .stream_cases import (
    SMALL,
    H,
    W,
    assert_equal,
    assert_same_state,
    clip,
    flat,
    make,
    run,
)

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    ("frames", "changes", "words"),
    [
        (1, {}, "clip of 1 latent frames .* sink of 1"),
        (2, {"window": Window(2, 3, 11)}, "clip of 2 latent frames .* sink of 2"),
        (7, {"window": Window(-1, 3, 11)}, "sink size -1 is negative"),
        (7, {"window": Window(1, 0, 11)}, "block size 0 is below 1"),
        (7, {"window": Window(2, 3, 2)}, r"window of 2 .* larger than the sink \(2\)"),
        (7, {"sigmas": (0.9, 0.5)}, "must end in 0"),
        (7, {"fps": 0.0}, "frame rate 0.0 is not a positive number"),
        (7, {"fps": float("nan")}, "frame rate nan"),
        (7, {"shape": LatentShape(1, 16, 7, H, W)}, "16 channels, the refiner expects 8"),
    ],
)
def test_settings_that_cannot_work(frames: int, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make(frames, **changes)
    assert isinstance(caught.value, ValueError)
    assert caught.value.exit_code == 2


def after(blocks: int, **changes: Any) -> RefinerStream:
    """Return a stream of 11 frames (3 blocks and one of 1) that has refined `blocks` of them."""
    stream = make(11, **changes)
    run(stream, clip(1 + 3 * blocks))
    return stream


def block(frames: int = 3, **changes: Any) -> Tensor:
    sizes = {"batch": 1, "channels": 8, "height": H, "width": W} | changes
    return torch.zeros(sizes["batch"], sizes["channels"], frames, sizes["height"], sizes["width"])


REFUSED: dict[str, tuple[int, Callable[[RefinerStream], Any], str]] = {
    "gap": (1, lambda s: s.refine(block(), start=7), "a gap: .* frame 7, expected 4"),
    "repeat": (1, lambda s: s.refine(block(), start=1), "a repeat: .* frame 1, expected 4"),
    "before the sink": (1, lambda s: s.refine(block(), start=0), r"overlaps the sink \(frames 0"),
    "no frames": (1, lambda s: s.refine(block(0)), "a block of 0 latent frames; expected 1 to 3"),
    "too long": (1, lambda s: s.refine(block(4)), "a block of 4 latent frames; expected 1 to 3"),
    "past the end": (3, lambda s: s.refine(block(3)), "ends at latent frame 13, the clip at 11"),
    "height": (1, lambda s: s.refine(block(height=3)), r"the block has shape .* H 2, W 3 as"),
    "swapped": (1, lambda s: s.refine(block(height=3, width=2)), r"the block has shape \(1, 8, 3"),
    "batch": (1, lambda s: s.refine(block(batch=2)), r"shape \(2, 8, .* B 1, C 8"),
    "channels": (1, lambda s: s.refine(block(channels=4)), r"shape \(1, 4, .* B 1, C 8"),
    "rank": (
        1,
        lambda s: s.refine(block()[0]),
        r"shape \(8, 3, 2, 3\); expected \(B, C, f, H, W\)",
    ),
    "second sink": (1, lambda s: s.start(block(1)), "the stream has started already"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_blocks_out_of_order_are_refused(name: str) -> None:
    blocks, call, words = REFUSED[name]
    stream = after(blocks)
    before = flat(stream.state_dict())
    with pytest.raises(BlockOrderError, match=words) as caught:
        call(stream)
    assert isinstance(caught.value, ValueError)
    assert_same_state(flat(stream.state_dict()), before)
    clean = clip(11)
    assert_equal(run(stream, clean), run(make(11), clean)[blocks:])


def test_first_block_without_sink() -> None:
    stream = make(11)
    for start in (None, 1):
        with pytest.raises(BlockOrderError, match="first block came before the 1 sink frames"):
            stream.refine(block(), start=start)
    clean = clip(11)
    assert_equal(run(stream, clean), run(make(11), clean))


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (None, "0 sink frames were given, this stream expects 2"),
        (block(1), "1 sink frames were given, this stream expects 2"),
        (block(3), "3 sink frames were given, this stream expects 2"),
        (block(2, width=4), r"the sink has shape \(1, 8, 2, 2, 4\)"),
        (block(2, batch=3), r"the sink has shape \(3, 8, 2, 2, 3\)"),
    ],
)
def test_wrong_sink(sink: Tensor | None, words: str) -> None:
    stream = make(11, window=Window(2, 3, 11))
    with pytest.raises(BlockOrderError, match=words):
        stream.start(sink)
    assert not stream.cache.sink_ready
    stream.start(clip(2))
    assert stream.cache.sink_ready


def test_stream_without_sink() -> None:
    stream = make(4, window=Window(0, 2, 5))
    with pytest.raises(BlockOrderError, match="this stream has no sink"):
        stream.start(block(0))
    assert [b.shape[2] for b in run(stream, clip(4))] == [2, 2]


@pytest.mark.parametrize("open_ended", [False, True])
def test_a_shorter_block_ends_the_clip(open_ended: bool) -> None:
    stream = make(6, open_ended=open_ended)
    run(stream, clip(6))  # 3 frames, then 2
    for start in (None, 6):
        with pytest.raises(BlockOrderError, match="the clip has ended at latent frame 6"):
            stream.refine(block(1), start=start)


def test_nothing_comes_after_the_last_block() -> None:
    stream = make(7)
    run(stream, clip(7))
    with pytest.raises(BlockOrderError, match="the clip has ended at latent frame 7"):
        stream.refine(block())


def bypass(layers: tuple[int, ...]) -> Callable[..., Tensor]:
    """Return a self-attention that forgets the cache in some layers."""
    original = RefinerBlock._self_attention

    def attend(self: RefinerBlock, n: Tensor, rope: Any, cache: Any, context: int) -> Tensor:
        return original(self, n, rope, None if self.layer in layers else cache, context)

    return attend


def stop_early(
    self: RefinerModel, tokens: Tensor, text: Any, modulation: Any, rope: Any, cache: CachePass
) -> None:
    """A capture that ends after its first block."""
    x = self.proj_in(tokens)
    self._blocks()[0](x, text, modulation, rope, cache=cache)


def forward_early(
    self: RefinerModel,
    tokens: Tensor,
    text: Any,
    modulation: Any,
    rope: Any,
    *,
    cache: Any,
    context_tokens: int = 0,
) -> Tensor:
    """A denoising pass that ends after its first block."""
    self._blocks()[0](self.proj_in(tokens), text, modulation, rope, cache=cache)
    return tokens


FAULTS: dict[str, tuple[Callable[[Patch], None], type[SanawmError] | type[KeyboardInterrupt], str]]
FAULTS = {
    "layer 0 bypasses the cache": (
        lambda p: p.setattr(RefinerBlock, "_self_attention", bypass((0,))),
        IncompletePass,
        "layer 0 of 2 did not write in the denoising pass of block 2",
    ),
    "all layers bypass it": (
        lambda p: p.setattr(RefinerBlock, "_self_attention", bypass((0, 1))),
        IncompletePass,
        "layers 0, 1 of 2 did not write",
    ),
    "denoising stops early": (
        lambda p: p.setattr(RefinerModel, "forward", forward_early),
        IncompletePass,
        "layer 1 of 2 did not write in the denoising pass of block 2",
    ),
    "capture stops early": (
        lambda p: p.setattr(RefinerModel, "capture", stop_early),
        IncompletePass,
        "layer 1 of 2 did not write in the post_rope pass of block 2",
    ),
    "interrupted in the capture": (
        lambda p: p.setattr(RefinerModel, "capture", interrupt),
        KeyboardInterrupt,
        "Ctrl-C",
    ),
}


def interrupt(*args: Any) -> None:
    raise KeyboardInterrupt("Ctrl-C")


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_failed_block_leaves_the_stream_and_can_be_tried_again(
    name: str, monkeypatch: Patch
) -> None:
    clean = clip(17)
    expected = run(make(17), clean)
    stream = make(17)
    run(stream, clean[:, :, :7])
    before = flat(stream.state_dict())
    make_fault, error, words = FAULTS[name]
    with monkeypatch.context() as patch:
        make_fault(patch)
        for _ in range(2):
            with pytest.raises(error, match=words):
                stream.refine(clean[:, :, 7:10], start=7)
            assert_same_state(flat(stream.state_dict()), before)
    assert_equal(run(stream, clean), expected[2:])


def test_a_failed_sink_pass_can_be_tried_again(monkeypatch: Patch) -> None:
    clean = clip(10)
    stream = make(10)
    with monkeypatch.context() as patch:
        patch.setattr(RefinerModel, "capture", stop_early)
        with pytest.raises(IncompletePass, match=r"layer 1 of 2 .* pre_rope pass of the sink"):
            stream.start(clean[:, :, :1])
    with pytest.raises(BlockOrderError, match="came before the 1 sink frames"):
        stream.refine(clean[:, :, 1:4])
    assert_equal(run(stream, clean), run(make(10), clean))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_in_a_block_stops_the_run_and_not_the_stream(value: float) -> None:
    clean = clip(14)
    stream = make(14)
    run(stream, clean[:, :, :7])
    before = flat(stream.state_dict())
    bad = clean[:, :, 7:10].clone()
    bad[0, 3, 1, 1, 2] = value
    with pytest.raises(NumericsError, match=r"block 2 \(latent frames 7\.\.9\).* NaN") as caught:
        stream.refine(bad)
    assert isinstance(caught.value, ArithmeticError)
    assert caught.value.fix
    assert_same_state(flat(stream.state_dict()), before)
    assert_equal(run(stream, clean), run(make(14), clean)[2:])


def test_nan_in_the_sink_is_refused_at_once() -> None:
    sink = clip(1)
    sink[0, 0, 0, 0, 0] = float("nan")
    stream = make(7)
    with pytest.raises(NumericsError, match="the 1 sink frames hold NaN"):
        stream.start(sink)
    clean = clip(7)
    assert_equal(run(stream, clean), run(make(7), clean))


def test_the_model_and_its_cache_must_have_the_same_layers() -> None:
    stream = make(7)
    model = golden_model("split")
    for layers in (1, 3):
        cache = RefinerCache(
            layers=layers, batch=1, heads=2, head_dim=16, tokens_per_frame=6, window=SMALL,
            rope_kind="split", device="cpu", dtype=torch.float32,
        )  # fmt: skip
        running = cache.begin(BlockSpan(-1, 0, 1), capture="pre_rope")
        rope = stream._rope.build([0])
        arguments = (torch.zeros(1, 6, 8), stream.text, stream._modulation(0.0), rope)
        with pytest.raises(UsageError, match=f"the cache has {layers} layers, this refiner 2"):
            model.capture(*arguments, running)
        with pytest.raises(UsageError, match=f"the cache has {layers} layers, this refiner 2"):
            model(*arguments, cache=running)


def test_prompts_must_fit_the_latents() -> None:
    model = golden_model("split")
    prompt = torch.zeros(2, 5, 12)
    with pytest.raises(UsageError, match="2 prompts for a batch of 3 latents; expected 1 or 3"):
        model.prepare_text(prompt).expand(3)
    with pytest.raises(UsageError, match=r"shape \(2, 5, 7\).*expects \(B, L, 12\)"):
        model.prepare_text(prompt[..., :7])
    with pytest.raises(UsageError, match=r"mask has shape \(2, 4\); expected \(2, 5\)"):
        model.prepare_text(prompt, torch.ones(2, 4))


def test_given_noise_must_fit_the_clip() -> None:
    eps = torch.zeros(1, 8, 5, H, W)  # the clip needs 6
    stream = make(7, noise=GivenNoise.of(eps, sink=1))
    clean = clip(7)
    stream.start(clean[:, :, :1])
    stream.refine(clean[:, :, 1:4])
    with pytest.raises(InputError, match=r"noise for block 1 has shape \(1, 8, 2, 2, 3\), exp"):
        stream.refine(clean[:, :, 4:7])
    assert stream.next_frame == 4


@pytest.mark.parametrize(
    ("shape", "changes", "words"),
    [
        ((1, 8, 2, H, W), {"sink": 2}, "clip of 2 latent frames .* sink of 2"),
        ((1, 8, 4, H, W), {"sink": -1}, "sink size -1 is negative"),
        ((1, 4, 4, H, W), {}, r"shape \(1, 4, 4, 2, 3\); this refiner expects \(B, 8, T, H, W\)"),
        ((8, 4, H, W), {}, r"shape \(8, 4, 2, 3\)"),
        ((1, 8, 4, H, W), {"fps": -1.0}, "frame rate -1.0"),
    ],
)
def test_single_shot_refuses(shape: tuple[int, ...], changes: dict[str, Any], words: str) -> None:
    model = golden_model("split")
    settings: dict[str, Any] = {
        "sink": 1, "fps": 16.0, "sigmas": RELEASED_SIGMAS, "noise": SeededNoise(0),
    }  # fmt: skip
    text = model.prepare_text(torch.zeros(1, 5, 12))
    with pytest.raises(UsageError, match=words):
        refine_single_shot(model, text, torch.zeros(shape), **(settings | changes))


def test_single_shot_stops_at_nan() -> None:
    model = golden_model("split")
    clean = clip(4)
    clean[0, 0, 2] = float("nan")
    with pytest.raises(NumericsError, match="single-shot"):
        refine_single_shot(
            model, model.prepare_text(torch.zeros(1, 5, 12)), clean,
            sink=1, fps=16.0, sigmas=RELEASED_SIGMAS, noise=SeededNoise(0),
        )  # fmt: skip
