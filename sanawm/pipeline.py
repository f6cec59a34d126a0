"""The stages of a run as iterators: clean chunks, refined chunks, frames.

Nothing here holds the whole clip: each iterator works on one chunk and passes it on.

    pipe = Pipeline.from_config("tiny")
    prompt = pipe.encode_prompt("a red tower on green ground")
    for chunk in pipe.decode(pipe.refine(latents, prompt)):
        chunk.frames        # (T, H, W, 3) uint8
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .components import Component, choose_device, choose_dtype, find_component
from .config import Resolved, resolve
from .errors import NumericsError, UsageError
from .io.rates import parse_fps
from .notes import Notes
from .refiner.model import RefinerModel, TextContext
from .refiner.noise import Noise, SeededNoise
from .refiner.single_shot import refine_single_shot
from .refiner.stream import RefinerStream
from .refiner.weights import load_refiner
from .shapes import BlockSpan, LatentShape, Window
from .text.embeddings import PromptEmbeds
from .vae.decoder import VAEDecoder
from .vae.encoder import VAEEncoder
from .vae.pixels import pixels_to_uint8
from .vae.state import DecoderState, EncoderState
from .vae.weights import load_decoder, load_encoder

if TYPE_CHECKING:
    from .io.video import VideoFile

#: A decoded chunk flatter than this (uint8 levels) while its latents are not is a decoder fault.
FLAT_LEVELS = 0.5
FLAT_LATENTS = 1e-3


@dataclass(frozen=True)
class RefinedChunk:
    """One refined block. The first chunk of a clip starts with the sink frames.

    `latents` is `(B, C, T, H, W)` float32: `span.frames` refined frames, after the sink's in
    chunk 0.
    """

    span: BlockSpan
    latents: Tensor
    history_frames: int
    sink_position: int


@dataclass(frozen=True)
class FrameChunk:
    """The frames of one block: `frames` `(T, H, W, 3)` uint8, `first` the number of the first.

    `first` counts decoded frames, so a dropped frame 0 makes the first chunk start at 1: frame i
    belongs to camera pose i.
    """

    span: BlockSpan
    first: int
    frames: np.ndarray


class Pipeline:
    """The components of one model set on one device; each is loaded when it is first used."""

    def __init__(
        self,
        settings: Resolved,
        *,
        notes: Notes | None = None,
        components: dict[str, Component] | None = None,
    ) -> None:
        self.settings = settings
        self.notes = notes or Notes()
        self.device = choose_device(settings.settings.runtime.device)
        self.dtype = choose_dtype(settings.settings.runtime.precision, self.device)
        self._components = dict(components or {})

    @classmethod
    def from_config(
        cls, *configs: str, sets: Iterable[str] = (), notes: Notes | None = None
    ) -> Pipeline:
        """Return the pipeline of presets or TOML files; `sets` are `section.key=value` strings."""
        return cls(resolve(configs, sets=list(sets)), notes=notes)

    @property
    def window(self) -> Window:
        """Sink, block and window of the settings, in latent frames."""
        refiner = self.settings.settings.refiner
        return Window(refiner.sink_size, refiner.block_size, refiner.kv_max_frames)

    @cached_property
    def refiner(self) -> RefinerModel:
        """The refiner transformer."""
        return load_refiner(
            self._path("refiner", "refining"),
            device=self.device,
            dtype=self.dtype,
            notes=self.notes,
        )

    @cached_property
    def decoder(self) -> VAEDecoder:
        """The causal VAE decoder."""
        return load_decoder(
            self._path("vae", "decoding"), device=self.device, dtype=self.dtype, notes=self.notes
        )

    @cached_property
    def encoder(self) -> VAEEncoder:
        """The VAE encoder."""
        return load_encoder(
            self._path("vae", "encoding"), device=self.device, dtype=self.dtype, notes=self.notes
        )

    def encode_prompt(self, text: str, *, cache: Path | None = None) -> PromptEmbeds:
        """Return the embeddings of a prompt; the text encoder is freed before this returns.

        With `cache`, embeddings are kept in that folder for the next run.
        """
        from .text.encode import encode_prompt
        from .text.store import PromptStore

        return encode_prompt(
            text,
            text_encoder=self._path("text_encoder", "encoding the prompt"),
            connectors=self._path("refiner", "encoding the prompt") / "connectors",
            max_length=self.settings.settings.text.max_length,
            device=self.device,
            dtype=self.dtype,
            notes=self.notes,
            store=PromptStore(cache) if cache is not None else None,
        )

    def noise(self) -> Noise:
        """Return the refiner's seeded noise."""
        runtime = self.settings.settings.runtime
        seed = runtime.seed if runtime.refiner_seed is None else runtime.refiner_seed
        return SeededNoise(seed, device="cpu" if runtime.noise_device == "cpu" else self.device)

    def refine(
        self,
        clean: Tensor | Iterable[Tensor],
        prompt: PromptEmbeds,
        *,
        shape: LatentShape | None = None,
        noise: Noise | None = None,
    ) -> Iterator[RefinedChunk]:
        """Yield the refined chunks of a clip, one block at a time.

        clean: the clip's latents `(B, C, T, H, W)`; or its chunks (first the sink frames if the
        window has a sink, then every block), with their total `shape`.
        """
        if isinstance(clean, Tensor):
            if clean.ndim != 5:
                raise UsageError(
                    f"latents have shape {tuple(clean.shape)}; expected (B, C, T, H, W)"
                )
            shape = LatentShape(*clean.shape)
            clean = split_clip(clean, self.window)
        if shape is None:
            raise UsageError("chunks of latents need the clip's total shape", fix="pass shape=")
        text = self.refiner.prepare_text(prompt.embeds, prompt.mask)
        noise = noise or self.noise()
        if self.settings.settings.refiner.mode == "single-shot":
            return self._single_shot(clean, text, shape, noise)
        return self._stream(clean, text, shape, noise)

    def decode(
        self, chunks: Iterable[RefinedChunk], *, drop_first: bool | None = None
    ) -> Iterator[FrameChunk]:
        """Yield the frames of refined chunks (batch 1).

        `drop_first` leaves out frame 0, the sink picture; by default when the window has a sink
        and the settings do not keep it.
        """
        if drop_first is None:
            keep = self.settings.settings.video.keep_first_frame
            drop_first = self.window.sink > 0 and not keep
        state = DecoderState()
        done = 0
        for chunk in chunks:
            frames = self.decode_chunk(chunk.latents, state, number=chunk.span.number)
            first, done = done, done + len(frames)
            skip = 1 if drop_first and first == 0 else 0
            yield FrameChunk(chunk.span, first + skip, frames[skip:])

    def decode_chunk(self, latents: Tensor, state: DecoderState, *, number: int) -> np.ndarray:
        """Return the next frames `(T, H, W, 3)` uint8 of a stream of latents (batch 1)."""
        pixels = self.decoder.decode(latents.to(self.device), state)
        try:
            frames = pixels_to_uint8(pixels)[0].cpu().numpy()
        except NumericsError as e:
            raise NumericsError(f"block {number}: {e.message}", fix=e.fix) from None
        if frames.std() < FLAT_LEVELS and float(latents.float().std()) > FLAT_LATENTS:
            self.notes.warn(
                f"block {number}: the decoded frames are flat while their latents are not; "
                "the VAE decoder may be damaged"
            )
        return frames

    def encode_frames(self, frames: Iterable[np.ndarray]) -> Iterator[Tensor]:
        """Yield the latents of batches of frames `(T, H, W, 3)` uint8, `ratio * k + 1` in all."""
        from .vae.pixels import uint8_to_pixels

        state = EncoderState()
        for batch in frames:
            pixels = uint8_to_pixels(torch.from_numpy(np.ascontiguousarray(batch))[None])
            yield self.encoder.encode(pixels.to(self.device), state)
        self.encoder.finish(state)

    def _stream(
        self, clean: Iterable[Tensor], text: TextContext, shape: LatentShape, noise: Noise
    ) -> Iterator[RefinedChunk]:
        refiner = self.settings.settings.refiner
        stream = RefinerStream(
            self.refiner,
            text,
            shape=shape,
            fps=float(parse_fps(self.settings.settings.video.fps)),
            window=self.window,
            sigmas=refiner.sigmas,
            noise=noise,
        )
        source = iter(clean)
        lead: Tensor | None = next(source) if self.window.sink else None
        if lead is not None:
            stream.start(lead)
        for block in source:
            done = stream.refine(block)
            latents = done.latents.float()
            if lead is not None:
                # The sink is handed on as it came in, bit for bit (float32 holds every input).
                latents = torch.cat((lead.to(latents.device).float(), latents), dim=2)
                lead = None
            yield RefinedChunk(done.span, latents, done.history_frames, done.sink_position)

    def _single_shot(
        self, clean: Iterable[Tensor], text: TextContext, shape: LatentShape, noise: Noise
    ) -> Iterator[RefinedChunk]:
        clip = torch.cat(list(clean), dim=2)
        refined = refine_single_shot(
            self.refiner,
            text,
            clip,
            sink=self.window.sink,
            fps=float(parse_fps(self.settings.settings.video.fps)),
            sigmas=self.settings.settings.refiner.sigmas,
            noise=noise,
        )
        for span in self.window.blocks(shape.frames):
            start = 0 if span.number == 0 else span.start
            yield RefinedChunk(span, refined[:, :, start : span.stop].float(), 0, 0)

    def _path(self, name: str, why: str) -> Path:
        if name not in self._components:
            self._components[name] = find_component(self.settings, name, why=why, download=True)
        return self._components[name].local


def split_clip(latents: Tensor, window: Window) -> Iterator[Tensor]:
    """Yield the sink frames of a clip `(B, C, T, H, W)`, if any, then its blocks."""
    if window.sink:
        yield latents[:, :, : window.sink]
    for span in window.blocks(latents.shape[2]):
        yield latents[:, :, span.start : span.stop]


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
    from .io.video import VideoSettings, VideoWriter

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
