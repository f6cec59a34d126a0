"""The stages of a run as iterators: clean chunks, refined chunks, frames.

Nothing here holds the whole clip: each iterator works on one chunk and passes it on.

    pipe = Pipeline.from_config("tiny")
    prompt = pipe.encode_prompt("a red tower on sand ground")
    for chunk in pipe.decode(pipe.refine(latents, prompt)):
        chunk.frames        # (T, H, W, 3) uint8
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .chunks import FrameChunk, RefinedChunk
from .components import Component, choose_device, choose_dtype, find_component, stage1_config
from .config import Resolved, resolve
from .errors import NumericsError, UsageError
from .io.rates import parse_fps
from .locations import local_path
from .notes import Notes
from .placement import choose_places
from .refiner.model import RefinerModel
from .refiner.noise import Noise, SeededNoise
from .refiner.single_shot import refine_single_shot
from .refiner.stream import RefinerStream
from .refiner.weights import load_refiner
from .shapes import LatentShape, Window
from .sources import split_clip
from .stage1.camera import PathCamera, RaySource
from .stage1.model import Stage1Model
from .stage1.noise import ChunkNoise, ClipNoise
from .stage1.noise import NoiseSource as Stage1Noise
from .stage1.plan import chunk_plan
from .stage1.sampler import Stage1Stream
from .stage1.weights import load_stage1
from .states import NO_STATES, StageStates
from .streams import to_host
from .text.embeddings import PromptEmbeds, Stage1Caption
from .tuning import pass_graphs, prepare_refiner
from .vae.decoder import VAEDecoder
from .vae.encoder import VAEEncoder, check_latents
from .vae.pixels import pixels_to_uint8, uint8_to_pixels
from .vae.state import DecoderState, EncoderState
from .vae.weights import load_decoder, load_encoder

#: A decoded chunk flatter than this (uint8 levels) while its latents are not is a decoder fault.
FLAT_LEVELS = 0.5
FLAT_LATENTS = 1e-3


class Pipeline:
    """The components of one model set on their devices; each is loaded when it is first used."""

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
        #: Device of each model by name; text encoders work on `device`.
        self.places = choose_places(settings.settings.runtime.place, self.device)
        #: Keep the VAE encoder after a picture was encoded (a session that encodes many).
        self.keep_encoder = False
        #: Rows of the blocks that the refiner's weights are laid out for, and whether compiled.
        self.refiner_layout: tuple[int, bool] | None = None
        self._components = dict(components or {})

    @classmethod
    def from_config(
        cls, *configs: str, sets: Iterable[str] = (), notes: Notes | None = None
    ) -> Pipeline:
        """Return the pipeline of presets or TOML files; `sets` are `section.key=value` strings."""
        return cls(resolve(configs, sets=list(sets)), notes=notes)

    def home(self, model: str) -> torch.device:
        """Where a model is when it does not work: main memory with `offload = "all"`."""
        offloaded = self.settings.settings.runtime.offload == "all"
        return torch.device("cpu") if offloaded else self.places[model]

    @property
    def window(self) -> Window:
        """Sink, block and window of the settings, in latent frames."""
        refiner = self.settings.settings.refiner
        return Window(refiner.sink_size, refiner.block_size, refiner.kv_max_frames)

    @cached_property
    def refiner(self) -> RefinerModel:
        """The refiner transformer."""
        path, device = self._path("refiner", "refining"), self.home("refiner")
        return load_refiner(path, device=device, dtype=self.dtype, notes=self.notes)

    @cached_property
    def decoder(self) -> VAEDecoder:
        """The causal VAE decoder."""
        path, device = self._path("vae", "decoding"), self.home("decoder")
        return load_decoder(path, device=device, dtype=self.dtype, notes=self.notes)

    @cached_property
    def encoder(self) -> VAEEncoder:
        """The VAE encoder."""
        path, device = self._path("vae", "encoding"), self.places["encoder"]
        return load_encoder(path, device=device, dtype=self.dtype, notes=self.notes)

    @cached_property
    def stage1(self) -> Stage1Model:
        """Stage 1: the streaming camera-controlled transformer."""
        config = stage1_config(self.settings, download=True, notes=self.notes)
        return load_stage1(
            self._path("stage1", "an image"),
            config=config,
            device=self.home("stage1"),
            dtype=self.dtype,
            notes=self.notes,
        )

    def encode_caption(self, text: str, *, cache: Path | None = None) -> Stage1Caption:
        """Return stage 1's embeddings of a prompt; its encoder is freed before this returns."""
        from .text.caption import encode_caption
        from .text.store import PromptStore

        config = stage1_config(self.settings, download=True, notes=self.notes)
        return encode_caption(
            text,
            text_encoder=self._path("stage1_text_encoder", "encoding the prompt for stage 1"),
            instruction=self._instruction(),
            max_length=config.text_length,
            width=config.text_width,
            device=self.device,
            dtype=self.dtype,
            notes=self.notes,
            store=PromptStore(cache) if cache is not None else None,
        )

    def _instruction(self) -> str | None:
        """Return the text that the release puts in front of stage 1's prompt, if configured."""
        location = self.settings.settings.stage1.instruction
        if not location:
            return None  # encode_caption says so
        from .text.instruction import read_instruction

        path = local_path(location, what="stage1 instruction", download=True)
        assert path is not None
        return read_instruction(path)

    def encode_picture(self, picture: np.ndarray) -> Tensor:
        """Return the normalised latent `(1, C, 1, H, W)` of a picture, uint8 `(H, W, 3)`.

        The encoder is not kept: a clip needs it once.
        """
        latents = list(self.encode_frames([picture[None]]))
        if not self.keep_encoder:
            self.__dict__.pop("encoder", None)
        return latents[0]

    def generate(
        self,
        first: Tensor | None,
        caption: Stage1Caption,
        rays: RaySource,
        *,
        shape: LatentShape,
        noise: Stage1Noise | None = None,
        states: StageStates = NO_STATES,
        open_ended: bool = False,
    ) -> Iterator[Tensor]:
        """Yield stage 1's clean latent chunks `(1, C, t, H, W)` of a clip; frame 0 is `first`.

        first: the image latent `(1, C, 1, H, W)`, None when `states` continue a run. rays: the
        camera, one pose a pixel frame. open_ended: the clip has no last chunk, and `rays` grow.
        """
        options = self.settings.settings.stage1
        stream = Stage1Stream(
            self.stage1,
            caption=caption.caption.to(self.places["stage1"], self.dtype),
            mask=caption.mask.to(self.places["stage1"]),
            camera=PathCamera(rays, use_plucker=self.stage1.config.plucker_channels > 0),
            shape=shape,
            noise=noise or self.stage1_noise(shape, open_ended=open_ended),
            steps=options.denoising_step_list,
            num_frame_per_block=options.num_frame_per_block,
            num_cached_blocks=options.num_cached_blocks,
            sink_token=options.sink_token,
            open_ended=open_ended,
            notes=self.notes,
        )
        load = partial(stream.state.load_state_dict, device=self.places["stage1"])
        if not states.restore("stage1", load) and first is not None:
            stream.start(first)
        for chunk in stream:
            states.passed("stage1", stream.state.chunks - 1, stream.state.state_dict)
            yield chunk

    def stage1_noise(self, shape: LatentShape, *, open_ended: bool = False) -> Stage1Noise:
        """Return stage 1's seeded noise: a draw a chunk, or one for the clip (`reference`)."""
        runtime, options = self.settings.settings.runtime, self.settings.settings.stage1
        device = "cpu" if runtime.noise_device == "cpu" else self.places["stage1"]
        if options.noise == "reference":
            return ClipNoise.reference(runtime.seed, shape=shape, device=device, dtype=self.dtype)
        spans = chunk_plan(shape.frames, options.num_frame_per_block, open_ended=open_ended)
        return ChunkNoise(runtime.seed, shape=shape, spans=spans, device=device)

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
        on_cpu = runtime.noise_device == "cpu"
        return SeededNoise(seed, device="cpu" if on_cpu else self.places["refiner"])

    def refine(
        self,
        clean: Tensor | Iterable[Tensor],
        prompt: PromptEmbeds,
        *,
        shape: LatentShape | None = None,
        noise: Noise | None = None,
        states: StageStates = NO_STATES,
        open_ended: bool = False,
    ) -> Iterator[RefinedChunk]:
        """Yield the refined chunks of a clip, one block at a time.

        clean: the clip's latents `(B, C, T, H, W)`; or its chunks (first the sink frames if the
        window has a sink, then every block), with their total `shape`. With `states` that continue
        a run, the chunks are those of the blocks that are left, without the sink. With `open_ended`
        blocks come for as long as `clean` has them.
        """
        if isinstance(clean, Tensor):
            if clean.ndim != 5:
                raise UsageError(f"latents are {tuple(clean.shape)}; expected (B, C, T, H, W)")
            shape = LatentShape(*clean.shape)
            clean = split_clip(clean, self.window)
        if shape is None:
            raise UsageError("chunks of latents need the clip's total shape", fix="pass shape=")
        noise = noise or self.noise()
        if self.settings.settings.refiner.mode == "single-shot":
            if open_ended:
                raise UsageError("single-shot mode needs the whole clip, it has no open end")
            return self._single_shot(clean, prompt, shape, noise)
        return self._stream(clean, prompt, shape, noise, states, open_ended)

    def decode(
        self,
        chunks: Iterable[RefinedChunk],
        *,
        drop_first: bool | None = None,
        states: StageStates = NO_STATES,
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

        def load(saved: Mapping[str, Any]) -> None:
            nonlocal done
            state.load_state_dict(saved["vae"], device=self.places["decoder"])
            done = int(saved["frames"])

        states.restore("decode", load)
        for chunk in chunks:
            frames = self.decode_chunk(chunk.latents, state, number=chunk.span.number)
            first, done = done, done + len(frames)
            states.passed("decode", chunk.span.number, partial(_decoder_snapshot, state, done))
            skip = 1 if drop_first and first == 0 else 0
            yield FrameChunk(chunk.span, first + skip, frames[skip:])

    def decode_chunk(self, latents: Tensor, state: DecoderState, *, number: int) -> np.ndarray:
        """Return the next frames `(T, H, W, 3)` uint8 of a stream of latents (batch 1)."""
        pixels = self.decoder.decode(latents.to(self.places["decoder"]), state)
        try:
            frames = to_host(pixels_to_uint8(pixels)[0]).numpy()
        except NumericsError as e:
            raise NumericsError(f"block {number}: {e.message}", fix=e.fix) from None
        sample = frames[:, ::4, ::4]  # numpy's std makes two float64 copies of what it gets
        if sample.std() < FLAT_LEVELS and float(latents.float().std()) > FLAT_LATENTS:
            self.notes.warn(
                f"block {number}: the decoded frames are flat while their latents are not; "
                "the VAE decoder may be damaged"
            )
        return frames

    def encode_frames(self, frames: Iterable[np.ndarray]) -> Iterator[Tensor]:
        """Yield the latents of batches of frames `(T, H, W, 3)` uint8, `ratio * k + 1` in all."""
        state = EncoderState()
        for batch in frames:
            pixels = uint8_to_pixels(torch.from_numpy(np.array(batch))[None])
            latents = self.encoder.encode(pixels.to(self.places["encoder"]), state)
            yield check_latents(latents, taken=state.taken)
        self.encoder.finish(state)

    def _stream(
        self,
        clean: Iterable[Tensor],
        prompt: PromptEmbeds,
        shape: LatentShape,
        noise: Noise,
        states: StageStates,
        open_ended: bool,
    ) -> Iterator[RefinedChunk]:
        prepare_refiner(self, shape)
        text = self.refiner.prepare_text(prompt.embeds, prompt.mask)
        refiner = self.settings.settings.refiner
        stream = RefinerStream(
            self.refiner,
            text,
            shape=shape,
            fps=float(parse_fps(self.settings.settings.video.fps)),
            window=self.window,
            sigmas=refiner.sigmas,
            noise=noise,
            open_ended=open_ended,
            graphs=pass_graphs(self),
        )
        source = iter(clean)
        continued = states.restore("refine", lambda saved: stream.load_state_dict(dict(saved)))
        lead: Tensor | None = next(source) if self.window.sink and not continued else None
        if lead is not None:
            stream.start(lead)
        for block in source:
            done = stream.refine(block)
            states.passed("refine", done.span.number, stream.state_dict)
            latents = done.latents.float()
            if lead is not None:
                # The sink is handed on as it came in, bit for bit (float32 holds every input).
                latents = torch.cat((lead.to(latents.device).float(), latents), dim=2)
                lead = None
            yield RefinedChunk(done.span, latents, done.history_frames, done.sink_position)

    def _single_shot(
        self, clean: Iterable[Tensor], prompt: PromptEmbeds, shape: LatentShape, noise: Noise
    ) -> Iterator[RefinedChunk]:
        text = self.refiner.prepare_text(prompt.embeds, prompt.mask)
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


def _decoder_snapshot(state: DecoderState, frames: int) -> dict[str, Any]:
    return {"vae": state.state_dict(), "frames": frames}
