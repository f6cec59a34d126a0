"""Initial noise of the stage-1 stream.

| step | dtype |
|---|---|
| draw | float32 on the CPU by default, so that a seed means the same on every machine |

A noise source is a function of a chunk's span that returns `(1, C, T, H, W)` for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sanawm.errors import InputError, UsageError
from sanawm.shapes import BlockSpan, LatentShape

from .plan import ChunkPlan

NoiseSource = Callable[[BlockSpan], Tensor]


class ChunkNoise:
    """Noise drawn chunk by chunk, in order, from one generator seeded once a clip.

    Memory does not grow with the clip. Asked for a later chunk (a resumed run), it draws and drops
    the chunks before it, so that a chunk's noise depends on the seed and the plan only.
    """

    def __init__(
        self,
        seed: int,
        *,
        shape: LatentShape,
        spans: ChunkPlan,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.seed, self.shape, self.spans = seed, shape, spans
        self.device, self.dtype = torch.device(device), dtype
        self._restart()

    def _restart(self) -> None:
        self._generator = torch.Generator(device=self.device).manual_seed(self.seed)
        self._next = 0

    def __call__(self, span: BlockSpan) -> Tensor:
        """Return the noise of `span`, `(1, C, T, H, W)`."""
        if not 0 <= span.number < len(self.spans) or self.spans[span.number] != span:
            raise UsageError(f"stage 1: {span} is no chunk of this clip")
        if span.number < self._next:
            self._restart()
        while True:
            noise = draw_noise(
                self.shape._replace(frames=self.spans[self._next].frames),
                self._generator,
                dtype=self.dtype,
            )
            self._next += 1
            if self._next > span.number:
                return noise


class ClipNoise:
    """Noise of a whole clip, held in memory: from a file, or drawn at once by `reference`."""

    def __init__(self, noise: Tensor, *, shape: LatentShape) -> None:
        """Take `noise` `(1, C, T, H, W)`; raise `InputError` when it does not have this shape."""
        if tuple(noise.shape) != tuple(shape):
            raise InputError(
                f"stage-1 noise is {tuple(noise.shape)}, the clip needs {tuple(shape)}",
                fix="use noise made for this clip length and size",
            )
        self.noise = noise

    @classmethod
    def reference(
        cls, seed: int, *, shape: LatentShape, device: torch.device | str, dtype: torch.dtype
    ) -> ClipNoise:
        """Draw as the reference sampler does: the whole clip at once, on `device`, in `dtype`."""
        generator = torch.Generator(device=device).manual_seed(seed)
        return cls(draw_noise(shape, generator, dtype=dtype), shape=shape)

    def __call__(self, span: BlockSpan) -> Tensor:
        """Return the noise of `span`, `(1, C, T, H, W)`."""
        return self.noise[:, :, span.start : span.stop]


def draw_noise(shape: LatentShape, generator: torch.Generator, *, dtype: torch.dtype) -> Tensor:
    """Draw standard normal numbers of `shape` on the generator's device."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device, dtype=dtype)
