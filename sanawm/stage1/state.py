"""What stage 1 carries from chunk to chunk: memories, tails, and the cached keys of a window.

A forward pass reads the state and returns the blocks' new states; only `commit` changes it. The
denoising passes of a chunk therefore cannot disturb it, and the context pass may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sanawm.errors import BlockOrderError, InputError

from .config import Stage1Config
from .gdn import GDNState
from .plan import ChunkWindow
from .softmax import ChunkKV

StateValue = Tensor | int | bool | list[int]


class BlockWrite(NamedTuple):
    """What one block leaves after a pass: its attention's state and its feed-forward tail."""

    attention: GDNState | ChunkKV
    ffn_tail: Tensor  # (B, 1, HW, D)


class BlockPast(NamedTuple):
    """What one block reads of earlier chunks; empty before the first."""

    gdn: GDNState = GDNState()
    window: tuple[ChunkKV, ...] = ()
    ffn_tail: Tensor | None = None


class Stage1State:
    """State of one stream. Its size is bounded unless the window keeps every chunk.

    `chunks` and `frames` count what was committed: `frames` is the absolute latent frame at which
    the next chunk starts.
    """

    def __init__(self, config: Stage1Config, *, window: ChunkWindow) -> None:
        self.config = config
        self.window = window
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next chunk is the first."""
        self.chunks = 0
        self.frames = 0
        self.kept: list[int] = []
        self.camera: bool | None = None
        self.blocks: list[BlockPast] = [BlockPast() for _ in range(self.config.depth)]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values())

    def check_mode(self, *, camera: bool) -> None:
        """Raise `BlockOrderError` when a stream begun with a camera goes on without, or reverse."""
        if self.camera is not None and self.camera is not camera:
            began = "with" if self.camera else "without"
            raise BlockOrderError(
                f"stage 1, chunk {self.chunks}: this stream began {began} a raymap",
                fix="give every chunk a raymap, or none",
            )

    def commit(self, writes: Sequence[BlockWrite], *, frames: int, camera: bool) -> None:
        """Take over the states that the context pass of a chunk of `frames` latent frames left.

        Tensors are copied, so that no activation of the pass stays alive behind a view.
        """
        self.check_mode(camera=camera)
        if len(writes) != self.config.depth:
            raise BlockOrderError(
                f"stage 1, chunk {self.chunks}: {len(writes)} blocks were written, "
                f"expected {self.config.depth}"
            )
        seen = [*self.kept, self.chunks]
        kept = [c for c in self.window.kept_after(self.chunks) if c in seen]
        blocks = []
        for past, write in zip(self.blocks, writes, strict=True):
            tail = _copy(write.ffn_tail)
            if isinstance(write.attention, GDNState):
                blocks.append(BlockPast(GDNState(*map(_maybe, write.attention)), (), tail))
                continue
            chunks = dict(zip(seen, (*past.window, write.attention), strict=True))
            k, v, camera_k, camera_v = write.attention
            chunks[self.chunks] = ChunkKV(_copy(k), _copy(v), _maybe(camera_k), _maybe(camera_v))
            blocks.append(BlockPast(GDNState(), tuple(chunks[c] for c in kept), tail))
        self.blocks, self.kept, self.camera = blocks, kept, camera
        self.chunks += 1
        self.frames += frames

    def state_dict(self) -> dict[str, StateValue]:
        """Return tensors and JSON-able values that `load_state_dict` restores bit for bit."""
        head: dict[str, StateValue] = {
            "chunks": self.chunks,
            "frames": self.frames,
            "kept": list(self.kept),
            "camera": bool(self.camera),
        }
        return head | self._tensors()

    def load_state_dict(
        self, values: Mapping[str, StateValue], *, device: torch.device | str
    ) -> None:
        """Restore what `state_dict` returned, with the tensors on `device`.

        Raises `InputError` when the values are not those of this model and window.
        """
        chunks, frames, kept = (values.get(k) for k in ("chunks", "frames", "kept"))
        if not isinstance(chunks, int) or not isinstance(frames, int) or not isinstance(kept, list):
            raise InputError("saved stage-1 state: chunks, frames or kept is missing")
        if kept != (self.window.kept_after(chunks - 1) if chunks else []):
            raise InputError(
                f"saved stage-1 state holds chunks {kept}, which is not what a window of "
                f"{self.window.cached} (sink {'on' if self.window.sink else 'off'}) keeps",
                fix="resume with the settings of the first run",
            )
        tensors = {k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)}
        camera = bool(values.get("camera"))
        blocks = [BlockPast() for _ in range(self.config.depth)]
        if chunks:
            blocks = [self._load_block(i, tensors, kept, camera) for i in range(len(blocks))]
        if tensors:
            raise InputError(f"saved stage-1 state: {next(iter(tensors))} belongs to no block")
        self.chunks, self.frames, self.kept, self.blocks = chunks, frames, list(kept), blocks
        self.camera = camera if chunks else None

    def _tensors(self) -> dict[str, Tensor]:
        """Name every tensor held."""
        found: dict[str, Tensor | None] = {}
        for i, past in enumerate(self.blocks):
            found |= {f"blocks.{i}.{k}": v for k, v in past.gdn._asdict().items()}
            for number, chunk in zip(self.kept, past.window, strict=False):
                found |= {f"blocks.{i}.chunk{number}.{k}": v for k, v in chunk._asdict().items()}
            found[f"blocks.{i}.ffn_tail"] = past.ffn_tail
        return {k: v for k, v in found.items() if v is not None}

    def _load_block(
        self, block: int, tensors: dict[str, Tensor], kept: list[int], camera: bool
    ) -> BlockPast:
        """Take the tensors of `block` out of `tensors`."""

        def take(name: str) -> Tensor:
            key = f"blocks.{block}.{name}"
            tensor = tensors.pop(key, None)
            width = self.config.width if name.endswith("tail") else self.config.head_size
            if tensor is None or tensor.shape[-1] != width:
                found = "missing" if tensor is None else f"{tuple(tensor.shape)}, not of this model"
                raise InputError(f"saved stage-1 state: {key} is {found}")
            return tensor

        tail = take("ffn_tail")
        if not self.config.is_softmax(block):
            names = [f for f in GDNState._fields if camera or not f.startswith("camera")]
            return BlockPast(GDNState(**{f: take(f) for f in names}), (), tail)
        fields = [f for f in ChunkKV._fields if camera or not f.startswith("camera")]
        window = [ChunkKV(**{f: take(f"chunk{n}.{f}") for f in fields}) for n in kept]
        return BlockPast(GDNState(), tuple(window), tail)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _maybe(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _copy(tensor)
