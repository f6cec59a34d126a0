"""The refiner's keys and values across blocks: `[sink | history | active]` in one buffer.

One preallocated buffer for keys and one for values holds all layers, head-major:
`(M, B, N, P, K)` with P = (sink + history + block) tokens. Attention reads the leading slice, so
nothing is concatenated or cloned.

* sink: keys kept before RoPE as well, and rotated into their place once a block, to the positions
  right in front of the history; captured once, a block cannot start before they are placed;
* history: keys after RoPE at their absolute positions, never rotated again;
* active: what the running pass writes. `commit` turns it into history and drops the oldest frames
  beyond the window by one shift, keeping the order. (A rotated ring would change the order of
  summation in the softmax, and with it the bits.)

After the sink pass a pass only writes the active slot, so one that failed leaves sink and history
as they were and its block can be tried again. Source of the window rules: the public streaming
refiners, checked against their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from sanawm.errors import IncompletePass, MissingCapturedKV, UnsupportedCaptureMode, UsageError
from sanawm.ops.attention import split_heads
from sanawm.ops.fused import EAGER, BlockOps, WideNorm
from sanawm.ops.rope import RopeKind, RopeTable
from sanawm.shapes import BlockSpan, Window

CaptureMode = Literal["pre_rope", "post_rope"]
CAPTURE_MODES: tuple[str, ...] = get_args(CaptureMode)
RESUME_FIX = "resume with the model, precision, size and window of the saved run"


class CapturedKV(NamedTuple):
    """Keys and values of one layer as views of the cache, `(B, N, S, K)` each."""

    keys: Tensor
    values: Tensor


class CachePass:
    """One forward pass through all layers, as the cache sees it.

    `capture` is `pre_rope` (the sink: keys kept before rotation), `post_rope` (the clean pass whose
    K/V become history), or None (a denoising pass: its K/V are overwritten by the next pass).
    """

    def __init__(self, cache: RefinerCache, span: BlockSpan, capture: CaptureMode | None) -> None:
        self._cache = cache
        self.span = span
        self.capture = capture
        self.written = [False] * cache.layers

    def write(
        self,
        layer: int,
        k: Tensor,
        v: Tensor,
        rope: RopeTable,
        kind: RopeKind,
        *,
        norm: WideNorm | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values, rotating the keys on the way in.

        k, v: `(B, N, S, K)`, keys normalised but not rotated. With `norm` the keys come as they
        were projected, `(B, S, N*K)`, and are normalised too. Returns what to attend to,
        `(B, N, P, K)`: sink, history and this block. Raises `UsageError` for a layer or
        a shape that the cache was not made for.
        """
        keys, values = self._cache._write(self, layer, k, v, rope, kind, norm)
        self.written[layer] = True
        return keys, values

    def mark_written(self) -> None:
        """Note that all layers have written: by replaying a recorded pass."""
        self.written = [True] * len(self.written)

    @property
    def steady(self) -> bool:
        """Whether this pass has the sizes of all later ones: a whole block, a full window."""
        window = self._cache.window
        return (
            self.capture != "pre_rope"
            and self.span.frames == window.block
            and self._cache.history_frames == window.history_max
        )

    def check_complete(self) -> None:
        """Raise `IncompletePass` naming the layers that have not written in this pass."""
        if self.silent_layers:
            mode = self.capture or "denoising"
            raise IncompletePass(
                f"captured K/V are incomplete: {_layers(self.silent_layers)} of "
                f"{len(self.written)} did not write in the {mode} pass of {_name(self.span)}",
                fix="every attention layer must call CachePass.write; run the pass again",
            )

    @property
    def silent_layers(self) -> list[int]:
        """Layers that have not written in this pass."""
        return [i for i, done in enumerate(self.written) if not done]


