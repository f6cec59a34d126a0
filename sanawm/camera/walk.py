"""A camera that walks: speeds frame by frame become poses, with inertia when the scheme has it.

Formulas: `camera.md`, section 2.3. Everything is float64; poses are cast to float32 at the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .geometry import Float64

#: Keys held in one frame.
Keys = frozenset[str]

#: Seconds a frame stands for in the fading of released motion: 16 frames a second, whatever --fps.
FRAME_SECONDS = 1.0 / 16.0
#: Time constants in seconds: towards a speed that is held, and towards standstill.
HELD_SECONDS, RELEASED_SECONDS = 0.45, 1.0
#: Shares of the way to its target that a speed moves in a frame.
_HELD_SHARE = 1.0 - math.exp(-FRAME_SECONDS / HELD_SECONDS)
_RELEASED_SHARE = 1.0 - math.exp(-FRAME_SECONDS / RELEASED_SECONDS)


class Motion(NamedTuple):
    """Speeds of one frame: forward and right in scene units, yaw right and pitch up in radians."""

    forward: float
    right: float
    yaw: float
    pitch: float


class Walker:
    """Where a camera stands and how fast it moves. It starts at I, at rest.

    limit: steepest look up or down, radians; at it a step is cut to fit when `saturate` is true,
    else dropped. epsilon: added to the length by which a flattened direction is divided. fade:
    speeds follow the keys with inertia.
    """

    def __init__(self, *, limit: float, epsilon: float, saturate: bool, fade: bool) -> None:
        self._limit, self._epsilon = limit, epsilon
        self._saturate, self._fade = saturate, fade
        self._rotation, self._position, self._pitch = np.eye(3), np.zeros(3), 0.0
        self._speed = Motion(0.0, 0.0, 0.0, 0.0)
        self._held = Keys()

    def step(self, keys: Keys, target: Motion) -> Float64:
        """Walk one frame with `keys` held, whose full speeds are `target`; return the pose."""
        return self._move(self._faded(keys, target) if self._fade else target)

    def _faded(self, keys: Keys, target: Motion) -> Motion:
        """Return the speeds of this frame with inertia.

        A key that was not held in the frame before sets all four speeds at once, also those of keys
        just released. In any other frame each speed moves a fixed share of the way to its target.
        """
        if keys - self._held:
            self._speed = target
        else:
            steps = (
                speed + (_HELD_SHARE if abs(goal) > 1e-12 else _RELEASED_SHARE) * (goal - speed)
                for speed, goal in zip(self._speed, target, strict=True)
            )
            self._speed = Motion(*steps)
        self._held = keys
        return self._speed

    def _move(self, motion: Motion) -> Float64:
        """Move for one frame and return the pose.

        Yaw turns about the world's vertical, pitch about the camera's own x axis, and translation
        stays in the horizontal plane at full speed.
        """
        tilted = self._pitch + motion.pitch
        if self._saturate:
            tilted = min(max(tilted, -self._limit), self._limit)
        elif not -self._limit <= tilted <= self._limit:
            tilted = self._pitch
        self._rotation = _about_y(motion.yaw) @ self._rotation @ _about_x(tilted - self._pitch)
        self._pitch = tilted
        forward = _flatten(self._rotation[:, 2], self._epsilon)
        right = _flatten(self._rotation[:, 0], self._epsilon)
        self._position = self._position + forward * motion.forward + right * motion.right
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = self._rotation, self._position
        return pose


def _about_x(angle: float) -> Float64:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def _about_y(angle: float) -> Float64:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])


def _flatten(direction: Float64, epsilon: float) -> Float64:
    """Return the horizontal part of `direction`, made about one unit long."""
    flat = np.array([direction[0], 0.0, direction[2]])
    length = math.hypot(flat[0], flat[2])
    return flat / (length + epsilon) if length > 0 else flat
