"""Where clean latents come from: a latents file, or a video through the VAE encoder.

A source is opened while planning (header and size only) and read chunk by chunk while running:
first the sink frames, then one block after the other. Never the whole clip in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import Resolved
from .errors import InputError, UsageError
from .io.rates import parse_fps
from .notes import Notes
from .refiner.config import RefinerConfig
from .shapes import LatentShape, VAERatios, Window, snap_frames

if TYPE_CHECKING:
    from torch import Tensor

    from .io.latents import LatentsSource
    from .vae.encoder import VAEEncoder


@dataclass(frozen=True)
class Source:
    """Clean latents of a planned clip.

    `shape` is what will be refined; `asked` the frames the user asked for, if any; `fps` the rate
    that the input brings, if any; `fixes` the settings that the input decides.
    """

    kind: str
    path: Path
    shape: LatentShape
    asked: int | None = None
    fps: Fraction | None = None
    fixes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Name of the input as the origin of settings."""
        return f"{self.kind} {self.path}"

    @property
    def needs_encoder(self) -> bool:
        """True when the VAE encoder makes the latents."""
        return False

    def chunks(self, window: Window, encoder: VAEEncoder | None) -> Iterator[Tensor]:
        """Yield the sink `(B, C, sink, H, W)` if there is one, then every block."""
        raise NotImplementedError


@dataclass(frozen=True)
class LatentsClip(Source):
    """Latents from a file, read slice by slice."""

    file: LatentsSource | None = None

    def chunks(self, window: Window, encoder: VAEEncoder | None) -> Iterator[Tensor]:
        """Yield the sink, then every block, each read from the file when it is needed."""
        assert self.file is not None
        if window.sink:
            yield self.file.frames(0, window.sink)
        for span in window.blocks(self.shape.frames):
            yield self.file.frames(span.start, span.stop)


@dataclass(frozen=True)
class VideoClip(Source):
    """Latents of a video: frames are fitted, encoded and handed on block by block."""

    height: int = 0
    width: int = 0
    frames: int = 0
    indices: tuple[int, ...] | None = None
    ratios: VAERatios = field(default_factory=lambda: VAERatios(1, 1))

    @property
    def needs_encoder(self) -> bool:
        """True: the frames go through the VAE encoder."""
        return True

    def chunks(self, window: Window, encoder: VAEEncoder | None) -> Iterator[Tensor]:
        """Yield the sink, then every block, encoding only the frames it needs."""
        import torch

        from .vae import EncoderState

        assert encoder is not None
        sizes = [window.sink] if window.sink else []
        sizes += [span.frames for span in window.blocks(self.shape.frames)]
        state = EncoderState()
        pictures = self._pictures()
        taken = 0
        for size in sizes:
            count = size * self.ratios.time - (self.ratios.time - 1 if taken == 0 else 0)
            batch = self._batch(pictures, count, encoder)
            taken += size
            latents = encoder.encode(batch, state)
            if latents.shape[2] != size:
                raise InputError(
                    f"{self.path}: the video ended early: {latents.shape[2]} latent frames came "
                    f"out of a chunk that needs {size}"
                )
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


def open_source(
    settings: Resolved,
    *,
    refiner: RefinerConfig,
    ratios: VAERatios,
    window: Window,
    notes: Notes,
) -> Source:
    """Return the source that `settings` name, checked by its header alone."""
    given = settings.settings.input
    if given.latents:
        return _latents(settings, Path(given.latents), refiner, ratios, window, notes)
    if given.video:
        return _video(settings, Path(given.video), refiner, ratios, window, notes)
    raise UsageError("no source of clean latents", fix="add --latents FILE or --video FILE")


def asked_frames(settings: Resolved) -> int | None:
    """Return `num_frames` when the user gave it; a preset's value does not bind a file."""
    if not settings.origin("video.num_frames").by_user:
        return None
    asked = settings.settings.video.num_frames
    if asked < 1:
        raise UsageError(f"--num-frames {asked}: expected at least 1", fix="ask for more frames")
    return asked


def cap_frames(
    available: int,
    asked: int | None,
    *,
    stride: int,
    what: str,
    notes: Notes,
    least: int | None = None,
) -> int:
    """Return how many of `available` frames are used when `asked` frames were asked, if any.

    The count is `stride * k + 1`, ties up, never above what there is, and at least `least`
    (one block: `stride + 1`).
    """
    least = stride + 1 if least is None else least
    wanted = available if asked is None else min(asked, available)
    used = snap_frames(wanted, stride, available)
    if used < least:
        raise UsageError(
            f"{what}: {wanted} frames make less than one block; expected {stride}*k + 1, "
            f"at least {least}",
            fix=f"use at least {least} frames",
        )
    if asked is not None and used != asked:
        have = f" ({what} has {available})" if asked > available else ""
        notes.change(
            f"{asked} frames asked{have}: {used} are used, a clip has {stride}*k + 1 frames"
        )
    elif used != available and asked is None:
        notes.change(
            f"{what}: {available} frames trimmed to {used}, a clip has {stride}*k + 1 frames"
        )
    return used


def _latents(
    settings: Resolved,
    path: Path,
    refiner: RefinerConfig,
    ratios: VAERatios,
    window: Window,
    notes: Notes,
) -> Source:
    from .io.latents import LatentsSource

    file = LatentsSource.open(path, channels=refiner.in_channels)
    shape = LatentShape(*file.shape)
    asked = asked_frames(settings)
    if asked is not None:
        available = ratios.frames_of(shape.frames)
        stride = ratios.time * window.block
        if asked < available:
            frames = cap_frames(available, asked, stride=stride, what=str(path), notes=notes)
            shape = shape._replace(frames=ratios.latent_frames_of(frames))
        elif asked > available:
            notes.change(f"{asked} frames asked: {path} holds {available}, all are used")
    for side in ("height", "width"):
        size = getattr(shape, side) * ratios.space
        want = getattr(settings.settings.video, side)
        if settings.origin(f"video.{side}").by_user and want != size:
            raise UsageError(
                f"--{side} {want}: the latents of {path} decode to {size}",
                fix=f"leave --{side} out: a latents file fixes the size",
            )
    fixes = {
        "video.num_frames": ratios.frames_of(shape.frames),
        "video.height": shape.height * ratios.space,
        "video.width": shape.width * ratios.space,
    }
    return LatentsClip("latents", path, shape, asked=asked, fixes=fixes, file=file)


def _video(
    settings: Resolved,
    path: Path,
    refiner: RefinerConfig,
    ratios: VAERatios,
    window: Window,
    notes: Notes,
) -> Source:
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
