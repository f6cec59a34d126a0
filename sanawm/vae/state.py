"""What the VAE carries from one chunk of a stream to the next: `DecoderState`, `EncoderState`.

A state holds, for every causal convolution, its *tail*: the last two frames of its padded input.
A time-halving downsampler may also hold one *pending* frame that waits for its partner. A
convolution without a tail has not run yet, which is how up- and downsamplers know the first chunk.

Tails are replaced, never written into, and are copies: a view would keep the whole activation of
its chunk alive. The size of a state depends on the picture, not on the length of the clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sanawm.errors import BlockOrderError, InputError


class StreamKey(NamedTuple):
    """What must stay the same from chunk to chunk; `height` and `width` are those of the input."""

    batch: int
    height: int
    width: int
    dtype: str  # of the input, as in "float32"
    compute_dtype: str  # of the weights
    device: str


class StreamState:
    """State of one stream, created empty. Never share it between two streams.

    `taken` counts the time steps taken in so far: latent frames when decoding, frames when
    encoding.
    """

    kind: ClassVar[str]

    def __init__(self) -> None:
        self.tails: dict[str, Tensor] = {}
        self.pending: dict[str, Tensor] = {}
        self.taken = 0
        self.key: StreamKey | None = None
        self.usable = True

    @property
    def nbytes(self) -> int:
        """Size in bytes of the memory that the carried tensors keep alive."""
        carried = [*self.tails.values(), *self.pending.values()]
        return sum(t.untyped_storage().nbytes() for t in carried)

    def reset(self) -> None:
        """Drop everything: the next chunk starts a new stream, of any size."""
        self.tails.clear()
        self.pending.clear()
        self.taken = 0
        self.key = None
        self.usable = True

    @contextmanager
    def chunk(self, key: StreamKey, *, steps: int, convs: Mapping[str, int]) -> Iterator[None]:
        """Run one chunk of `steps` time steps; `convs` names the convolutions and their channels.

        Raises `BlockOrderError` when the chunk does not continue the stream; the state is then as
        it was. An exception inside the chunk leaves it half advanced: it refuses further chunks
        until `reset`.
        """
        self._check(key, convs)
        self.key = key
        self.usable = False
        yield
        self.taken += steps
        self.usable = True

    def check_usable(self) -> None:
        """Raise `BlockOrderError` when an earlier chunk of the stream has failed half way."""
        if not self.usable:
            raise BlockOrderError(
                f"the {self.kind} state is unusable: a chunk after {self.taken} time steps failed "
                "half way (or is still running)",
                fix="call reset() and start the stream again, or load a saved state",
            )

    def _check(self, key: StreamKey, convs: Mapping[str, int]) -> None:
        self.check_usable()
        if self.key is not None and key != self.key:
            changed = ", ".join(
                f"{name} {found}, expected {expected}"
                for name, found, expected in zip(key._fields, key, self.key, strict=True)
                if found != expected
            )
            raise BlockOrderError(
                f"the chunk does not continue the {self.kind} stream: {changed}",
                fix="keep size and dtype within a stream, or reset the state to start another",
            )
        held = {name: tail.shape[1] for name, tail in self.tails.items()}
        if held and held != convs:
            odd = sorted(set(held.items()) ^ set(convs.items()))[0][0]
            raise BlockOrderError(
                f"the {self.kind} state does not fit this VAE: {odd} has {held.get(odd, 'no')} "
                f"channels in the state, expected {convs.get(odd, 'none')}",
                fix="use a state with the model that made it",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors (`tail.*`, `pending.*`) and plain values, for a run state.

        Later chunks do not change the tensors; they are the state's own where those are contiguous
        (tails of a stream without gradients lie channels last).
        Raises `BlockOrderError` when the state is unusable.
        """
        self.check_usable()
        saved: dict[str, Any] = {"kind": self.kind, "taken": self.taken}
        if self.key is not None:
            saved |= {n: v for n, v in self.key._asdict().items() if n != "device"}
        saved |= {f"tail.{name}": t.contiguous() for name, t in self.tails.items()}
        saved |= {f"pending.{name}": t.contiguous() for name, t in self.pending.items()}
        return saved

    def load_state_dict(self, saved: Mapping[str, Any], *, device: torch.device | str) -> None:
        """Become the state that `state_dict` returned, with copies of its tensors on `device`.

        Raises `InputError` when `saved` is damaged or of another kind; this state is then as it
        was.
        """
        if saved.get("kind") != self.kind:
            raise InputError(
                f"saved {self.kind} state: kind is {saved.get('kind')!r}, expected {self.kind!r}"
            )
        tensors = {n: v for n, v in saved.items() if isinstance(v, Tensor)}
        strange = [n for n in tensors if not n.startswith(("tail.", "pending."))]
        taken = _integer(saved, "taken", kind=self.kind)
        if strange or bool(tensors) != (taken > 0):
            raise InputError(
                f"saved {self.kind} state is damaged: {len(tensors)} tensors after {taken} time "
                f"steps{', unknown: ' + strange[0] if strange else ''}"
            )
        key = _saved_key(saved, device=device, kind=self.kind) if taken else None
        copies = {n: t.to(device=device, copy=True) for n, t in tensors.items()}
        self.reset()
        self.tails = _named(copies, "tail.")
        self.pending = _named(copies, "pending.")
        self.taken = taken
        self.key = key


class DecoderState(StreamState):
    """State of one stream of `VAEDecoder.decode`; `taken` counts latent frames."""

    kind = "decoder"


class EncoderState(StreamState):
    """State of one stream of `VAEEncoder.encode`; `taken` counts frames."""

    kind = "encoder"


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _integer(saved: Mapping[str, Any], name: str, *, kind: str) -> int:
    value = saved.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"saved {kind} state: {name} is {value!r}, expected an integer >= 0")
    return value


def _saved_key(saved: Mapping[str, Any], *, device: torch.device | str, kind: str) -> StreamKey:
    for name in ("dtype", "compute_dtype"):
        if not isinstance(saved.get(name), str):
            raise InputError(f"saved {kind} state: {name} is {saved.get(name)!r}, expected a text")
    return StreamKey(
        batch=_integer(saved, "batch", kind=kind),
        height=_integer(saved, "height", kind=kind),
        width=_integer(saved, "width", kind=kind),
        dtype=saved["dtype"],
        compute_dtype=saved["compute_dtype"],
        device=str(torch.empty(0, device=device).device),  # with its number, as in cuda:0
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as it is written to files: "float32"."""
    return str(dtype).removeprefix("torch.")
