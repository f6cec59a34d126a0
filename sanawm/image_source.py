"""Clean latents from stage 1: a first image and a camera path, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .camera.clip import fit_to_clip, plan_frames, poses_available
from .camera.framing import ImageSize
from .camera.intrinsics import read_intrinsics, resolve_intrinsics
from .camera.rays import CameraRays, camera_rays
from .camera.trajectory import Trajectory
from .components import check_stage1, find_component, stage1_config
from .config import Resolved
from .errors import UsageError
from .io.rates import parse_fps
from .locations import local_path
from .notes import Notes
from .refiner.config import RefinerConfig
from .shapes import LatentShape, VAERatios, Window
from .sources import Source, regroup, sizes_left
from .stage1.plan import ChunkWindow, check_chunk_window
from .states import NO_STATES, StageStates

if TYPE_CHECKING:
    from torch import Tensor

    from .pipeline import Pipeline
    from .text.embeddings import Stage1Caption


@dataclass(frozen=True)
class ImageClip(Source):
    """Latents that stage 1 makes of a picture, uint8 `(H, W, 3)`, and camera `rays`.

    `lens` is what the rays were made with: `(F, 4)` `fx fy cx cy` in pixels of the clip.
    """

    picture: np.ndarray | None = None
    rays: CameraRays | None = None
    lens: np.ndarray | None = None

    stage: ClassVar[str] = "stage1"
    needs: ClassVar[tuple[str, ...]] = ("stage1",)

    def chunks(
        self,
        pipeline: Pipeline,
        caption: Stage1Caption | None,
        states: StageStates = NO_STATES,
    ) -> Iterator[Tensor]:
        """Yield the sink, then every block, as stage 1 makes them."""
        assert self.picture is not None
        assert self.rays is not None
        if caption is None:
            raise UsageError("stage 1 needs the caption's embeddings")
        first = None if states.done else pipeline.encode_picture(self.picture)
        made = pipeline.generate(first, caption, self.rays, shape=self.shape, states=states)
        yield from regroup(made, sizes_left(self.shape.frames, pipeline.window, states.done))


def open_image(
    settings: Resolved,
    path: Path,
    refiner: RefinerConfig,
    ratios: VAERatios,
    window: Window,
    trajectory: Trajectory | None,
    notes: Notes,
) -> Source:
    """Return the clip that an image and a camera path make, checked without any weight.

    The path decides how long the clip can be; the picture is fitted to the clip's size and the
    intrinsics move with it.
    """
    from .io.image import check_size, fit_image, read_image

    video, stage1 = settings.settings.video, settings.settings.stage1
    if trajectory is None:
        found = "--image needs a camera path: stage 1 is steered by it"
        if settings.origin("input.image").kind != "flag":
            found = found.replace("--image", settings.named("input.image"))
        raise UsageError(
            found,
            fix='add --camera FILE or --action "w-24,dw-24"',
        )
    check_size(video.height, video.width, ratios.space)
    config = stage1_config(settings, download=False, notes=notes)
    check_stage1(config, refiner, ratios, stage1.num_frame_per_block, window)
    warning = check_chunk_window(ChunkWindow(stage1.num_cached_blocks, stage1.sink_token))
    if warning is not None:
        notes.warn(warning)
    pixels = read_image(path, notes=notes)
    source_size = ImageSize(pixels.shape[1], pixels.shape[0])
    picture = fit_image(pixels, width=video.width, height=video.height, notes=notes, name=str(path))
    frames, clip = _path_of_clip(settings, trajectory, ratios.time * window.block, notes)
    lens = _intrinsics(settings, clip, frames, source_size, notes)
    rays = camera_rays(clip.poses, lens, size=ImageSize(video.width, video.height), ratios=ratios)
    shape = LatentShape(
        1,
        refiner.in_channels,
        ratios.latent_frames_of(frames),
        video.height // ratios.space,
        video.width // ratios.space,
    )
    find_component(settings, "stage1", why="an image", download=False)
    _check_instruction(settings)
    fixes: dict[str, Any] = {"video.num_frames": frames}
    return ImageClip(
        "image",
        path,
        shape,
        asked=video.num_frames,
        fixes=fixes,
        picture=picture,
        rays=rays,
        lens=lens,
    )


def _check_instruction(settings: Resolved) -> None:
    """Read the instruction that goes before stage 1's prompt, if it is on this disk."""
    from .text.instruction import read_instruction

    key = "stage1.instruction"
    location, origin = settings.settings.stage1.instruction, str(settings.origin(key))
    if location:
        read_instruction(
            local_path(location, what="stage1 instruction", download=False, key=key, set_by=origin)
        )


def _path_of_clip(
    settings: Resolved, trajectory: Trajectory, stride: int, notes: Notes
) -> tuple[int, Trajectory]:
    """Return the clip's frames and its poses, one a frame."""
    options, fps = settings.settings.camera, float(parse_fps(settings.settings.video.fps))
    frames = plan_frames(
        settings.settings.video.num_frames,
        poses=poses_available(
            trajectory, hold_last=options.hold_last, resample=options.resample, fps=fps
        ),
        stride=stride,
        explicit=settings.origin("video.num_frames").by_user,
        set_by=str(settings.origin("video.num_frames")),
        where=trajectory.source,
        notes=notes,
    )
    clip = fit_to_clip(
        trajectory,
        frames,
        hold_last=options.hold_last,
        resample=options.resample,
        fps=fps,
        notes=Notes(),  # the plan fits the same path again, and says so then
    )
    return frames, clip


def _intrinsics(
    settings: Resolved, clip: Trajectory, frames: int, source: ImageSize, notes: Notes
) -> np.ndarray:
    """Return `(frames, 4)` intrinsics in pixels of the clip's picture."""
    given, video = settings.settings.input, settings.settings.video
    _note_lens_of_preset(settings, notes)
    supplied = read_intrinsics(given.intrinsics, notes=notes) if given.intrinsics else None
    return resolve_intrinsics(
        clip,
        frames,
        image_size=source,
        target=ImageSize(video.width, video.height),
        supplied=supplied,
        supplied_source=settings.named("input.intrinsics"),
        fov_x_deg=given.fov_x,
        fov_source=settings.named("input.fov_x"),
        allow_extreme_fov=settings.settings.camera.allow_extreme_fov,
        notes=notes,
    )


def _note_lens_of_preset(settings: Resolved, notes: Notes) -> None:
    """Note that the lens of a preset, which fits its own picture, is used for the user's."""
    if not settings.origin("input.image").by_user:
        return
    for key in ("input.intrinsics", "input.fov_x"):
        if settings.get(key) is not None and not settings.origin(key).by_user:
            notes.info(
                f"{settings.named(key)} fits the preset's own picture, and is used for "
                f"{settings.get('input.image')}; --fov-x or --intrinsics says what fits yours, "
                f"--set {key}=none leaves it open"
            )
