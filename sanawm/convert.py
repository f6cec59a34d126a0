"""The two half runs: latents to a video (`decode`), a picture or video to latents (`encode`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from .components import find_component, use_threads, vae_config
from .config import Resolved
from .errors import InputError, UsageError
from .events import Event, Listener, ignore
from .frame_rates import rate_of
from .io.files import check_output
from .io.frames_dir import FramesDir
from .io.image import PICTURE_ENDINGS, apply_fit, check_size, fit_image, read_image
from .io.latent_writer import LatentsWriter
from .io.latents import LatentsSource
from .io.rates import parse_fps
from .io.reader import VideoReader
from .io.video import VideoFile, VideoSettings, VideoWriter, check_encoder
from .notes import Notes
from .outputs import check_frames_dir
from .pipeline import Pipeline
from .shapes import LatentShape, VAERatios
from .sources import asked_frames, cap_frames
from .vae.state import DecoderState
from .video_source import video_size


def decode_file(
    latents: str,
    settings: Resolved,
    *,
    drop_first: bool,
    notes: Notes,
    listener: Listener = ignore,
) -> VideoFile:
    """Decode a latents file into the MP4 `output.output`, chunk by chunk.

    `drop_first` leaves out pixel frame 0. Raises the errors of the parts; the part file of a
    failed run stays playable.
    """
    target = _target(settings, [Path(latents)], ".mp4")
    vae = vae_config(find_component(settings, "vae", why="decoding", download=True), notes=notes)
    file = LatentsSource.open(Path(latents), channels=vae.latent_channels)
    shape = LatentShape(*file.shape)
    if shape.batch != 1:
        raise UsageError(f"{latents}: a batch of {shape.batch} clips; expected one", fix="split it")
    settings = _with_rate(settings, file, notes)
    block = settings.settings.refiner.block_size
    video = _video_settings(settings, shape, vae.ratios, frames=block * vae.ratios.time)
    check_encoder(video.encoder, width=video.width, height=video.height)
    folder = settings.settings.output.frames_dir
    overwrite = settings.settings.output.overwrite
    if folder:
        check_frames_dir(Path(folder), {target.absolute(): "video"}, overwrite=overwrite)
    use_threads(settings.settings.runtime.threads)
    pipeline = Pipeline(settings, notes=notes)
    size = {"width": video.width, "height": video.height}
    state = DecoderState()
    with ExitStack() as stack:
        writer = VideoWriter(target, video, overwrite=overwrite, notes=notes)
        stack.enter_context(writer)
        pictures: FramesDir | None = None
        line = f"video  {video.width}x{video.height} at {float(video.fps):g} fps -> {target}"
        lines = [f"{line} (growing as {writer.part_path})"]
        listener(Event("run_start", data={"lines": lines}))
        for number, (start, stop) in enumerate(_spans(shape.frames, block)):
            frames = pipeline.decode_chunk(file.frames(start, stop), state, number=number)
            if number == 0 and drop_first:
                frames = frames[1:]
            if len(frames):
                writer.write(frames)
                if folder:
                    if pictures is None:
                        pictures = FramesDir(Path(folder), overwrite=overwrite, **size)
                        stack.callback(pictures.release)
                    pictures.write(frames)
            listener(Event("chunk_done", data={"chunk": number, "frames": len(frames)}))
    made = writer.close()
    summary = f"done: {made.frames} frames -> {target}"
    listener(Event("run_done", data={"summary": summary, "frames": made.frames}))
    return made


def encode_file(
    source: str, settings: Resolved, *, notes: Notes, listener: Listener = ignore
) -> tuple[Path, LatentShape]:
    """Encode a picture or a video into the latents file `output.output`; return path and shape."""
    path = Path(source)
    target = _target(settings, [path], ".safetensors")
    vae = vae_config(find_component(settings, "vae", why="encoding", download=True), notes=notes)
    take = _picture if path.suffix.lower() in PICTURE_ENDINGS else _video
    clip = take(path, settings, vae.ratios, notes)
    ratios = vae.ratios
    shape = LatentShape(
        1,
        vae.latent_channels,
        ratios.latent_frames_of(clip.frames),
        clip.height // ratios.space,
        clip.width // ratios.space,
    )
    use_threads(settings.settings.runtime.threads)
    pipeline = Pipeline(settings, notes=notes)
    overwrite = settings.settings.output.overwrite
    writer = LatentsWriter(
        target, shape, torch.float32, {"fps": str(clip.fps)}, overwrite=overwrite
    )
    done = 0
    try:
        for latents in pipeline.encode_frames(clip.batches):
            writer.write(done, latents.to("cpu", torch.float32))
            done += latents.shape[2]
            listener(Event("chunk_done", data={"latent_frames": done}))
        writer.close()
    except BaseException:
        part = writer.abort()
        if done == 0:
            part.unlink(missing_ok=True)
        raise
    summary = f"done: latents {tuple(shape)} -> {target}"
    listener(Event("run_done", data={"summary": summary, "latent_frames": done}))
    return target, shape


def _with_rate(settings: Resolved, file: LatentsSource, notes: Notes) -> Resolved:
    """Return settings with the rate that the latents were made for, unless the user set one."""
    brought = file.metadata.get("fps")
    if brought is None or settings.origin("video.fps").by_user:
        return settings
    try:
        rate = parse_fps(brought)
    except UsageError as e:
        raise InputError(f"{file.path}: in its metadata, {e.message}", fix="use --fps") from None
    was, origin = rate_of(settings), settings.origin("video.fps")
    if rate != was:
        notes.change(
            f"{file.path}: {float(rate):g} frames per second, from the latents file "
            f"({origin} says {float(was):g})"
        )
    return settings.with_input({"video.fps": brought}, where=f"latents {file.path}")


def _target(settings: Resolved, inputs: list[Path], ending: str) -> Path:
    output = settings.settings.output.output
    if not output:
        raise UsageError("no output", fix=f"add -o FILE{ending}")
    overwrite = settings.settings.output.overwrite
    check_output(Path(output), overwrite=overwrite, inputs=inputs, suffixes=(ending,))
    return Path(output)


def _video_settings(
    settings: Resolved, shape: LatentShape, ratios: VAERatios, *, frames: int
) -> VideoSettings:
    video = settings.settings.video
    return VideoSettings(
        width=shape.width * ratios.space,
        height=shape.height * ratios.space,
        fps=rate_of(settings),
        crf=video.crf,
        encoder=video.encoder,
        encoder_preset=video.encoder_preset,
        frames_per_chunk=frames,
    )


def _spans(frames: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield chunks of latent frames: one more in the first, as after a sink."""
    start = 0
    while start < frames:
        stop = min(frames, start + block + (1 if start == 0 else 0))
        yield start, stop
        start = stop


