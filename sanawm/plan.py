"""Check a whole run before anything heavy happens, and say what it will do.

`make_plan` reads headers and configs, never weights. It fails on everything that the inputs alone
decide, and every line about a changed request is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from .components import (
    Component,
    check_pair,
    find_component,
    is_remote,
    refiner_config,
    vae_config,
)
from .config import Resolved
from .downloads import check_download
from .errors import UsageError
from .frame_rates import rate_of
from .io.rates import parse_fps
from .notes import Notes
from .outputs import Outputs, default_state, plan_outputs, refuse_weights
from .placement import check_places
from .prompt_plan import PromptPlan, plan_prompt
from .refiner.config import RefinerConfig
from .shapes import BlockSpan, LatentShape, PixelShape, VAERatios, Window, check_window
from .sources import Source, open_source
from .unused import warn_unused
from .vae.config import VAEConfig

if TYPE_CHECKING:
    from .camera.trajectory import Trajectory


@dataclass(frozen=True)
class FrameCounts:
    """Pixel frames: `asked` by the user (None: the input decided), `decoded`, `dropped`."""

    asked: int | None
    decoded: int
    dropped: int

    @property
    def written(self) -> int:
        """Frames in the video."""
        return self.decoded - self.dropped


@dataclass(frozen=True)
class Plan:
    """A checked run: what goes in, what is computed, what comes out."""

    settings: Resolved
    source: Source
    prompt: PromptPlan
    camera: Trajectory | None
    components: dict[str, Component]
    refiner: RefinerConfig
    vae: VAEConfig | None
    shape: LatentShape
    pixels: PixelShape
    ratios: VAERatios
    fps: Fraction
    output_fps: Fraction
    window: Window
    blocks: tuple[BlockSpan, ...]
    frames: FrameCounts
    outputs: Outputs

    @property
    def has_stage1(self) -> bool:
        """True when stage 1 makes the clean latents, so that the camera changes pixels."""
        return "stage1" in self.components

    @property
    def single_shot(self) -> bool:
        """True when the clip is refined in one sequence."""
        return self.settings.settings.refiner.mode == "single-shot"

    @property
    def seconds(self) -> float:
        """Length of the video in seconds at the output rate."""
        return float(self.frames.written / self.output_fps)

    def chunk_frames(self, span: BlockSpan) -> int:
        """Pixel frames that a block decodes to (the sink's own frames not counted)."""
        return span.frames * self.ratios.time


def make_plan(settings: Resolved, *, notes: Notes, download: bool) -> Plan:
    """Return the plan of a refine run.

    `download` allows fetching `hf://` components that are not in the cache; without it their
    released architectures are assumed. Raises the errors of every part.
    """
    _refuse_empty(settings)
    warn_unused(settings, notes=notes)
    check_places(settings, notes=notes)
    window = _window(settings, notes)
    fps = rate_of(settings)
    if settings.settings.video.output_fps is not None:
        rate_of(settings, "video.output_fps")
    outputs = plan_outputs(settings, inputs=_input_paths(settings))
    prompt = plan_prompt(settings, notes=notes)
    components = _components(settings, outputs, prompt, download=download, notes=notes)
    state = default_state(outputs, settings.settings.output.state)
    refuse_weights(outputs, state, [c.path for c in components.values() if c.path is not None])
    refiner = refiner_config(components["refiner"])
    prompt.check_width(refiner.caption_channels)
    vae = _vae(components, refiner, notes)
    time, space, _ = refiner.vae_scale_factors
    ratios = VAERatios(time, space)
    trajectory = _read_camera(settings, notes)
    settings = _with_lens_of(trajectory, settings, notes)
    source = open_source(
        settings,
        refiner=refiner,
        ratios=ratios,
        window=window,
        trajectory=trajectory,
        notes=notes,
    )
    settings = settings.with_input(source.fixes, where=source.origin)
    fps = source.fps if source.fps is not None else fps
    shape, output_fps = source.shape, settings.settings.video.output_fps
    _check_length(source, window, notes)
    pixels = PixelShape(ratios.frames_of(shape.frames), shape.height * space, shape.width * space)
    _check_recipe(settings, notes)
    _check_noise(settings, shape, window)
    camera = _fit_camera(settings, trajectory, pixels.frames, fps, notes)
    _check_wanted(settings, outputs, shape, pixels, camera)
    return Plan(
        settings=settings,
        source=source,
        prompt=prompt,
        camera=camera,
        components=components,
        refiner=refiner,
        vae=vae,
        shape=shape,
        pixels=pixels,
        ratios=ratios,
        fps=fps,
        output_fps=fps if output_fps is None else parse_fps(output_fps),
        window=window,
        blocks=tuple(window.blocks(shape.frames)),
        frames=FrameCounts(source.asked, pixels.frames, _dropped(settings, window)),
        outputs=outputs,
    )


def _refuse_empty(settings: Resolved) -> None:
    """Raise `UsageError` for a flag without a value, such as a shell variable that is not set."""
    for key in ("image", "latents", "video", "camera", "action", "intrinsics", "noise"):
        origin = settings.origin(f"input.{key}")
        if settings.get(f"input.{key}") == "" and origin.kind == "flag":
            raise UsageError(f"{origin} is empty", fix="give it a value, or leave it out")


def _with_lens_of(trajectory: Trajectory | None, settings: Resolved, notes: Notes) -> Resolved:
    """Return settings in which the lens that a camera file holds replaces a preset's."""
    if trajectory is None or not trajectory.holds_lens:
        return settings
    weak = [
        key
        for key in ("input.intrinsics", "input.fov_x")
        if settings.get(key) is not None and not settings.origin(key).by_user
    ]
    if settings.settings.input.image:
        for key in weak:
            notes.info(f"{trajectory.source}: its lens is used instead of {settings.named(key)}")
    return settings.with_input(dict.fromkeys(weak), where=f"camera {settings.get('input.camera')}")


def _vae(
    components: dict[str, Component], refiner: RefinerConfig, notes: Notes
) -> VAEConfig | None:
    """Return the VAE's architecture, which must fit the refiner; None when the run needs none."""
    if "vae" not in components:
        return None
    vae = vae_config(components["vae"], notes=notes)
    check_pair(refiner, vae, where="model")
    return vae


def _check_wanted(
    settings: Resolved,
    outputs: Outputs,
    shape: LatentShape,
    pixels: PixelShape,
    camera: Trajectory | None,
) -> None:
    """Check that the outputs asked for can be made of this clip."""
    if outputs.save_camera is not None and camera is None:
        raise UsageError("--save-camera: this run has no camera path", fix="add --camera FILE")
    if outputs.video is None:
        return
    if shape.batch != 1:
        raise UsageError(
            f"the latents hold a batch of {shape.batch}; a video is made of one clip",
            fix="split the file, or use --no-video with --save-latents",
        )
    _check_encoding(settings, pixels)


def _window(settings: Resolved, notes: Notes) -> Window:
    refiner = settings.settings.refiner
    window = Window(refiner.sink_size, refiner.block_size, refiner.kv_max_frames)
    warning = check_window(window)
    if warning is not None:
        notes.warn(warning)
    return window


def _input_paths(settings: Resolved) -> list[Path]:
    """Return the input files of the run, which no output may replace."""
    given = settings.settings.input
    names = ("image", "latents", "video", "prompt_file", "prompt_embeds", "camera", "noise")
    paths = [Path(v) for n in names if (v := getattr(given, n))]
    lens = given.intrinsics
    return [*paths, Path(lens)] if lens and "," not in lens else paths


def _components(
    settings: Resolved, outputs: Outputs, prompt: PromptPlan, *, download: bool, notes: Notes
) -> dict[str, Component]:
    """Return the components that this run loads, by name, once all that is missing is fetched."""
    found = _found(settings, outputs, prompt, download=False)
    check_download(found.values(), notes=notes)
    if download and any(is_remote(component) for component in found.values()):
        found = _found(settings, outputs, prompt, download=True)
    return found


def _found(
    settings: Resolved, outputs: Outputs, prompt: PromptPlan, *, download: bool
) -> dict[str, Component]:

    def find(name: str, why: str) -> None:
        found[name] = find_component(settings, name, why=why, download=download)

    found: dict[str, Component] = {}
    given = settings.settings.input
    find("refiner", "refining")
    if outputs.video is not None or given.video or given.image:
        find("vae", "decoding" if outputs.video is not None else "encoding")
    if prompt.text is not None:
        find("text_encoder", "encoding the prompt")
    if given.image:
        find("stage1", "an image")
        if prompt.text is not None:
            find("stage1_text_encoder", "encoding the prompt for stage 1")
    return found


def _check_length(source: Source, window: Window, notes: Notes) -> None:
    shape = source.shape
    if shape.frames <= window.sink:
        raise UsageError(
            f"{source.path}: latent frames in the clip: {shape.frames}, taken by the sink: "
            f"{window.sink}; nothing is left to refine",
            fix=f"give at least {window.sink + 1} latent frames, or lower --sink-size",
        )
    short = (shape.frames - window.sink) % window.block
    if short:
        notes.change(
            f"{shape.frames} latent frames are not {window.sink} + {window.block}*k: "
            f"the last block has {short} instead of {window.block}"
        )


def _dropped(settings: Resolved, window: Window) -> int:
    """Return the pixel frames that are decoded but not written: the sink picture."""
    return 0 if settings.settings.video.keep_first_frame or window.sink == 0 else 1


def _check_recipe(settings: Resolved, notes: Notes) -> None:
    """Warn when a schedule is not the one the weights were distilled for."""
    keys = {"refiner.sigmas": "sigmas"}
    if settings.settings.input.image:
        keys["stage1.denoising_step_list"] = "denoising steps"
    for key, name in keys.items():
        declared, used = settings.declared.get(key), settings.get(key)
        if declared is not None and tuple(declared) != used:
            notes.warn(
                f"{name} {_listed(used)} are not those the preset declares for its weights "
                f"({_listed(declared)}): expect a different picture"
            )


def _check_noise(settings: Resolved, shape: LatentShape, window: Window) -> None:
    """Check the refiner's noise file."""
    if settings.settings.input.noise:
        from .io.latents import NoiseSource

        path = Path(settings.settings.input.noise)
        noise = NoiseSource.open(path, shape=shape, first=window.sink)
        noise.check(noise.shape.frames)


def _check_encoding(settings: Resolved, pixels: PixelShape) -> None:
    """Check that the video can be encoded here, before any model is loaded."""
    from .io.encoder import VideoSettings, check_encoder, check_settings

    video = settings.settings.video
    check_encoder(video.encoder, width=pixels.width, height=pixels.height)
    check_settings(
        VideoSettings(
            pixels.width,
            pixels.height,
            parse_fps(video.fps),
            video.crf,
            video.encoder,
            video.encoder_preset,
        )
    )


def _listed(values: object) -> str:
    return ", ".join(f"{v:g}" for v in values)  # type: ignore[attr-defined]


def _fit_camera(
    settings: Resolved, trajectory: Trajectory | None, frames: int, fps: Fraction, notes: Notes
) -> Trajectory | None:
    """Return the trajectory fitted to the clip, or None when there is none.

    A path that came with a preset and does not fit another source is left out with a line.
    """
    if trajectory is None:
        return None
    from .camera.clip import fit_to_clip
    from .camera.motion import warn_about_steps

    given, options = settings.settings.input, settings.settings.camera
    key = "input.action" if given.action else "input.camera"
    if not settings.origin(key).by_user and len(trajectory) < frames and not options.hold_last:
        notes.change(
            f"the preset's camera path has {len(trajectory)} poses, the clip {frames} frames: "
            "no camera is recorded"
        )
        return None
    warn_about_steps(trajectory, notes=notes)
    return fit_to_clip(
        trajectory,
        frames,
        hold_last=options.hold_last,
        resample=options.resample,
        fps=float(fps),
        notes=notes,
    )


def _read_camera(settings: Resolved, notes: Notes) -> Trajectory | None:
    """Return the path as it was given, before it is fitted to the clip; None when there is none."""
    given, options = settings.settings.input, settings.settings.camera
    if not given.camera and not given.action:
        return None
    if given.action:
        from .camera.actions import roll_out_actions

        return roll_out_actions(
            given.action,
            scheme=options.action_scheme,
            translation_speed=options.translation_speed,
            rotation_speed_deg=options.rotation_speed_deg,
            pitch_limit_deg=options.pitch_limit_deg,
        )
    from .camera.load import load_trajectory

    assert given.camera is not None
    return load_trajectory(
        Path(given.camera),
        camera_format=options.format,
        convention=options.convention,
        axes=options.axes,
        sort=options.sort,
        translation_scale=options.translation_scale,
        notes=notes,
    )
