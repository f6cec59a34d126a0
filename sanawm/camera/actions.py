"""The action language: `w-24,dw-24` is 24 frames of W, then 24 of D and W together.

Two schemes give the same letters different meanings (`camera.md`, section 2): `unified` (since June
2026: A/D turn, J/L strafe, motion fades out after a release) and `legacy` (first release and
diffusers 0.42.1: A/D strafe, J/L turn, no fading).

Everything is float64; poses are cast to float32 at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sanawm.errors import InputError, UsageError
from sanawm.shapes import MAX_FRAMES

from .geometry import Float32
from .trajectory import Trajectory
from .walk import Keys, Motion, Walker

Scheme = Literal["unified", "legacy"]

#: Letters an action may hold; `none` stands for no key.
KEYS = "wasdijkl"

#: Kept from upstream: added to the length a flattened direction is divided by.
FLAT_EPSILON = 1e-6


class KeyPair(NamedTuple):
    """Key that moves one way and key that moves the other way."""

    plus: str
    minus: str

    def sign(self, keys: Keys) -> int:
        """Return +1, -1 or 0 (neither, or both)."""
        return (self.plus in keys) - (self.minus in keys)


@dataclass(frozen=True)
class SchemeDefaults:
    """What the letters of a scheme mean and how fast they move unless the user says otherwise."""

    forward: KeyPair
    right: KeyPair
    yaw: KeyPair
    pitch: KeyPair
    translation_speed: float  # scene units a frame
    rotation_speed_deg: float  # degrees a frame
    pitch_limit_deg: float


_FORWARD, _PITCH = KeyPair("w", "s"), KeyPair("i", "k")
SCHEMES: dict[str, SchemeDefaults] = {
    "unified": SchemeDefaults(
        _FORWARD, KeyPair("l", "j"), KeyPair("d", "a"), _PITCH, 0.025, 0.6, 60.0
    ),
    "legacy": SchemeDefaults(
        _FORWARD, KeyPair("d", "a"), KeyPair("l", "j"), _PITCH, 0.05, 1.2, 85.0
    ),
}


def parse_actions(text: str) -> list[Keys]:
    """Return the keys held in each frame of an action string, without whitespace and case.

    Raises `InputError` naming the segment that is wrong.
    """
    compact = "".join(text.replace("\uff0c", ",").split())
    if not compact:
        raise InputError("the action string is empty", fix="write KEYS-FRAMES, such as w-24,dw-24")
    segments = compact.split(",")
    frames: list[Keys] = []
    for number, segment in enumerate(segments, start=1):
        keys, count = _parse_segment(segment, f"action segment {number} of {len(segments)}")
        if len(frames) + count > MAX_FRAMES:
            raise InputError(
                f"action segment {number} of {len(segments)}: {count} frames make the path "
                f"longer than {MAX_FRAMES} frames",
                fix="use fewer frames",
            )
        frames.extend([keys] * count)
    return frames


def _parse_segment(segment: str, where: str) -> tuple[Keys, int]:
    """Return keys and frame count of `<keys>-<frames>`, split at the last hyphen."""
    if not segment:
        raise InputError(
            f"{where} is empty: two commas in a row, or one at the end",
            fix="remove the extra comma",
        )
    keys, hyphen, count = segment.rpartition("-")
    if not hyphen:
        odd = next((c for c in segment if c in "\u2010\u2011\u2012\u2013\u2014\u2212"), None)
        hint = f"use the plain hyphen - instead of {odd}" if odd else "write it as, say, w-24"
        raise InputError(f"{where}: {segment!r} has no frame count, expected KEYS-FRAMES", fix=hint)
    frames = _parse_count(count)
    held = keys.lower()
    if frames is None:
        found = f"{count!r} as its frame count" if count else "no frame count after the hyphen"
        example = keys if held == "none" or (held and set(held) <= set(KEYS)) else "w"
        raise InputError(
            f"{where}: {segment!r} has {found}, expected a whole number from 1",
            fix=f"write keys first and frames last, say {example}-24",
        )
    if held in ("", "none"):
        return frozenset(), frames
    unknown = sorted(set(held) - set(KEYS))
    if unknown:
        names = ", ".join(repr(c) for c in unknown)
        raise InputError(
            f"{where}: {segment!r} has keys that do not exist: {names}; expected letters of "
            f"{' '.join(KEYS)}, or none",
            fix="separate segments with a comma and remove unknown letters",
        )
    return frozenset(held), frames


def _parse_count(text: str) -> int | None:
    """Return the frame count, or None when `text` is no whole number from 1."""
    if not text.isdigit():
        return None
    try:
        count = int(text)
    except ValueError:  # digits such as a superscript two, or thousands of them
        return None
    return count if count > 0 else None


class ActionWalk:
    """A camera steered by action strings, one after the other: the path of all of them in a row.

    `translation_speed` is in scene units a frame, `rotation_speed_deg` in degrees a frame,
    `pitch_limit_deg` the largest angle up or down; None takes the scheme's value. `smooth=False`
    turns the fading of the unified scheme off. The path starts at the pose I, which `walk` does not
    return.

    Raises `UsageError` for settings out of range.
    """

    def __init__(
        self,
        *,
        scheme: str = "unified",
        translation_speed: float | None = None,
        rotation_speed_deg: float | None = None,
        pitch_limit_deg: float | None = None,
        smooth: bool = True,
    ) -> None:
        if scheme not in SCHEMES:
            raise UsageError(
                f"action scheme {scheme!r} does not exist", fix=f"use one of {', '.join(SCHEMES)}"
            )
        self.scheme = scheme
        self._keys = defaults = SCHEMES[scheme]
        self._speed = _setting("translation speed", translation_speed, defaults.translation_speed)
        self._turn = math.radians(
            _setting("rotation speed", rotation_speed_deg, defaults.rotation_speed_deg, most=180.0)
        )
        limit = math.radians(
            _setting("pitch limit", pitch_limit_deg, defaults.pitch_limit_deg, most=90.0)
        )
        unified = scheme == "unified"
        self._walker = Walker(
            limit=limit,
            epsilon=FLAT_EPSILON if unified else 0.0,
            saturate=unified,
            fade=unified and smooth,
        )

    def walk(self, text: str) -> Float32:
        """Return the next poses `(N, 4, 4)`, one for each frame of the action string `text`.

        Raises `InputError` for a malformed string; the camera then stays where it is.
        """
        poses = [self._walker.step(keys, self._target(keys)) for keys in parse_actions(text)]
        return np.stack(poses).astype(np.float32)

    def _target(self, keys: Keys) -> Motion:
        """Return the speeds that these keys stand for."""
        scheme = self._keys
        return Motion(
            self._speed * scheme.forward.sign(keys),
            self._speed * scheme.right.sign(keys),
            self._turn * scheme.yaw.sign(keys),
            self._turn * scheme.pitch.sign(keys),
        )


def roll_out_actions(
    text: str,
    *,
    scheme: str = "unified",
    translation_speed: float | None = None,
    rotation_speed_deg: float | None = None,
    pitch_limit_deg: float | None = None,
    smooth: bool = True,
) -> Trajectory:
    """Roll an action string out to a trajectory: N frames of keys give N + 1 poses, pose 0 = I.

    The settings are those of `ActionWalk`. Raises `InputError` for a malformed string and
    `UsageError` for settings out of range.
    """
    camera = ActionWalk(
        scheme=scheme,
        translation_speed=translation_speed,
        rotation_speed_deg=rotation_speed_deg,
        pitch_limit_deg=pitch_limit_deg,
        smooth=smooth,
    )
    poses = np.concatenate([np.eye(4, dtype=np.float32)[None], camera.walk(text)])
    return Trajectory(poses, format="action", source=f"action {text!r} ({scheme} scheme)")


def _setting(name: str, value: float | None, default: float, *, most: float = math.inf) -> float:
    """Return the value or its default; raise `UsageError` outside `0 .. most`."""
    if value is None:
        return default
    if not math.isfinite(value) or not 0 <= value <= most:
        bound = "a finite number from 0" if math.isinf(most) else f"0 to {most:g}"
        raise UsageError(
            f"{name} {value:g} cannot be used: expected {bound}",
            fix=f"leave it out for the scheme's {default:g}",
        )
    return float(value)