class _Clip(NamedTuple):
    """What is encoded: `batches` of fitted frames `(T, height, width, 3)` uint8."""

    batches: Iterator[np.ndarray]
    frames: int
    height: int
    width: int
    fps: Fraction


def _picture(path: Path, settings: Resolved, ratios: VAERatios, notes: Notes) -> _Clip:
    video = settings.settings.video
    check_size(video.height, video.width, ratios.space)
    pixels = read_image(path, notes=notes)
    fitted = fit_image(pixels, width=video.width, height=video.height, notes=notes, name=str(path))
    return _Clip(iter([fitted[None]]), 1, video.height, video.width, rate_of(settings))


def _video(path: Path, settings: Resolved, ratios: VAERatios, notes: Notes) -> _Clip:
    reader = VideoReader(path, notes=notes)
    available = reader.frame_count
    height, width = video_size(settings, reader.height, reader.width, ratios.space)
    check_size(height, width, ratios.space)
    fit = reader.fit(width=width, height=height)
    asked = asked_frames(settings)
    frames = cap_frames(available, asked, stride=ratios.time, what=str(path), notes=notes, least=1)

    def batches() -> Iterator[np.ndarray]:
        batch: list[np.ndarray] = []
        for number, frame in enumerate(reader.frames(count=frames)):
            batch.append(apply_fit(frame, fit))
            if number % ratios.time == 0:
                yield np.stack(batch)
                batch = []

    asked_fps = settings.settings.video.fps if settings.origin("video.fps").by_user else reader.fps
    return _Clip(batches(), frames, height, width, parse_fps(asked_fps))
