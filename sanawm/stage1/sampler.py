"""The stage-1 stream: clean latents of a clip, chunk by chunk, from an image and a camera path.

| step | dtype |
|---|---|
| sigma differences, product with the velocity, sum | float32 |
| latents between steps | dtype of the weights |

Source: the public streaming sampler of SANA-WM. A chunk takes one pass a timestep (plain Euler, no
new noise between steps), then a context pass at timestep 0 whose state the next chunk reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sanawm.errors import BlockOrderError, InputError, NumericsError, UsageError
from sanawm.notes import Notes
from sanawm.shapes import BlockSpan, LatentShape

from .branches import ChunkContext
from .camera import CameraSource
from .model import PassVectors, Stage1Model, Stage1Output, Text
from .noise import NoiseSource
from .plan import (
    RELEASED_STEPS,
    ChunkWindow,
    check_chunk_size,
    check_chunk_window,
    check_steps,
    chunk_plan,
)
from .positions import TokenGrid
from .state import Stage1State


class Stage1Stream(Iterator[Tensor]):
    """Iterate over the clean latent chunks `(1, C, T, H, W)` of a clip, dtype of the weights.

    The first chunk takes the remainder of the clip (31 latent frames: 4, then 3 each) and begins
    with the image latent, unchanged. A chunk is final once yielded, and `state` then holds all
    that the next one needs: save `state.state_dict()`, and a new stream whose state is loaded
    continues bit for bit. Memory is flat in the clip's length unless `num_cached_blocks <= 0`.

    With `open_ended` the clip goes on for as long as it is asked, and `shape.frames` is not read;
    its chunks equal those of every clip whose first chunk has one frame more than the others.

    Raises `UsageError` for a chunk size other than the checkpoint's, a step list or window that
    cannot work, and a clip that is not longer than one chunk.
    """

    def __init__(
        self,
        model: Stage1Model,
        *,
        caption: Tensor,
        mask: Tensor,
        camera: CameraSource,
        shape: LatentShape,
        noise: NoiseSource,
        steps: Sequence[float] = RELEASED_STEPS,
        num_frame_per_block: int = 3,
        num_cached_blocks: int = 2,
        sink_token: bool = True,
        open_ended: bool = False,
        notes: Notes | None = None,
    ) -> None:
        check_chunk_size(num_frame_per_block, model.config)
        window = ChunkWindow(num_cached_blocks, sink_token)
        warning = check_chunk_window(window)
        if warning is not None and notes is not None:
            notes.warn(warning)
        if shape.channels != model.config.latent_channels or shape.batch != 1:
            raise InputError(
                f"stage 1: cannot make latents of shape {tuple(shape)}; "
                f"expected batch 1 and {model.config.latent_channels} channels"
            )
        self.steps = check_steps(steps)
        self.spans = chunk_plan(shape.frames, num_frame_per_block, open_ended=open_ended)
        self.model, self.camera, self.shape, self.noise = model, camera, shape, noise
        self.state = Stage1State(model.config, window=window)
        self._first: Tensor | None = None
        self._vectors: dict[tuple[float, ...], PassVectors] = {}
        with torch.no_grad():
            self._text: Text = model.embed_text(caption, mask)

    def start(self, first_latent: Tensor) -> None:
        """Begin the clip with the image latent `(1, C, 1, H, W)` (normalised VAE latents)."""
        expected = tuple(self.shape._replace(frames=1))
        if tuple(first_latent.shape) != expected:
            raise InputError(
                f"stage 1: the image latent is {tuple(first_latent.shape)}, expected {expected}"
            )
        self.state.reset()
        self._first = first_latent.to(self.model.device, self.model.dtype)

    def __next__(self) -> Tensor:
        """Return the next chunk. Raise `NumericsError` when it holds NaN or infinity."""
        if self.state.chunks >= len(self.spans):
            raise StopIteration
        span = self.spans[self.state.chunks]
        if span.start != self.state.frames:
            raise BlockOrderError(
                f"stage 1: chunk {span.number} starts at latent frame {span.start}, "
                f"the state ends at {self.state.frames}",
                fix="resume with the clip length of the first run",
            )
        if span.start == 0 and self._first is None:
            raise UsageError("stage 1: no image latent; call start(first_latent) before iterating")
        with torch.no_grad():
            return self._run(span)

    def _run(self, span: BlockSpan) -> Tensor:
        """Denoise one chunk, then commit the state that its context pass leaves."""
        context = self._context(span)
        held = self._first if span.start == 0 else None
        x = self.noise(span).to(self.model.device, self.model.dtype)  # (1, C, T, H, W)
        expected = tuple(self.shape._replace(frames=span.frames))
        if tuple(x.shape) != expected:
            raise InputError(f"stage-1 noise is {tuple(x.shape)}, the chunk needs {expected}")
        x = _hold(x, held)
        sigmas = torch.tensor(self.steps, dtype=torch.float32) / 1000
        for i, timestep in enumerate(self.steps[:-1]):
            times = (0.0 if held is not None else timestep, *[timestep] * (span.frames - 1))
            v = self._pass(x, times, context).velocity
            step = float(sigmas[i] - sigmas[i + 1])
            x = _hold((x.float() - step * v.float()).to(x.dtype), held)
        if not torch.isfinite(x).all():
            raise NumericsError(f"stage 1: chunk {span.number} holds NaN or infinity")
        writes = self._pass(x, (0.0,) * span.frames, context, write=True).writes
        assert writes is not None
        self.state.commit(writes, frames=span.frames, camera=context.rays is not None)
        return x

    def _pass(
        self, x: Tensor, times: tuple[float, ...], context: ChunkContext, *, write: bool = False
    ) -> Stage1Output:
        """Run the model with its frames at `times`, whose vectors are kept for the next chunks."""
        timestep = torch.tensor([times], device=x.device)
        if times not in self._vectors:
            self._vectors[times] = self.model.pass_vectors(timestep)
        return self.model(
            x,
            timestep,
            self._text,
            context,
            state=self.state,
            write=write,
            vectors=self._vectors[times],
        )

    def _context(self, span: BlockSpan) -> ChunkContext:
        grid = TokenGrid(span.frames, self.shape.height, self.shape.width)
        raymap, plucker = self.camera(span)
        return self.model.chunk_context(grid, start=span.start, raymap=raymap, plucker=plucker)


def _hold(x: Tensor, first: Tensor | None) -> Tensor:
    """Return `x` with its first frame replaced by the image latent, if there is one."""
    return x if first is None else torch.cat([first, x[:, :, 1:]], dim=2)
