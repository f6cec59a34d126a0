"""The chunk runner: clean latents in, refined latents out, one block at a time.

For every block: place the sink's keys right in front of the history, mix the clean block with
fresh noise, walk the sigma schedule while attending to `[sink | history | block]`, then run one
pass at sigma 0 whose keys and values become history. The last block of a clip needs no such pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from sanawm.errors import BlockOrderError, NumericsError, UsageError
from sanawm.ops.rope import RopeKind, RopeTable
from sanawm.shapes import BlockSpan, LatentShape, Window, check_fps, check_window

from .cache import CachePass, RefinerCache
from .graph import PassGraphs
from .model import PassVectors, RefinerModel, TextContext
from .noise import Noise
from .positions import RopeBuilder
from .sampler import (
    SigmaSchedule,
    euler_update,
    from_tokens,
    mix_noise,
    predict_clean,
    to_tokens,
)


@dataclass(frozen=True)
class RefinedBlock:
    """A refined block: its span, latents `(B, C, f, H, W)` and what its queries attended to.

    `sink_position` is the frame position that the first sink frame was rotated to.
    """

    span: BlockSpan
    latents: Tensor
    history_frames: int
    sink_position: int


#: Called after each denoising step with (step, x0 tokens, next x tokens), each `(B, S, C)`.
StepObserver = Callable[[int, Tensor, Tensor], None]


class RefinerStream:
    """Refine one clip block by block: one prompt, one latent size, one frame rate.

    `shape.frames` is the clip's length T including the sink; with `open_ended` T is not known yet
    and every block is captured. `graphs` replays the passes of the full window. Raises
    `UsageError` for an impossible window, sigma list or frame rate, and for T <= sink.
    """

    def __init__(
        self,
        model: RefinerModel,
        text: TextContext,
        *,
        shape: LatentShape,
        fps: float,
        window: Window,
        sigmas: Sequence[float],
        noise: Noise,
        open_ended: bool = False,
        graphs: PassGraphs | None = None,
    ) -> None:
        check_window(window)
        check_fps(fps)
        if shape.channels != model.config.in_channels:
            raise UsageError(
                f"latents have {shape.channels} channels, the refiner expects "
                f"{model.config.in_channels}"
            )
        if not open_ended and shape.frames <= window.sink:
            raise UsageError(
                f"a clip of {shape.frames} latent frames has nothing to refine after a sink of "
                f"{window.sink}",
                fix=f"give at least {window.sink + 1} latent frames",
            )
        self.model = model
        self.text = text.expand(shape.batch)
        self.shape = shape
        self.window = window
        self.schedule = SigmaSchedule(sigmas)
        self.noise = noise
        self.open_ended = open_ended
        self.cache = RefinerCache(
            layers=model.config.num_layers,
            batch=shape.batch,
            heads=model.config.num_attention_heads,
            head_dim=model.config.attention_head_dim,
            tokens_per_frame=shape.tokens_per_frame,
            window=window,
            rope_kind=cast(RopeKind, model.config.rope_type),
            device=model.device,
            dtype=model.dtype,
            ops=model.ops,
        )
        self._rope = RopeBuilder(
            model.config, height=shape.height, width=shape.width, fps=fps, device=model.device
        )
        self._graphs = graphs
        self._modulations: dict[float, PassVectors] = {}
        self._position = window.sink
        self._started = window.sink == 0
        self._ended = False
        self._blocks = 0

    @property
    def next_frame(self) -> int:
        """Absolute latent frame at which the next block must start."""
        return self._position

    @torch.no_grad()
    def start(self, sink: Tensor | None) -> None:
        """Capture the sink frames `(B, C, sink, H, W)`: depends on prompt and image only."""
        count = self.window.sink
        if count == 0:
            raise BlockOrderError("this stream has no sink: refine its first block at once")
        if self._started:
            raise BlockOrderError("the stream has started already; its sink cannot be replaced")
        found = 0 if sink is None else sink.shape[2]
        if sink is None or found != count:
            raise BlockOrderError(
                f"{found} sink frames were given, this stream expects {count}",
                fix=f"pass latents[:, :, :{count}] to start() before the first block",
            )
        self._check_size(sink, "sink")
        _check_finite(sink, f"the {count} sink frames hold NaN or infinity")
        span = BlockSpan(-1, 0, count)
        rope = self._rope.build(range(count))
        running = self.cache.begin(span, capture="pre_rope")
        self.model.capture(
            to_tokens(self._as_model(sink)), self.text, self._modulation(0.0), rope, running
        )
        self.cache.commit("pre_rope")
        self._started = True

    @torch.no_grad()
    def refine(
        self,
        clean: Tensor,
        *,
        start: int | None = None,
        observe: StepObserver | None = None,
    ) -> RefinedBlock:
        """Return the refined block for `clean` `(B, C, f, H, W)`, 1 <= f <= block.

        `start` is the block's first absolute latent frame, checked when given. A shorter block
        ends the clip. When this raises, the stream is as it was and the block can be tried again.
        """
        span = self._next_span(clean, start)
        history = self.cache.history_frames
        sink_position = self.window.sink_position_at(span.start)
        noise_before = self.noise.state_dict()
        try:
            latents = self._run(clean, span, sink_position, observe)
        except BaseException:
            self.noise.load_state_dict(noise_before)
            raise
        self._position = span.stop
        self._blocks += 1
        self._ended = span.frames < self.window.block or self._is_last(span)
        return RefinedBlock(span, latents, history, sink_position)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next block depends on, as plain tensors and numbers."""
        return {
            "position": self._position,
            "started": self._started,
            "ended": self._ended,
            "blocks": self._blocks,
            "cache": self.cache.state_dict(),
            "noise": self.noise.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, in a stream of the same settings.

        Raises `UsageError`, with this stream unchanged, when window, sizes or noise are others.
        """
        noise_before = self.noise.state_dict()
        self.noise.load_state_dict(state["noise"])
        try:
            self.cache.load_state_dict(state["cache"])
        except BaseException:
            self.noise.load_state_dict(noise_before)
            raise
        self._position = int(state["position"])
        self._started = bool(state["started"])
        self._ended = bool(state["ended"])
        self._blocks = int(state["blocks"])

    def _run(
        self, clean: Tensor, span: BlockSpan, sink_position: int, observe: StepObserver | None
    ) -> Tensor:
        """Denoise the block and, unless it is the last, capture its clean K/V as history."""
        z = self._as_model(clean)
        eps = self.noise.draw(span, tuple(z.shape)).to(z.device, z.dtype)
        x = to_tokens(mix_noise(z, eps, sigma=self.schedule.sigmas[0]))  # (B, S, C)
        if self.window.sink:
            sink_frames = range(sink_position, sink_position + self.window.sink)
            self.cache.place_sink(self._rope.build(sink_frames))
        rope = self._rope.build(range(span.start, span.stop))
        for number, step in enumerate(self.schedule.steps):
            running = self.cache.begin(span)
            velocity = self._velocity(x, step.sigma, rope, running)
            running.check_complete()
            x0 = predict_clean(x, velocity, sigma=step.sigma)
            x = euler_update(x, x0, step)
            if observe is not None:
                observe(number, x0, x)
        frames = f"latent frames {span.start}..{span.stop - 1}"
        _check_finite(x, f"block {span.number} ({frames}) came out with NaN or infinity")
        latents = from_tokens(
            x, frames=span.frames, height=self.shape.height, width=self.shape.width
        )
        if not self._is_last(span):
            running = self.cache.begin(span, capture="post_rope")
            self._capture(x, rope, running)
            self.cache.commit("post_rope")
        return latents

    def _velocity(self, x: Tensor, sigma: float, rope: RopeTable, running: CachePass) -> Tensor:
        """Run a denoising pass."""
        m = self._modulation(sigma)

        def work(x: Tensor, rope: RopeTable) -> Tensor:
            return self.model(x, self.text, m, rope, cache=running)

        if self._graphs is None:
            return work(x, rope)
        return cast(Tensor, self._graphs(work, x, rope, key=sigma, running=running))

    def _capture(self, x: Tensor, rope: RopeTable, running: CachePass) -> None:
        """Run the clean pass of a block."""
        m = self._modulation(0.0)

        def work(x: Tensor, rope: RopeTable) -> None:
            self.model.capture(x, self.text, m, rope, running)

        if self._graphs is None:
            work(x, rope)
        else:
            self._graphs(work, x, rope, key="clean", running=running)

    def _is_last(self, span: BlockSpan) -> bool:
        return not self.open_ended and span.stop >= self.shape.frames

    def _modulation(self, sigma: float) -> PassVectors:
        """Return the modulation of a sigma; there are only as many as the schedule has values."""
        if sigma not in self._modulations:
            timestep = self.schedule.timestep(
                sigma, multiplier=self.model.config.timestep_scale_multiplier
            )
            modulation = self.model.modulation(timestep)
            self._modulations[sigma] = self.model.pass_vectors(modulation)
        return self._modulations[sigma]

    def _as_model(self, latents: Tensor) -> Tensor:
        return latents.to(self.model.device, self.model.dtype)

    def _next_span(self, clean: Tensor, start: int | None) -> BlockSpan:
        """Check that `clean` continues the clip and return its span."""
        if not self._started:
            raise BlockOrderError(
                f"the first block came before the {self.window.sink} sink frames",
                fix="call start(latents[:, :, :sink]) first",
            )
        if self._ended:
            raise BlockOrderError(
                f"the clip has ended at latent frame {self._position}: a block after the last "
                "(or after a shorter one) cannot be refined",
                fix="start a new stream for a new clip",
            )
        self._check_size(clean, "block")
        frames = clean.shape[2]
        at = self._position if start is None else start
        if at < self.window.sink:
            raise BlockOrderError(
                f"a block starting at latent frame {at} overlaps the sink "
                f"(frames 0..{self.window.sink - 1})"
            )
        if at != self._position:
            kind = "a gap" if at > self._position else "a repeat"
            raise BlockOrderError(
                f"{kind}: the block starts at latent frame {at}, expected {self._position}"
            )
        if not 1 <= frames <= self.window.block:
            raise BlockOrderError(
                f"a block of {frames} latent frames; expected 1 to {self.window.block}"
            )
        if not self.open_ended and at + frames > self.shape.frames:
            raise BlockOrderError(
                f"the block ends at latent frame {at + frames}, the clip at {self.shape.frames}"
            )
        return BlockSpan(self._blocks, at, at + frames)

    def _check_size(self, latents: Tensor, what: str) -> None:
        B, C, _, H, W = self.shape
        if latents.ndim != 5 or (*latents.shape[:2], *latents.shape[3:]) != (B, C, H, W):
            raise BlockOrderError(
                f"the {what} has shape {tuple(latents.shape)}; "
                f"expected (B, C, f, H, W) with B {B}, C {C}, H {H}, W {W} as the stream was built"
            )


def _check_finite(latents: Tensor, what: str) -> None:
    if not bool(torch.isfinite(latents).all()):
        raise NumericsError(
            f"refiner: {what}",
            fix="check the clean latents and the weights, or use --precision fp32",
        )
