"""Clean latents of a video: its frames through the VAE encoder, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .config import Resolved
from .errors import InputError, NumericsError
from .io.rates import parse_fps
from .notes import Notes
from .refiner.config import RefinerConfig
from .shapes import LatentShape, VAERatios, Window
from .sources import Source, asked_frames, cap_frames, sizes_left
from .states import NO_STATES, StageStates

if TYPE_CHECKING:
    from torch import Tensor

    from .pipeline import Pipeline
    from .text.embeddings import Stage1Caption
    from .vae.encoder import VAEEncoder


@dataclass(frozen=True)
class VideoClip(Source):
    """Latents of a video: frames are fitted, encoded and handed on block by block."""

    height: int = 0
    width: int = 0
    frames: int = 0
    indices: tuple[int, ...] | None = None
    ratios: VAERatios = field(default_factory=lambda: VAERatios(1, 1))

    stage: ClassVar[str] = "encode"
    needs: ClassVar[tuple[str, ...]] = ("encoder",)

    def chunks(
        self,
        pipeline: Pipeline,
        caption: Stage1Caption | None,
        states: StageStates = NO_STATES,
    ) -> Iterator[Tensor]:
        """Yield the sink, then every block, encoding only the frames it needs."""
        import torch

        from .vae import EncoderState
        from .vae.encoder import check_latents

        encoder, window = pipeline.encoder, pipeline.window
        state = EncoderState()
        pictures = self._pictures()
        if states.restore(
            "encode", partial(state.load_state_dict, device=encoder.latents_mean.device)
        ):
            for _ in zip(range(state.taken), pictures, strict=False):
                pass  # decoded once more: a video cannot be entered at any frame
        number = states.done if states.done or not window.sink else -1
        for size in sizes_left(self.shape.frames, window, states.done):
            count = size * self.ratios.time - (self.ratios.time - 1 if state.taken == 0 else 0)
            batch = self._batch(pictures, count, encoder)
            latents = encoder.encode(batch, state)
            try:
                check_latents(latents, taken=state.taken)
            except NumericsError as e:
                raise NumericsError(f"block {max(number, 0)}: {e.message}", fix=e.fix) from None
            if latents.shape[2] != size:
                raise InputError(
                    f"{self.path}: the video ended early: {latents.shape[2]} latent frames came "
                    f"out of a chunk that needs {size}"
                )
            if number >= 0:
                states.passed("encode", number, state.state_dict)
            number += 1
            yield latents.to(torch.float32)
        encoder.finish(state)

    def _batch(self, pictures: Iterator[Any], count: int, encoder: VAEEncoder) -> Tensor:
        """Return the next `count` frames as `(1, 3, count, H, W)` in [-1, 1]."""
        import numpy as np
        import torch

        from .vae import uint8_to_pixels

        frames = [picture for _, picture in zip(range(count), pictures, strict=False)]
        if len(frames) < count:
            raise InputError(
                f"{self.path}: the video ended early: {count} more frames were expected, "
                f"{len(frames)} came",
                fix="the file is cut short; use --num-frames, or another file",
            )
        stacked = torch.from_numpy(np.stack(frames)[None])
        return uint8_to_pixels(stacked).to(encoder.latents_mean.device)

    def _pictures(self) -> Iterator[Any]:
        from .io.image import apply_fit, fit_size
        from .io.reader import VideoReader

        reader = VideoReader(self.path)
        fit = fit_size(reader.width, reader.height, self.width, self.height)
        for frame in reader.frames(count=self.frames, indices=self.indices):
            yield apply_fit(frame, fit)


def open_video(
    settings: Resolved,
    path: Path,
    refiner: RefinerConfig,
    ratios: VAERatios,
    window: Window,
    notes: Notes,
) -> Source:
    """Return the clip that a video makes, with a line for every change to it."""
    from .io.image import check_size
    from .io.reader import VideoReader

    reader = VideoReader(path, notes=notes)
    fps = _video_rate(settings, path, reader.fps, notes)
    indices = reader.sample(settings.settings.video.sampling, fps=fps)
    available = reader.frame_count if indices is None else len(indices)
    height, width = video_size(settings, reader.height, reader.width, ratios.space)
    check_size(height, width, ratios.space)
    reader.fit(width=width, height=height)
    asked = asked_frames(settings)
    stride = ratios.time * window.block
    frames = cap_frames(available, asked, stride=stride, what=str(path), notes=notes)
    shape = LatentShape(
        1,
        refiner.in_channels,
        ratios.latent_frames_of(frames),
        height // ratios.space,
        width // ratios.space,
    )
    fixes: dict[str, Any] = {
        "video.num_frames": frames,
        "video.height": height,
        "video.width": width,
        "video.fps": str(fps) if fps.denominator != 1 else int(fps),
    }
    return VideoClip(
        "video",
        path,
        shape,
        asked=asked,
        fps=fps,
        fixes=fixes,
        height=height,
        width=width,
        frames=frames,
        indices=None if indices is None else tuple(indices),
        ratios=ratios,
    )


def _video_rate(settings: Resolved, path: Path, source: Fraction, notes: Notes) -> Fraction:
    """Return the rate the model is told: the user's, else the video's own."""
    wanted = parse_fps(settings.settings.video.fps)
    if settings.settings.video.sampling == "resample":
        return wanted
    if settings.origin("video.fps").by_user:
        if wanted != source:
            notes.change(
                f"{path}: its {float(source):g} frames per second are played as "
                f"{float(wanted):g} (--video-sampling resample keeps the speed)"
            )
        return wanted
    if wanted != source:
        notes.change(
            f"{path}: {float(source):g} frames per second, from the video "
            f"({settings.origin('video.fps')} says {float(wanted):g})"
        )
    return source


def video_size(
    settings: Resolved, source_height: int, source_width: int, ratio: int
) -> tuple[int, int]:
    """Return the clip's height and width.

    The user's size if given, else the video's own, cut down to multiples of `ratio`; one with
    more pixels than the preset's `max_pixels` is scaled down, keeping its aspect.
    """
    video = settings.settings.video
    scale_top, scale_bottom = 1, 1
    height, width = (side // ratio * ratio for side in (source_height, source_width))
    if height * width > video.max_pixels:
        # sqrt(max / area) as a ratio of integers, so that the size does not depend on rounding.
        scale_top = isqrt(video.max_pixels * 10**12 // (source_height * source_width))
        scale_bottom = 10**6
        height, width = (
            side * scale_top // scale_bottom // ratio * ratio
            for side in (source_height, source_width)
        )
    smallest = 2 * ratio
    height, width = max(height, smallest), max(width, smallest)
    if settings.origin("video.height").by_user:
        height = video.height
    if settings.origin("video.width").by_user:
        width = video.width
    return height, width
