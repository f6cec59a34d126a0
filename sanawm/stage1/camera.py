"""Where the stream takes the camera tensors of a chunk from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sanawm.camera.geometry import Float32
from sanawm.shapes import BlockSpan


class CameraChunk(NamedTuple):
    """Camera tensors of one chunk; None skips the branch that reads them.

    raymap: `(1, T, 20)`; plucker: `(1, 6r, T, H, W)`, r pixel frames a latent frame; float32.
    """

    raymap: Tensor | None
    plucker: Tensor | None


class CameraSource(Protocol):
    """Gives the camera tensors of latent frames `span.start .. span.stop - 1`."""

    def __call__(self, span: BlockSpan) -> CameraChunk:
        """Return the tensors of one chunk."""
        ...


class RaySource(Protocol):
    """What a camera path is for the model: `CameraRays`, or `LiveRays` of a path that grows."""

    def raymap(self, start: int, stop: int) -> Float32:
        """Return `(t, 20)` for latent frames `start .. stop - 1`."""
        ...

    def chunk_plucker(self, start: int, stop: int) -> Float32:
        """Return `(6r, t, H, W)` for latent frames `start .. stop - 1`."""
        ...


class PathCamera:
    """Camera tensors computed chunk by chunk from a path, so that a long clip costs no memory.

    `use_plucker` False leaves the Plücker rays out, for a model without an embedder for them.
    """

    def __init__(self, rays: RaySource, *, use_plucker: bool = True) -> None:
        self.rays, self.use_plucker = rays, use_plucker

    def __call__(self, span: BlockSpan) -> CameraChunk:
        """Compute the tensors of one chunk."""
        raymap = torch.from_numpy(self.rays.raymap(span.start, span.stop))[None]
        if not self.use_plucker:
            return CameraChunk(raymap, None)
        plucker = torch.from_numpy(self.rays.chunk_plucker(span.start, span.stop))[None]
        return CameraChunk(raymap, plucker)


class ReadyCamera:
    """Camera tensors of a whole clip, already computed: `(1, T, 20)` and `(1, 6r, T, H, W)`."""

    def __init__(self, raymap: Tensor | None, plucker: Tensor | None) -> None:
        self.raymap, self.plucker = raymap, plucker

    def __call__(self, span: BlockSpan) -> CameraChunk:
        """Return the slice of one chunk."""
        frames = slice(span.start, span.stop)
        return CameraChunk(
            None if self.raymap is None else self.raymap[:, frames],
            None if self.plucker is None else self.plucker[:, :, frames],
        )
