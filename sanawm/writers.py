"""What is written chunk by chunk: the MP4, latents, PNG frames and the contact sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from .errors import UsageError
from .io.files import atomic_write, part_path, remove_stale
from .io.frames_dir import FramesDir
from .io.kept import fresh_path
from .io.latent_writer import LatentsWriter
from .io.latents import NOISE_KEY
from .io.preview import ContactSheet
from .io.rates import parse_fps
from .io.video import VideoFile, VideoSettings, VideoWriter, faststart
from .noise_file import noise_dtype
from .notes import Notes
from .outputs import default_state
from .states import sync_file
from .takeover import Kept, refill_sheet, take_back

if TYPE_CHECKING:
    from .chunks import FrameChunk, RefinedChunk
    from .plan import Plan


class OutputWriters:
    """The outputs of one run, opened together before any model is loaded.

    On an exception what was finished is kept: the MP4's part file stays playable.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        metadata: Mapping[str, str],
        latents_metadata: Mapping[str, str],
        notes: Notes,
        on_chunk: Callable[[int, int, int, float], None],
        kept: Kept | None = None,
    ) -> None:
        self.plan = plan
        self.kept = kept or Kept()
        self.overwrite = plan.outputs.replace_sides
        self._latents_metadata = latents_metadata
        self._video: VideoWriter | None = None
        self._latents: LatentsWriter | None = None
        self._stage1: LatentsWriter | None = None
        self._noise: LatentsWriter | None = None
        self._frames: FramesDir | None = None
        self._made_folder = False
        if self.kept.blocks:
            take_back(plan, video_metadata=metadata, latents_metadata=latents_metadata, notes=notes)
        self._sheet = self._open_sheet(notes)
        try:
            self._video = self._open_video(metadata, notes, on_chunk)
            self._latents = self._open_latents(plan.outputs.save_latents, notes)
            self._stage1 = self._open_latents(plan.outputs.save_stage1, notes)
            self._noise = self._open_noise(notes)
            self._frames = self._open_frames()
            if self.kept.line:  # said by who holds the outputs, not by a run that is refused
                say = notes.change if self.kept.replaces else notes.info
                say(self.kept.line)
            self._remove_stale()
            self._save_camera()
        except BaseException:
            self._abandon()
            raise

    @property
    def part(self) -> Path | None:
        """The growing file that can be watched, if there is one."""
        return None if self._video is None else self._video.part_path

    @property
    def _told(self) -> bool:
        """Whether a part that is written anew needs no line of its own."""
        return self.kept.blocks > 0 or self.kept.replaces

    def latents(self, chunk: RefinedChunk) -> None:
        """Write refined latents (the first chunk brings the sink)."""
        if self._latents is not None:
            start = 0 if chunk.span.number == 0 else chunk.span.start
            self._latents.write(start, chunk.latents.to("cpu", torch.float32))

    def clean(self, start: int, latents: Tensor) -> None:
        """Write a chunk of stage 1's latents, latent frames `start ..`."""
        if self._stage1 is not None:
            self._stage1.write(start, latents.to("cpu", torch.float32))

    def noise(self, start: int, eps: Tensor) -> None:
        """Write a block's noise, latent frames `start ..` counted without the sink."""
        if self._noise is not None:
            self._noise.write(start, eps)

    def frames(self, chunk: FrameChunk) -> None:
        """Hand over the frames of a block."""
        if self._video is not None and len(chunk.frames):
            self._video.write(chunk.frames)
        if self._frames is not None:
            self._frames.write(chunk.frames)
        if self._sheet is not None:
            self._sheet.add_block(chunk.span.number, chunk.first, chunk.frames)

    def sync(self) -> None:
        """Flush what is written to the disk, so that a run state is never ahead of it."""
        sync_file(self.part)
        for writer in (self._latents, self._stage1, self._noise):
            if writer is not None:
                sync_file(writer.part_path)

    def close(self) -> VideoFile | None:
        """Finish all outputs; the video gets its name once its frames were counted."""
        if self._video is not None:
            self._video.drain()  # its last chunk calls `sync`, which needs the part names
        for writer in (self._latents, self._stage1, self._noise):
            if writer is not None:
                writer.close()
        if self._frames is not None:
            self._frames.close()
        if self._sheet is not None and self.plan.outputs.preview is not None:
            self._sheet.save(self.plan.outputs.preview, overwrite=self.overwrite)
        # From here on the video settles its part file itself, also when closing fails.
        video, self._video = self._video, None
        if video is None:
            return None
        made = video.close()
        if self.plan.settings.settings.video.faststart:
            faststart(made.path)
            made = made._replace(bytes=made.path.stat().st_size)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abandon()

    def _abandon(self) -> None:
        """Keep what holds finished chunks, remove what is still empty."""
        if self._video is not None:
            self._video.abort()
        for writer in (self._latents, self._stage1, self._noise):
            if writer is not None:
                part = writer.abort()
                if writer.frames_written == 0:
                    part.unlink(missing_ok=True)
        if self._frames is not None:
            self._frames.release()
            if self._made_folder and not self._frames.frames_written:
                with suppress(OSError):
                    self._frames.folder.rmdir()

    def _open_video(
        self,
        metadata: Mapping[str, str],
        notes: Notes,
        on_chunk: Callable[[int, int, int, float], None],
    ) -> VideoWriter | None:
        plan, video = self.plan, self.plan.settings.settings.video
        if plan.outputs.video is None:
            return None
        settings = VideoSettings(
            width=plan.pixels.width,
            height=plan.pixels.height,
            fps=plan.output_fps,
            crf=video.crf,
            encoder=video.encoder,
            encoder_preset=video.encoder_preset,
            frames_per_chunk=plan.window.block * plan.ratios.time,
            metadata=metadata,
        )
        return VideoWriter(
            plan.outputs.video,
            settings,
            overwrite=plan.outputs.overwrite,
            queue_chunks=1,  # a chunk is on disk before the next but one is handed over
            keep_frames=self.kept.video_frames,
            keep_chunks=self.kept.video_chunks,
            continued=self._told,
            on_chunk=on_chunk,
            notes=notes,
        )

    def _open_latents(self, target: Path | None, notes: Notes) -> LatentsWriter | None:
        if target is None:
            return None
        return LatentsWriter(
            target,
            self.plan.shape,
            torch.float32,
            self._latents_metadata,
            overwrite=self.plan.outputs.overwrite,
            keep_frames=self.kept.latent_frames,
            continued=self._told,
            notes=notes,
        )

    def _open_noise(self, notes: Notes) -> LatentsWriter | None:
        target, shape, sink = self.plan.outputs.save_noise, self.plan.shape, self.plan.window.sink
        if target is None:
            return None
        return LatentsWriter(
            target,
            shape._replace(frames=shape.frames - sink),
            noise_dtype(self.plan),
            self._latents_metadata,
            key=NOISE_KEY,
            overwrite=self.plan.outputs.overwrite,
            keep_frames=max(0, self.kept.latent_frames - sink),
            continued=self._told,
            notes=notes,
        )

    def _open_frames(self) -> FramesDir | None:
        folder, pixels = self.plan.outputs.frames_dir, self.plan.pixels
        if folder is None:
            return None
        self._made_folder = not folder.exists()
        return FramesDir(
            folder,
            width=pixels.width,
            height=pixels.height,
            overwrite=self.overwrite,
            keep_frames=self.kept.video_frames,
        )

    def _open_sheet(self, notes: Notes) -> ContactSheet | None:
        if self.plan.outputs.preview is None:
            return None
        from .describe import sheet_lines

        sheet = ContactSheet(about=sheet_lines(self.plan))
        refill_sheet(sheet, self.plan, self.kept, notes=notes)
        return sheet

    def _remove_stale(self) -> None:
        """Remove unfinished files of a killed run; the locks that are held by now make it safe."""
        outputs = self.plan.outputs
        state = default_state(outputs, self.plan.settings.settings.output.state)
        for path in (*outputs.files(), *([state] if state else [])):
            remove_stale(path)
        if outputs.video is not None:
            fresh_path(part_path(outputs.video)).unlink(missing_ok=True)

    def _save_camera(self) -> None:
        target = self.plan.outputs.save_camera
        if target is None or self.plan.camera is None:
            return
        with atomic_write(target) as temporary, temporary.open("wb") as f:
            np.save(f, self.plan.camera.poses, allow_pickle=False)


def write_video(
    chunks: Iterable[FrameChunk],
    path: Path | str,
    *,
    fps: int | float | str,
    overwrite: bool = False,
    crf: float = 18,
) -> VideoFile:
    """Write frames to an MP4 that plays while it grows (as `NAME.part.mp4`); return what was made.

    fps: frames per second, exact (`16`, `"24000/1001"`). Raises `OutputError` when the file exists
    (without `overwrite`) or cannot be written.
    """
    writer: VideoWriter | None = None
    try:
        for chunk in chunks:
            if writer is None:
                height, width = chunk.frames.shape[1:3]
                settings = VideoSettings(width, height, parse_fps(fps), crf=crf)
                writer = VideoWriter(Path(path), settings, overwrite=overwrite)
            if len(chunk.frames):
                writer.write(chunk.frames)
        if writer is None:
            raise UsageError("no frames to write")
        return writer.close()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
