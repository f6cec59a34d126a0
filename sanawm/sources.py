"""Where clean latents come from: a latents file, or a video through the VAE encoder.

A source is opened while planning (header and size only) and read chunk by chunk while running:
first the sink frames, then one block after the other. Never the whole clip in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .config import Resolved
from .errors import UsageError
from .notes import Notes
from .refiner.config import RefinerConfig
from .shapes import LatentShape, VAERatios, Window, snap_frames
from .source_kind import check_kind
from .states import NO_STATES, StageStates

if TYPE_CHECKING:
    from torch import Tensor

    from .camera.trajectory import Trajectory
    from .io.latents import LatentsSource
    from .pipeline import Pipeline
    from .text.embeddings import Stage1Caption


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

    #: Stage that makes the clean latents, for timelines: read, encode or stage1.
    stage: ClassVar[str] = "read"
    #: Components that `chunks` uses besides those of the refiner, by their Pipeline name.
    needs: ClassVar[tuple[str, ...]] = ()

    def chunks(
        self,
        pipeline: Pipeline,
        caption: Stage1Caption | None,
        states: StageStates = NO_STATES,
    ) -> Iterator[Tensor]:
        """Yield the sink `(B, C, sink, H, W)` if the window has one, then every block.

        With `states` that continue a run, only the blocks that are left.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LatentsClip(Source):
    """Latents from a file, read slice by slice."""

    file: LatentsSource | None = None

    def chunks(
        self,
        pipeline: Pipeline,
        caption: Stage1Caption | None,
        states: StageStates = NO_STATES,
    ) -> Iterator[Tensor]:
        """Yield the sink, then every block, each read from the file when it is needed."""
        assert self.file is not None
        window = pipeline.window
        if window.sink and not states.done:
            yield self.file.frames(0, window.sink)
        for span in list(window.blocks(self.shape.frames))[states.done :]:
            yield self.file.frames(span.start, span.stop)


def open_source(
    settings: Resolved,
    *,
    refiner: RefinerConfig,
    ratios: VAERatios,
    window: Window,
    trajectory: Trajectory | None,
    notes: Notes,
) -> Source:
    """Return the source that `settings` name, checked by its header alone."""
    given = settings.settings.input
    if given.latents:
        return _latents(settings, check_kind(settings, "latents"), refiner, ratios, window, notes)
    if given.video:
        from .video_source import open_video

        path = check_kind(settings, "video")
        return open_video(settings, path, refiner, ratios, window, notes)
    if given.image:
        from .image_source import open_image

        path = check_kind(settings, "image")
        return open_image(settings, path, refiner, ratios, window, trajectory, notes)
    raise UsageError(
        "no source of clean latents", fix="add --image FILE, --latents FILE or --video FILE"
    )


def chunk_sizes(frames: int, window: Window) -> list[int]:
    """Return the latent frames of each chunk of a clip: the sink if there is one, then blocks."""
    lead = [window.sink] if window.sink else []
    return lead + [span.frames for span in window.blocks(frames)]


def sizes_left(frames: int, window: Window, done: int) -> list[int]:
    """Return the sizes of the chunks that are left after `done` blocks (0: the sink too)."""
    sizes = chunk_sizes(frames, window)
    return sizes if not done else sizes[done + (1 if window.sink else 0) :]


def split_clip(latents: Tensor, window: Window) -> Iterator[Tensor]:
    """Yield the sink frames of a clip `(B, C, T, H, W)`, if any, then its blocks."""
    if window.sink:
        yield latents[:, :, : window.sink]
    for span in window.blocks(latents.shape[2]):
        yield latents[:, :, span.start : span.stop]


def regroup(latents: Iterable[Tensor], sizes: Iterable[int]) -> Iterator[Tensor]:
    """Yield `(B, C, t, H, W)` chunks of exactly `sizes` latent frames from chunks of any size.

    Nothing is read ahead: a chunk is handed on as soon as its frames are there.
    """
    import torch

    source = iter(latents)
    held: list[Tensor] = []
    for size in sizes:
        while sum(t.shape[2] for t in held) < size:
            held.append(next(source))
        joined = held[0] if len(held) == 1 else torch.cat(held, dim=2)
        yield joined[:, :, :size]
        held = [joined[:, :, size:]] if joined.shape[2] > size else []


def asked_frames(settings: Resolved) -> int | None:
    """Return `num_frames` when the user gave it; a preset's value does not bind a file."""
    if not settings.origin("video.num_frames").by_user:
        return None
    asked = settings.settings.video.num_frames
    if asked < 1:
        raise UsageError(
            f"{settings.named('video.num_frames')}: expected at least 1", fix="ask for more frames"
        )
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
        subject = what if asked is None or asked > available else "--num-frames"
        raise UsageError(
            f"{subject}: {wanted} frames make less than one block; expected {stride}*k + 1, "
            f"at least {least}",
            fix=f"use {least}, {least + stride}, {least + 2 * stride}, ... frames",
        )
    if asked is not None and used != asked:
        have = f" ({what} has {available})" if asked > available else ""
        notes.change(
            f"{asked} frames asked{have}: {used} are used, a clip has {stride}*k + 1 frames"
            f"{_nearest(asked, stride)}"
        )
    elif used != available and asked is None:
        notes.change(
            f"{what}: {available} frames trimmed to {used}, a clip has {stride}*k + 1 frames"
        )
    return used


def _nearest(asked: int, stride: int) -> str:
    """Return the two valid counts around `asked`, in brackets; nothing when it is one itself."""
    below = asked - (asked - 1) % stride
    return "" if below == asked else f" (nearest: {below} and {below + stride})"


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
                f"{settings.named(f'video.{side}')}: the latents of {path} decode to {size}",
                fix="leave it out: a latents file fixes the size",
            )
    file.check(shape.frames)
    fixes = {
        "video.num_frames": ratios.frames_of(shape.frames),
        "video.height": shape.height * ratios.space,
        "video.width": shape.width * ratios.space,
    }
    return LatentsClip("latents", path, shape, asked=asked, fixes=fixes, file=file)
