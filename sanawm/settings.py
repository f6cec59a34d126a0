"""The typed settings of a run, section by section. Imports no torch.

Every key has the name of its command-line flag with underscores, less its section's own prefix
(`--refiner-block-size` is `refiner.block_size`). Defaults are the released model's values; model
locations have none.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .schedules import RELEASED_SIGMAS, RELEASED_STEPS, check_sigmas, check_steps

#: Marks a key whose relative value in a file is relative to that file.
PathLike = Annotated[str, "path"]
Rate = Annotated[str | int | float, "frames per second: 16, 23.976 or 24000/1001"]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """Frozen settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(Section):
    """Where the weights lie: folders, files or `hf://owner/repo[@revision][/sub/path]`."""

    refiner: PathLike | None = None
    vae: PathLike | None = None
    text_encoder: PathLike | None = None
    stage1: PathLike | None = None
    stage1_config: PathLike | None = None
    stage1_text_encoder: PathLike | None = None


class TextSettings(Section):
    """Prompt encoding."""

    max_length: Positive = 1024
    store: bool = True


class RefinerSettings(Section):
    """Window and schedule of the streaming refiner."""

    sink_size: int = 1
    block_size: int = 3
    kv_max_frames: int = 11
    sigmas: tuple[float, ...] = RELEASED_SIGMAS
    mode: Literal["chunked", "single-shot"] = "chunked"

    @field_validator("sigmas")
    @classmethod
    def _sigmas(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return check_sigmas(value)


class Stage1Settings(Section):
    """Schedule and window of stage 1."""

    denoising_step_list: tuple[int, ...] = RELEASED_STEPS
    num_frame_per_block: Positive = 3
    num_cached_blocks: Annotated[int, Field(ge=0)] = 2
    sink_token: bool = True
    instruction: PathLike | None = None
    noise: Literal["chunk", "reference"] = "chunk"

    @field_validator("denoising_step_list")
    @classmethod
    def _steps(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return check_steps(value)


class CameraSettings(Section):
    """How a trajectory file or an action string is read."""

    format: str | None = None
    convention: Literal["c2w", "w2c"] | None = None
    axes: Literal["opencv", "opengl"] | None = None
    sort: Literal["name", "file"] = "name"
    translation_scale: float = 1.0
    action_scheme: Literal["unified", "legacy"] = "unified"
    translation_speed: float | None = None
    rotation_speed_deg: float | None = None
    pitch_limit_deg: float | None = None
    hold_last: bool = False
    resample: Literal["clip", "time"] | None = None
    allow_extreme_fov: bool = False


class InputSettings(Section):
    """What goes in: one source, one prompt, at most one camera path, each from one place."""

    image: PathLike | None = None
    latents: PathLike | None = None
    video: PathLike | None = None
    prompt: str | None = None
    prompt_file: PathLike | None = None
    prompt_embeds: PathLike | None = None
    camera: PathLike | None = None
    action: str | None = None
    intrinsics: PathLike | None = None
    fov_x: float | None = None
    noise: PathLike | None = None


class VideoSettings(Section):
    """Size, length and rate of the clip, and how it is encoded.

    `max_pixels` bounds height x width of a `--video` source that brings its own size.
    """

    fps: Rate = 16
    output_fps: Rate | None = None
    height: Positive = 704
    width: Positive = 1280
    max_pixels: Positive = 704 * 1280
    num_frames: int = 241
    sampling: Literal["keep", "resample"] = "keep"
    keep_first_frame: bool = False
    crf: Annotated[int, Field(ge=0, le=51)] = 18
    encoder: str = "libx264"
    encoder_preset: str = "medium"
    faststart: bool = False


class OutputSettings(Section):
    """What is written, and where."""

    output: PathLike | None = None
    output_dir: PathLike | None = None
    name: str | None = None
    video: bool = True
    save_latents: PathLike | None = None
    save_stage1: PathLike | None = None
    save_prompt_embeds: PathLike | None = None
    save_noise: PathLike | None = None
    save_camera: PathLike | None = None
    frames_dir: PathLike | None = None
    preview: PathLike | None = None
    report: PathLike | None = None
    overwrite: bool = False
    state: PathLike | None = None
    state_every: Positive = 1
    resume: bool = False


class RuntimeSettings(Section):
    """Seeds, and how the machine is used."""

    seed: Seed = 42
    refiner_seed: Seed | None = None
    noise_device: Literal["cpu", "device"] = "cpu"
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    offload: Literal["none", "text", "all"] = "text"
    schedule: Literal["auto", "sequential", "overlap"] = "auto"
    compile: bool = False
    cuda_graph: bool = False
    threads: Positive | None = None
    place: str | None = None


class Settings(Section):
    """All settings of a run. Build it with `sanawm.config.resolve`."""

    model: ModelSettings = ModelSettings()
    text: TextSettings = TextSettings()
    refiner: RefinerSettings = RefinerSettings()
    stage1: Stage1Settings = Stage1Settings()
    camera: CameraSettings = CameraSettings()
    input: InputSettings = InputSettings()
    video: VideoSettings = VideoSettings()
    output: OutputSettings = OutputSettings()
    runtime: RuntimeSettings = RuntimeSettings()


#: Keys of which at most one may be set; a stronger layer's choice replaces the whole group.
EXCLUSIVE = (
    ("input.image", "input.latents", "input.video"),
    ("input.prompt", "input.prompt_file", "input.prompt_embeds"),
    ("input.camera", "input.action"),
    ("input.intrinsics", "input.fov_x"),
    ("output.output", "output.output_dir"),
)


def all_keys() -> dict[str, Any]:
    """Return every settings key (`section.name`) with its pydantic field."""
    return {
        f"{section}.{name}": field
        for section, outer in Settings.model_fields.items()
        for name, field in outer.default.__class__.model_fields.items()
    }


def is_path(key: str) -> bool:
    """Tell whether a key names a file or folder (relative to the file that sets it)."""
    return "'path'" in repr(all_keys()[key].annotation)


@cache
def path_keys() -> frozenset[str]:
    """Return the keys that name a file or folder."""
    return frozenset(key for key in all_keys() if is_path(key))


def may_be_none(key: str) -> bool:
    """Tell whether `--set KEY=none` takes a key's value away: it has none unless it is set.

    A prompt and a name may be that word, and `output.state = none` asks for no run state.
    """
    return all_keys()[key].default is None and key not in (
        "input.prompt",
        "output.name",
        "output.state",
    )


def is_switch(key: str) -> bool:
    """Tell whether a key is on or off; only such a key takes a boolean."""
    return all_keys()[key].annotation is bool
