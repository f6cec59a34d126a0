"""Options that were given but that this run does not use: each is worth a line. No torch here."""

from __future__ import annotations

from .config import Resolved
from .notes import Notes
from .origins import RANKS

#: What an option needs, by the beginning of its key: a list of settings of which one must be set.
NEEDS = (
    ("video.sampling", ("input.video",)),
    ("camera.action_scheme", ("input.action",)),
    ("camera.translation_speed", ("input.action",)),
    ("camera.rotation_speed_deg", ("input.action",)),
    ("camera.pitch_limit_deg", ("input.action",)),
    ("camera.hold_last", ("input.camera", "input.action")),
    ("camera.resample", ("input.camera", "input.action")),
    ("camera.allow_extreme_fov", ("input.image",)),
    ("camera.", ("input.camera",)),
    ("input.intrinsics", ("input.image",)),
    ("input.fov_x", ("input.image",)),
    ("stage1.", ("input.image",)),
)
#: Options of encoding and decoding, which a run without a video does not do.
VIDEO_ONLY = ("crf", "encoder", "encoder_preset", "faststart", "output_fps", "keep_first_frame")
#: Options of the window, which a clip refined in one sequence does not have.
WINDOW_ONLY = ("block_size", "kv_max_frames")


def warn_unused(settings: Resolved, *, notes: Notes) -> None:
    """Write a warning for every flag and `--set` that changes nothing in this run.

    Files are left alone: one file may serve several kinds of runs.
    """
    for key, origin in settings.origins.items():
        if origin.rank < RANKS["set"] or settings.get(key) in (None, False):
            continue
        reason = _reason(settings, key)
        if reason is not None:
            notes.warn(f"{origin} changes nothing: {reason}")


def _reason(settings: Resolved, key: str) -> str | None:
    section, _, name = key.partition(".")
    if not settings.settings.output.video and section == "video" and name in VIDEO_ONLY:
        return "no video is made"
    if settings.settings.refiner.mode == "single-shot" and section == "refiner":
        return "single-shot mode has no window" if name in WINDOW_ONLY else None
    needs = next((needs for start, needs in NEEDS if key.startswith(start)), ())
    if not needs or any(settings.get(n) for n in needs):
        return None
    flags = " or ".join("--" + n.removeprefix("input.").replace("_", "-") for n in needs)
    return f"it goes with {flags}"
