"""Steer the camera while the clip is made: the next poses are decided after the last frames.

    pipe = Pipeline.from_config("tiny")
    live = LiveSession(pipe, picture, "a red tower on sand ground", fov_x_deg=90)
    camera = ActionWalk()
    chunk = live.step(camera.walk(f"w-{live.block_frames}"))      # chunk.frames: (T, H, W, 3) uint8
    chunk = live.step(camera.walk(f"dw-{live.block_frames}"))     # decided after looking at them

A block equals the block of the same path given in advance (`sanawm refine --image --camera`), and
memory does not grow with the clip but for its path, 64 bytes a frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import numpy as np
from torch import Tensor

from .camera.framing import ImageSize
from .camera.geometry import Float32
from .camera.intrinsics import resolve_intrinsics
from .camera.live import LiveRays
from .chunks import FrameChunk
from .components import check_stage1, find_component, refiner_config, stage1_config, vae_config
from .errors import UsageError
from .io.image import check_size, fit_image
from .pipeline import Pipeline
from .shapes import LatentShape, VAERatios
from .sources import regroup


class LiveSession:
    """One clip without an end, made block by block from a picture, a prompt and a live camera.

    picture: uint8 `(H, W, 3)`, fitted to the size of the settings. intrinsics: `(4,)` fx fy cx cy
    in pixels of the picture, or fov_x_deg: degrees across it; without either 90 degrees across the
    clip, with a warning in the pipeline's notes. cache: folder in which prompt embeddings are kept.

    Text is encoded and models are loaded here, so that the first `step` is as fast as the others.
    Raises `UsageError` for settings that cannot be steered block by block (a sink other than one
    latent frame, single-shot mode, reference noise), and the errors of the parts.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        picture: np.ndarray,
        prompt: str,
        *,
        intrinsics: Float32 | None = None,
        fov_x_deg: float | None = None,
        cache: Path | None = None,
    ) -> None:
        shape, ratios = _check(pipeline)
        video = pipeline.settings.settings.video
        size = ImageSize(video.width, video.height)
        lens = resolve_intrinsics(
            None,
            1,
            image_size=ImageSize(picture.shape[1], picture.shape[0]),
            target=size,
            supplied=None if intrinsics is None else np.float32(intrinsics).reshape(1, 4),
            fov_x_deg=fov_x_deg,
            fov_source=None if fov_x_deg is None else f"fov_x_deg={fov_x_deg:g}",
            notes=pipeline.notes,
        )
        fitted = fit_image(picture, width=size.width, height=size.height, notes=pipeline.notes)
        self._rays = LiveRays(lens[0], size=size, ratios=ratios)
        self._rays.append(np.eye(4, dtype=np.float32)[None])
        #: Poses that each `step` takes: one a frame, from the frame after the last one on.
        self.block_frames = pipeline.window.block * ratios.time
        self._chunks = self._open(pipeline, fitted, prompt, shape, cache)

    @property
    def poses(self) -> Float32:
        """The path so far `(F, 4, 4)`: I for the picture, then one pose for each frame asked."""
        return self._rays.poses

    def step(self, poses: Float32) -> FrameChunk:
        """Make the next block along `poses` `(block_frames, 4, 4)`; return its frames.

        Poses are camera-to-world with OpenCV axes; that of the picture is I. Chunk 0 starts with
        the frame after the picture, or with the picture when the settings keep it. Raises
        `UsageError`, with the session unchanged, for another number of poses or no rigid poses.
        """
        if len(poses) != self.block_frames:
            raise UsageError(
                f"{len(poses)} poses given, a block takes {self.block_frames}",
                fix=f"give one pose a frame, {self.block_frames} a step",
            )
        self._rays.append(poses)
        return next(self._chunks)

    def _open(
        self,
        pipeline: Pipeline,
        picture: np.ndarray,
        prompt: str,
        shape: LatentShape,
        cache: Path | None,
    ) -> Iterator[FrameChunk]:
        """Encode prompt and picture, load the models, and return the chain of the stages."""
        embeds = pipeline.encode_prompt(prompt, cache=cache)
        caption = pipeline.encode_caption(prompt, cache=cache)
        first = pipeline.encode_picture(picture)
        for name in ("stage1", "refiner", "decoder"):
            getattr(pipeline, name)
        made = pipeline.generate(first, caption, self._rays, shape=shape, open_ended=True)
        window = pipeline.window
        clean: Iterator[Tensor] = regroup(made, chain([window.sink], repeat(window.block)))
        return pipeline.decode(pipeline.refine(clean, embeds, shape=shape, open_ended=True))


def _check(pipeline: Pipeline) -> tuple[LatentShape, VAERatios]:
    """Return the clip's latent shape (its length left open) and the ratios of its VAE."""
    settings, window = pipeline.settings, pipeline.window
    options, video = settings.settings, settings.settings.video
    if window.sink != 1:
        raise UsageError(
            f"with a sink of {window.sink} stage 1's chunks do not end where blocks end",
            fix="steer with refiner.sink_size 1",
        )
    if options.refiner.mode == "single-shot" or options.stage1.noise == "reference":
        raise UsageError(
            "single-shot mode and reference noise need the whole clip before its first block",
            fix='use refiner.mode "chunked" and stage1.noise "chunk"',
        )
    refiner = refiner_config(find_component(settings, "refiner", why="refining", download=True))
    vae = vae_config(find_component(settings, "vae", why="decoding", download=True))
    check_size(video.height, video.width, vae.ratios.space)
    config = stage1_config(settings, download=True, notes=pipeline.notes)
    check_stage1(config, refiner, vae.ratios, options.stage1.num_frame_per_block, window)
    grid = (video.height // vae.ratios.space, video.width // vae.ratios.space)
    return LatentShape(1, refiner.in_channels, 1, *grid), vae.ratios
