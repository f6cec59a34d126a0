"""Camera paths for the procedural scenes: held keys, as a person would play.

Poses are camera-to-world with OpenCV axes, level, in metres; the ground is y = 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .scenes import FPS, METRES_PER_UNIT, Poses

RESPONSE = 0.35  # seconds until a speed has mostly reached what the keys ask


class Speeds(NamedTuple):
    """Forward and right in metres a second, yaw to the right in radians a second."""

    forward: float = 0.0
    right: float = 0.0
    yaw: float = 0.0


#: Kinds of motion and how often they are played.
KINDS = {
    "forward": 0.26, "forward+turn": 0.24, "turn": 0.18, "strafe": 0.11, "back": 0.11,
    "back+turn": 0.05, "still": 0.05,
}  # fmt: skip


def random_path(rng: np.random.Generator, frames: int) -> Poses:
    """Return `(frames, 4, 4)`: keys held for 0.7 to 2.5 seconds, in every third path all along."""
    wanted = np.empty((frames, 3))
    whole = rng.random() < 0.33
    at = 0
    while at < frames:
        held = frames if whole else int(rng.uniform(0.7, 2.5) * FPS)
        wanted[at : at + held] = _action(rng)
        at += held
    moving = bool(rng.random() < 0.5)
    return integrate(smooth(wanted, moving=moving), start=random_start(rng))


def constant_path(rng: np.random.Generator, frames: int, speeds: Speeds) -> Poses:
    """Return a path at one speed from a random place."""
    return integrate(np.tile(speeds, (frames, 1)), start=random_start(rng))


def random_start(rng: np.random.Generator) -> tuple[float, float]:
    """Return eye height and heading."""
    return float(rng.uniform(1.0, 1.6)), float(rng.uniform(0, 2 * np.pi))


def _action(rng: np.random.Generator) -> Speeds:
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    pace = float(rng.uniform(0.9, 1.9))
    turn = float(rng.choice((-1, 1)) * rng.uniform(0.15, 0.6))
    return {
        "forward": Speeds(forward=pace),
        "forward+turn": Speeds(forward=pace, yaw=turn),
        "turn": Speeds(yaw=turn),
        "strafe": Speeds(right=float(rng.choice((-1, 1))) * pace * 0.8),
        "back": Speeds(forward=-0.8 * pace),
        "back+turn": Speeds(forward=-0.8 * pace, yaw=turn),
        "still": Speeds(),
    }[kind]


def smooth(wanted: np.ndarray, *, moving: bool) -> np.ndarray:
    """Return speeds `(F, 3)` that follow `wanted`; `moving` starts at its first speed."""
    share = 1 - np.exp(-1 / (FPS * RESPONSE))
    now = wanted[0].copy() if moving else np.zeros(3)
    speeds = np.empty_like(wanted)
    for i, goal in enumerate(wanted):
        now = now + share * (goal - now)
        speeds[i] = now
    return speeds


def integrate(speeds: np.ndarray, *, start: tuple[float, float]) -> Poses:
    """Return the poses that speeds `(F, 3)` lead through; the first speed acts after pose 0."""
    height, heading = start
    yaw = heading + np.concatenate(([0.0], np.cumsum(speeds[:-1, 2]) / FPS))
    ahead = np.stack((np.sin(yaw), np.cos(yaw)), axis=1)  # x, z
    aside = np.stack((np.cos(yaw), -np.sin(yaw)), axis=1)
    # Turn first, then walk the new way, as the action language does.
    steps = (speeds[:-1, :1] * ahead[1:] + speeds[:-1, 1:2] * aside[1:]) / FPS
    poses = np.tile(np.eye(4), (len(speeds), 1, 1))
    poses[:, 0, 0] = poses[:, 2, 2] = np.cos(yaw)
    poses[:, 0, 2], poses[:, 2, 0] = np.sin(yaw), -np.sin(yaw)
    poses[1:, [[0], [2]], 3] = np.cumsum(steps, axis=0)[:, :, None]
    poses[:, 1, 3] = -height
    return poses


def to_units(poses: Poses) -> np.ndarray:
    """Return the camera file of a path: relative to frame 0, in the action language's units."""
    relative = np.linalg.inv(poses[0]) @ poses
    relative[:, :3, 3] /= METRES_PER_UNIT
    return relative.astype(np.float32)


def from_units(camera: np.ndarray, *, start: tuple[float, float]) -> Poses:
    """Return the path in metres of a camera file that begins at eye height and heading `start`."""
    first = integrate(np.zeros((1, 3)), start=start)[0]
    relative = np.linalg.inv(camera[0].astype(np.float64)) @ camera.astype(np.float64)
    relative[:, :3, 3] *= METRES_PER_UNIT
    return np.asarray(first @ relative)