class RefinerCache:
    """State of one refiner stream. See the module text for its layout and rules."""

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        heads: int,
        head_dim: int,
        tokens_per_frame: int,
        window: Window,
        rope_kind: RopeKind,
        device: torch.device | str,
        dtype: torch.dtype,
        ops: BlockOps = EAGER,
    ) -> None:
        self.layers = layers
        self.tokens_per_frame = tokens_per_frame
        self.window = window
        self.rope_kind = rope_kind
        self._ops = ops
        frames = window.kv_max + window.block
        size = (layers, batch, heads, frames * tokens_per_frame, head_dim)
        sink_size = (layers, batch, heads, window.sink * tokens_per_frame, head_dim)
        self._keys = torch.zeros(size, device=device, dtype=dtype)
        self._values = torch.zeros(size, device=device, dtype=dtype)
        self._sink_keys = torch.zeros(sink_size, device=device, dtype=dtype)  # before RoPE
        self.reset()

    def reset(self) -> None:
        """Forget everything that was captured; the buffers stay."""
        self.history_frames = 0
        self.sink_ready = self.window.sink == 0
        self._sink_placed = self.window.sink == 0
        self._pass: CachePass | None = None
        self._collected: BlockSpan | None = None  # of the pass that was collected last

    @property
    def nbytes(self) -> int:
        """Size of all buffers in bytes; it does not depend on the clip's length."""
        return sum(t.nbytes for t in (self._keys, self._values, self._sink_keys))

    @property
    def prefix_frames(self) -> int:
        """Latent frames in front of the active slot: sink and history."""
        return self.window.sink + self.history_frames

    def place_sink(self, rope: RopeTable) -> None:
        """Rotate the sink's keys to the positions of `rope` (once a block, all layers).

        Raises `MissingCapturedKV` before the sink was captured.
        """
        self._check_sink("placing the sink")
        tokens = self.window.sink * self.tokens_per_frame
        if tokens:
            for layer in range(self.layers):
                place = self._keys[layer, :, :, :tokens]
                self._ops.rotate_into(place, self._sink_keys[layer], rope, self.rope_kind)
        self._sink_placed = True

    def begin(self, span: BlockSpan, *, capture: str | None = None) -> CachePass:
        """Start a pass over `span`; a pass that was not committed is dropped.

        Raises `UnsupportedCaptureMode` for an unknown `capture`, `UsageError` when the block does
        not fit the window or the sink was not placed for it, `MissingCapturedKV` before the sink
        was captured.
        """
        if capture is not None:
            check_capture_mode(capture)
        if capture == "pre_rope":
            self._check_sink_span(span)
        else:
            self._check_block_span(span)
        self._pass = CachePass(self, span, cast(CaptureMode | None, capture))
        return self._pass

    def collect(self, mode: str) -> tuple[CapturedKV, ...]:
        """Return what the last pass captured in `mode`, one entry a layer, and end that pass.

        The views stay valid until the next pass. A second call raises: captured K/V are handed
        out once. Raises `UnsupportedCaptureMode`, `MissingCapturedKV` (no such pass) or
        `IncompletePass` (a layer did not write); all leave the cache unchanged.
        """
        check_capture_mode(mode)
        current = self._pass
        if current is None or current.capture != mode:
            raise self._missing(mode, current)
        current.check_complete()
        self._pass, self._collected = None, current.span
        start = 0 if mode == "pre_rope" else self.prefix_frames * self.tokens_per_frame
        stop = start + current.span.frames * self.tokens_per_frame
        keys = self._sink_keys if mode == "pre_rope" else self._keys[:, :, :, start:stop]
        return tuple(
            CapturedKV(k, v) for k, v in zip(keys, self._values[:, :, :, start:stop], strict=True)
        )

    def commit(self, mode: str) -> None:
        """Keep what the last pass captured: `pre_rope` as the sink, `post_rope` as history.

        Drops the oldest history frames beyond the window, by frames (a block may be cut).
        Raises as `collect` does, with the cache unchanged.
        """
        span = self._pass.span if self._pass is not None else BlockSpan(0, 0, 0)
        self.collect(mode)
        self._sink_placed = self.window.sink == 0  # the sink moves with the history
        if mode == "pre_rope":
            self.sink_ready = True
            return
        total = self.history_frames + span.frames
        kept = min(total, self.window.history_max)
        if total > kept:
            self._shift(drop=total - kept, keep=kept)
        self.history_frames = kept

    def state_dict(self) -> dict[str, Any]:
        """Return sink, history and positions as plain tensors and numbers (for a run state).

        `keys` are those of the history; the sink's are saved before RoPE, as every block places
        them anew. `values` are those of both.
        """
        sink = self.window.sink * self.tokens_per_frame
        visible = self.prefix_frames * self.tokens_per_frame
        return {
            "history_frames": self.history_frames,
            "sink_ready": self.sink_ready,
            "keys": self._keys[:, :, :, sink:visible].clone(),
            "values": self._values[:, :, :, :visible].clone(),
            "sink_keys": self._sink_keys.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned into a cache of the same sizes.

        Raises `UsageError`, with this cache unchanged, when the sizes, the dtype or the window of
        the saved cache are others.
        """
        frames = int(state["history_frames"])
        if not 0 <= frames <= self.window.history_max:
            raise UsageError(
                f"saved cache has {frames} history frames, this window keeps at most "
                f"{self.window.history_max}",
                fix=RESUME_FIX,
            )
        sink = self.window.sink * self.tokens_per_frame
        visible = sink + frames * self.tokens_per_frame
        for name, tokens in (("keys", visible - sink), ("values", visible), ("sink_keys", sink)):
            shape = (*self._keys.shape[:3], tokens, self._keys.shape[4])
            saved = state[name]
            if tuple(saved.shape) != shape or saved.dtype != self._keys.dtype:
                raise UsageError(
                    f"saved cache has {name} {tuple(saved.shape)} {saved.dtype}, "
                    f"expected {shape} {self._keys.dtype}",
                    fix=RESUME_FIX,
                )
        self.reset()
        self._keys[:, :, :, sink:visible] = state["keys"]
        self._values[:, :, :, :visible] = state["values"]
        self._sink_keys.copy_(state["sink_keys"])
        self.history_frames = frames
        self.sink_ready = bool(state["sink_ready"])

    def _write(
        self,
        current: CachePass,
        layer: int,
        k: Tensor,
        v: Tensor,
        rope: RopeTable,
        kind: RopeKind,
        norm: WideNorm | None,
    ) -> tuple[Tensor, Tensor]:
        if current is not self._pass:
            raise MissingCapturedKV(
                f"layer {layer} wrote into a pass over {_name(current.span)} that has ended",
                fix="begin a new pass for every forward",
            )
        by_head = k if norm is None else split_heads(k, self._keys.shape[2])
        self._check_sizes(current.span, layer, by_head, v)
        keys, values = self._keys[layer], self._values[layer]
        if current.capture == "pre_rope":
            if norm is not None:
                k = split_heads(self._ops.norm(k, norm.weight, norm.eps), self._keys.shape[2])
            self._sink_keys[layer].copy_(k)
            values[:, :, : v.shape[2]].copy_(v)  # a sink is captured once, over an empty history
            return self._ops.rotate_into(torch.empty_like(k), k, rope, kind), v
        start = self.prefix_frames * self.tokens_per_frame
        stop = start + v.shape[2]
        if norm is None:
            self._ops.rotate_into(keys[:, :, start:stop], k, rope, kind)
        else:
            self._ops.norm_rotate_into(keys[:, :, start:stop], k, norm, rope, kind)
        values[:, :, start:stop].copy_(v)
        return keys[:, :, :stop], values[:, :, :stop]

    def _shift(self, *, drop: int, keep: int) -> None:
        """Move the newest `keep` frames to the front of the history, `drop` frames at a time.

        Each copy moves at most `drop` frames, so source and target never overlap and nothing is
        allocated.
        """
        n = self.tokens_per_frame
        first = self.window.sink
        for at in range(0, keep, drop):
            count = min(drop, keep - at)
            to, source = (first + at) * n, (first + drop + at) * n
            for buffer in (self._keys, self._values):
                buffer[:, :, :, to : to + count * n] = buffer[:, :, :, source : source + count * n]

    def _check_sink(self, doing: str) -> None:
        if not self.sink_ready:
            raise MissingCapturedKV(
                f"missing captured K/V in mode pre_rope of layers 0..{self.layers - 1}: "
                f"{doing} before block 0 needs the {self.window.sink} sink frames, "
                "which were not captured",
                fix="run the sink pass and commit('pre_rope') before the first block",
            )

    def _check_sink_span(self, span: BlockSpan) -> None:
        if span.frames != self.window.sink or self.window.sink == 0:
            raise UsageError(
                f"a pass over {span.frames} sink frames does not fit: "
                f"the window has a sink of {self.window.sink}"
            )
        if self.sink_ready:
            raise UsageError(
                "the sink was captured already and cannot be replaced",
                fix="call reset() first, or use a new cache for a new clip",
            )

    def _check_block_span(self, span: BlockSpan) -> None:
        if not 1 <= span.frames <= self.window.block:
            raise UsageError(
                f"a pass over {span.frames} latent frames does not fit: "
                f"expected 1 to {self.window.block}"
            )
        self._check_sink(f"a pass over {_name(span)}")
        if not self._sink_placed:
            raise UsageError(
                f"the sink's keys have no place for {_name(span)}: their positions follow the "
                "history, which has moved",
                fix="call place_sink with the table of this block's sink positions first",
            )

    def _check_sizes(self, span: BlockSpan, layer: int, k: Tensor, v: Tensor) -> None:
        if not 0 <= layer < self.layers:
            raise UsageError(
                f"layer {layer} wrote into a cache of {self.layers} layers",
                fix="make the cache with the model's number of layers",
            )
        _, B, N, _, K = self._keys.shape
        expected = (B, N, span.frames * self.tokens_per_frame, K)
        for name, found in (("keys", k.shape), ("values", v.shape)):
            if tuple(found) != expected:
                raise UsageError(
                    f"layer {layer} wrote {name} {tuple(found)} for {_name(span)}, "
                    f"expected (B, N, S, K) = {expected}"
                )

    def _missing(self, mode: str, current: CachePass | None) -> MissingCapturedKV:
        if current is not None:
            kind = "without capture" if current.capture is None else f"in mode {current.capture}"
            found = f"the last pass, over {_name(current.span)}, ran {kind}"
        elif self._collected is not None:
            found = f"no pass has run since {_name(self._collected)} was collected"
        else:
            found = "no pass has run yet, neither over the sink nor over block 0"
        return MissingCapturedKV(
            f"missing captured K/V in mode {mode} of layers 0..{self.layers - 1}: {found}",
            fix=f"run a pass begun with capture={mode!r}, then collect it once",
        )


def check_capture_mode(mode: str) -> None:
    """Raise `UnsupportedCaptureMode` unless `mode` is one of `CAPTURE_MODES`."""
    if mode not in CAPTURE_MODES:
        raise UnsupportedCaptureMode(
            f"capture mode {mode!r} is unknown; expected one of {', '.join(CAPTURE_MODES)}"
        )


def _layers(numbers: list[int]) -> str:
    shown = ", ".join(str(n) for n in numbers[:8]) + (" …" if len(numbers) > 8 else "")
    return f"layer{'s' if len(numbers) > 1 else ''} {shown}"


def _name(span: BlockSpan) -> str:
    return "the sink" if span.number < 0 else f"block {span.number}"
