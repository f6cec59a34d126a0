"""From the flags of `sanawm camera` to a trajectory: read or rolled out, cut, with its lens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanawm.config import Resolved, resolve
from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.notes import Notes
from sanawm.shapes import MAX_FRAMES

from .camera_params import ACTION_FLAGS, ACTION_STRING, FILE_FLAGS
from .params import Flag, given

if TYPE_CHECKING:
    from sanawm.camera import ImageSize, Trajectory

FILE = "FILE"


def path_settings(values: dict[str, Any], flags: Iterable[Flag]) -> Resolved:
    """Return the settings that the flags ask for; raise `UsageError` where they contradict."""
    flags = tuple(flags)
    typed = given(flags, values)
    if values.get("file") is not None:
        typed["input.camera"] = (FILE, values["file"])
    for name, value in typed.values():
        if value == "":
            raise UsageError(f"{name} is empty", fix="give it a value, or leave it out")
    _check_size(typed)
    settings = resolve(flags=typed)
    source = settings.settings.input
    if source.camera is None and source.action is None:
        raise _no_path(flags)
    idle: tuple[Flag, ...] = FILE_FLAGS
    about = "a file, and the path is an action string"
    if source.action is None:
        idle, about = ACTION_FLAGS, "an action string, and the path is a file"
    for flag in idle:
        if flag.key in typed:
            raise UsageError(f"{flag.shown} is about {about}", fix="leave it out")
    _check_length(settings)
    return settings


def _no_path(flags: tuple[Flag, ...]) -> UsageError:
    """Return the error for a command without a path; it names what the command takes."""
    example = '--action "w-24,dw-24"'
    if FILE_FLAGS[0] not in flags:
        return UsageError("no camera path: no --action was given", fix=f"add, say, {example}")
    if ACTION_STRING not in flags:
        return UsageError("no camera path: no file was given", fix="name a file")
    return UsageError(
        "no camera path: neither a file nor --action was given",
        fix=f"name a file, or add, say, {example}",
    )


def _check_size(typed: dict[str, Any]) -> None:
    """Raise `UsageError` for half a size, or a side that no picture has.

    The settings' own message would name the width of the preset, which means nothing here.
    """
    sides = {"--width": "video.width", "--height": "video.height"}
    for flag, key in sides.items():
        value = str(typed[key][1]).strip() if key in typed else "1"
        if value.lstrip("+-").isdecimal() and int(value) < 1:
            raise UsageError(
                f"{flag} {value}: expected a whole number, 1 or more",
                fix=f"give the {flag.removeprefix('--')} of the image file in pixels",
            )
    missing = [flag for flag, key in sides.items() if key not in typed]
    if len(missing) == 1:
        (other,), (alone,) = missing, set(sides) - set(missing)
        raise UsageError(
            f"{alone} without {other}: a picture has both", fix=f"add {other}, in pixels"
        )


def _check_length(settings: Resolved) -> None:
    """Raise `UsageError` for a length that is impossible."""
    asked = asked_frames(settings)
    if asked is not None and not 1 <= asked <= MAX_FRAMES:
        raise UsageError(
            f"--num-frames {asked} cannot be used: expected 1 to {MAX_FRAMES}",
            fix="a streamed clip has 24*k + 1 frames: 25, 49, ... 241",
        )


def asked_frames(settings: Resolved) -> int | None:
    """Return `--num-frames`, None when it was not typed."""
    typed = settings.origin("video.num_frames").by_user
    return settings.settings.video.num_frames if typed else None


def frame_rate(settings: Resolved) -> float:
    """Return `--fps` as a number."""
    from sanawm.frame_rates import rate_of

    return float(rate_of(settings))


def picture_size(settings: Resolved) -> ImageSize | None:
    """Return the size of the picture that intrinsics are about, None when it was not said."""
    if not settings.origin("video.width").by_user:
        return None
    from sanawm.camera import ImageSize

    return ImageSize(settings.settings.video.width, settings.settings.video.height)


def read_path(settings: Resolved, notes: Notes) -> Trajectory:
    """Return the trajectory that was asked for, with the lens that was asked for."""
    return _with_lens(_to_length(_read(settings, notes), settings, notes), settings, notes)


def _read(settings: Resolved, notes: Notes) -> Trajectory:
    from sanawm.camera import load_trajectory, roll_out_actions

    source, camera = settings.settings.input, settings.settings.camera
    if source.action is not None:
        return roll_out_actions(
            source.action,
            scheme=camera.action_scheme,
            translation_speed=camera.translation_speed,
            rotation_speed_deg=camera.rotation_speed_deg,
            pitch_limit_deg=camera.pitch_limit_deg,
        )
    path = Path(source.camera or "")
    if not path.exists() and _is_action(str(path)):
        raise MissingFile(f"{path}: no such file", fix=f'write --action "{path}" for an action')
    return load_trajectory(
        path,
        camera_format=camera.format,
        convention=camera.convention,
        axes=camera.axes,
        sort=camera.sort,
        translation_scale=camera.translation_scale,
        image_size=picture_size(settings),
        notes=notes,
    )


def _is_action(text: str) -> bool:
    """Tell whether a text without a file of that name can be meant as an action string."""
    from sanawm.camera import parse_actions

    try:
        parse_actions(text)
    except InputError:
        return False
    return True


def _to_length(trajectory: Trajectory, settings: Resolved, notes: Notes) -> Trajectory:
    """Return the trajectory cut, held or resampled as asked; as it is without such a flag."""
    from sanawm.camera import fit_to_clip

    camera = settings.settings.camera
    return fit_to_clip(
        trajectory,
        asked_frames(settings),
        hold_last=camera.hold_last,
        resample=camera.resample,
        fps=frame_rate(settings),
        notes=notes,
    )


def _with_lens(trajectory: Trajectory, settings: Resolved, notes: Notes) -> Trajectory:
    """Return the trajectory with `--intrinsics` or `--fov-x`, or with what its file holds.

    A field of view that the model was not trained for is a warning here, an error in `refine`.
    """
    from dataclasses import replace

    from sanawm.camera import ImageSize, read_intrinsics, resolve_intrinsics
    from sanawm.camera.intrinsics import intrinsics_of_fov

    source = settings.settings.input
    size = picture_size(settings) or _known_size(trajectory)
    supplied = None
    if source.intrinsics is not None:
        supplied = read_intrinsics(source.intrinsics, notes=notes)
        if size is None:
            size = ImageSize(*(max(1, round(2 * float(middle))) for middle in supplied[0, 2:]))
            notes.info(
                f"--intrinsics: the picture's size is not known, {size} is taken: its middle is "
                "the principal point; --width and --height say otherwise"
            )
    elif source.fov_x is not None and size is None:
        intrinsics_of_fov(source.fov_x, ImageSize(1, 1))  # refuses impossible angles
        angle = replace(trajectory, intrinsics=None, source_size=None, fov_x_deg=source.fov_x)
        return _warned(angle, notes)
    elif source.fov_x is None and (size is None or trajectory.intrinsics is None):
        if picture_size(settings) is not None and trajectory.intrinsics is None:
            notes.warn("--width and --height change nothing: this path has no intrinsics")
        return _warned(trajectory, notes)
    lens = resolve_intrinsics(
        trajectory,
        len(trajectory),
        image_size=size,
        target=size,  # type: ignore[arg-type]  # known in every case that comes here
        supplied=supplied,
        fov_x_deg=source.fov_x,
        allow_extreme_fov=True,
        notes=notes,
    )
    return replace(trajectory, intrinsics=lens, source_size=size, fov_x_deg=None)


def _known_size(trajectory: Trajectory) -> ImageSize | None:
    """Return the size of the picture that the file's intrinsics are about."""
    from sanawm.camera import FRACTIONS

    return None if trajectory.source_size == FRACTIONS else trajectory.source_size


def _warned(trajectory: Trajectory, notes: Notes) -> Trajectory:
    """Warn when the field of view, known as an angle or in unknown pixels, is out of range."""
    from sanawm.camera import check_trajectory

    for check in check_trajectory(trajectory):
        if check.name == "field of view" and not check.passed:
            notes.warn(f"{trajectory.source}: {check.found}")
    return trajectory
