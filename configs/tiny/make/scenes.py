"""Procedural scenes: a camera moves over a plain with boxes, towers and balls.

An analytic ray caster in numpy: 64 x 96 pixels, 2 x 2 rays a pixel, 16 frames a second. Axes are
OpenCV's, in the world too: x right, y down (the ground is y = 0), z forward. Lengths here are
metres; camera files are in the units of the action language (`METRES_PER_UNIT`), so that its
default speed is a walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
Poses = NDArray[np.float64]  # (F, 4, 4) camera-to-world

HEIGHT, WIDTH, FPS = 64, 96, 16
SAMPLES = 2  # rays a pixel, per axis
FOCAL = 0.9 * WIDTH / 2  # pixels
INTRINSICS = (FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2)
#: The action language walks 0.025 units a frame, 0.4 a second; people walk 1.4 metres a second.
METRES_PER_UNIT = 3.5
FOG = 0.09  # 1 / metres
FAR = 24.0  # metres; fog hides everything beyond
NEAR = 0.05

COLOURS = {
    "red": (0.92, 0.10, 0.10),
    "blue": (0.10, 0.25, 0.92),
    "green": (0.08, 0.68, 0.20),
    "yellow": (0.96, 0.86, 0.10),
    "white": (0.95, 0.95, 0.95),
}
GROUNDS = {"grass": (0.40, 0.55, 0.30), "sand": (0.78, 0.68, 0.46), "stone": (0.50, 0.50, 0.52)}
#: At the horizon and overhead.
SKIES = {
    "blue": ((0.66, 0.82, 0.96), (0.25, 0.48, 0.88)),
    "orange": ((0.97, 0.70, 0.42), (0.62, 0.45, 0.60)),
    "grey": ((0.78, 0.80, 0.83), (0.60, 0.63, 0.68)),
}
SHAPES = ("cubes", "towers", "spheres")


@dataclass(frozen=True, eq=False)
class Scene:
    """A world and its words. Arrays hold one row an object; `half` is half its size on each axis.

    A ball is an object whose `round` is set; its radius is `half[:, 0]`.
    """

    colours: tuple[str, str]
    shape: str
    ground: str
    sky: str
    centre: Float  # (O, 3)
    half: Float  # (O, 3)
    paint: Float  # (O, 3)
    round: NDArray[np.bool_]  # (O,)
    sun: Float  # (3,) unit vector towards the sun
    tile: float
    phase: Float  # (4,)

    @property
    def caption(self) -> str:
        """Say what is in the picture."""
        one, two = self.colours
        return f"{one} and {two} {self.shape} on {self.ground} ground under a {self.sky} sky"


class _Boxes(NamedTuple):
    """Screen rectangles in rays, `(F, O)` each; empty where `bottom <= top`."""

    top: NDArray[np.int64]
    bottom: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]


def make_scene(rng: np.random.Generator, poses: Poses) -> Scene:
    """Return a world around the camera path `poses` (metres), with the path left free."""
    one, two = rng.choice(list(COLOURS), 2, replace=False)
    shape = str(rng.choice(SHAPES))
    ground, sky = str(rng.choice(list(GROUNDS))), str(rng.choice(list(SKIES)))
    path = poses[:, [0, 2], 3]
    low, high = path.min(0) - 14, path.max(0) + 14
    wanted = max(12, int(np.prod(high - low) / 48))
    centres: list[tuple[float, float, float]] = []
    halves: list[tuple[float, float, float]] = []
    paints: list[NDArray[np.float64]] = []
    balls: list[bool] = []
    taken = np.empty((0, 3))  # x, z, reach
    for _ in range(wanted * 8):
        if len(centres) == wanted:
            break
        kind = shape if rng.random() > 0.15 else str(rng.choice(SHAPES))
        half, reach = _size(rng, kind)
        x, z = rng.uniform(low, high)
        if np.hypot(*(path - (x, z)).T).min() < reach + 1.2:
            continue
        if (
            len(taken)
            and (np.hypot(taken[:, 0] - x, taken[:, 1] - z) < taken[:, 2] + reach + 1.0).any()
        ):
            continue
        taken = np.vstack((taken, (x, z, reach)))
        colour = np.array(COLOURS[str(rng.choice((one, two)))])
        centres.append((x, -half[1], z))
        halves.append(half)
        paints.append(np.minimum(colour * rng.uniform(0.92, 1.05), 1.0))
        balls.append(kind == "spheres")
    azimuth, height = rng.uniform(0, 2 * np.pi), rng.uniform(np.radians(35), np.radians(60))
    sun = (np.cos(height) * np.cos(azimuth), -np.sin(height), np.cos(height) * np.sin(azimuth))
    return Scene(
        colours=(str(one), str(two)),
        shape=shape,
        ground=ground,
        sky=sky,
        centre=np.array(centres, np.float32).reshape(-1, 3),
        half=np.array(halves, np.float32).reshape(-1, 3),
        paint=np.array(paints, np.float32).reshape(-1, 3),
        round=np.array(balls, bool),
        sun=np.array(sun, np.float32),
        tile=float(rng.uniform(0.35, 0.7)),
        phase=rng.uniform(0, 2 * np.pi, 4).astype(np.float32),
    )


def _size(rng: np.random.Generator, kind: str) -> tuple[tuple[float, float, float], float]:
    """Return half sizes and the radius on the ground of an object."""
    if kind == "spheres":
        r = rng.uniform(0.8, 1.5)
        return (r, r, r), r
    if kind == "towers":
        w = rng.uniform(0.45, 0.8)
        return (w, rng.uniform(1.25, 2.5), w), w * 1.42
    w, d = rng.uniform(0.7, 1.5, 2)
    return (w, rng.uniform(0.6, 1.5), d), float(np.hypot(w, d))


def render(scene: Scene, poses: Poses) -> NDArray[np.uint8]:
    """Return the frames `(F, 64, 96, 3)` that a camera at `poses` (metres, no roll) sees."""
    rays = _camera_rays()
    flat = rays.reshape(3, -1)
    solids = _rectangles(_corners(scene), poses)
    shadows = _rectangles(_shadow_corners(scene), poses)
    distance = np.linalg.norm(poses[:, None, :3, 3] - scene.centre[None], axis=-1)
    frames = np.empty((len(poses), HEIGHT, WIDTH, 3), np.uint8)
    for f, pose in enumerate(poses.astype(np.float32)):
        eye = pose[:3, 3]
        d = (pose[:3, :3] @ flat).reshape(rays.shape)  # (3, h, w)
        order = np.argsort(distance[f])
        order = order[distance[f, order] < FAR]
        image, depth = _ground_and_sky(scene, eye, d)
        _cast_shadows(scene, eye, d, image, depth, [(o, _cut(shadows, f, o)) for o in order])
        for o in order:
            cut = _cut(solids, f, o)
            if cut is not None:
                _draw(
                    scene, int(o), eye, d[:, cut[0], cut[1]], image[:, cut[0], cut[1]], depth[cut]
                )
        frames[f] = _finish(scene, image, depth)
    return frames


def _camera_rays() -> Float:
    """Return unit directions `(3, 128, 192)` in the camera's axes."""
    y, x = np.mgrid[: HEIGHT * SAMPLES, : WIDTH * SAMPLES]
    fx, fy, cx, cy = INTRINSICS
    d = np.stack(
        (((x + 0.5) / SAMPLES - cx) / fx, ((y + 0.5) / SAMPLES - cy) / fy, np.ones_like(x, float))
    )
    return (d / np.linalg.norm(d, axis=0)).astype(np.float32)


def _corners(scene: Scene) -> NDArray[np.float64]:
    signs = np.array([(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
    return scene.centre[:, None] + scene.half[:, None] * signs  # (O, 8, 3)


def _shadow_corners(scene: Scene) -> NDArray[np.float64]:
    corners = _corners(scene).astype(np.float64)
    up = -corners[..., 1:2]  # height above the ground
    moved = corners - scene.sun * (up / -scene.sun[1])
    moved[..., 1] = 0
    return moved


def _rectangles(points: NDArray[np.float64], poses: Poses) -> _Boxes:
    """Return what the bodies with corners `points` `(O, 8, 3)` cover on the screen, at most."""
    if not len(points):
        none = np.zeros((len(poses), 0), np.int64)
        return _Boxes(none, none, none, none)
    seen = points[None] - poses[:, None, None, :3, 3]
    seen = np.einsum("fji,fopj->fopi", poses[:, :3, :3], seen)  # into the camera's axes
    z = seen[..., 2]
    fx, fy, cx, cy = INTRINSICS
    u = SAMPLES * (fx * seen[..., 0] / np.maximum(z, NEAR) + cx)
    v = SAMPLES * (fy * seen[..., 1] / np.maximum(z, NEAR) + cy)
    u, v = np.clip(u, -1e6, 1e6), np.clip(v, -1e6, 1e6)
    left, right = np.floor(u.min(-1)).astype(int), np.ceil(u.max(-1)).astype(int) + 1
    top, bottom = np.floor(v.min(-1)).astype(int), np.ceil(v.max(-1)).astype(int) + 1
    cut = (z < NEAR).any(-1)  # part of it is beside or behind the camera: look everywhere
    left[cut], top[cut] = 0, 0
    right[cut], bottom[cut] = WIDTH * SAMPLES, HEIGHT * SAMPLES
    left, right = np.maximum(left, 0), np.minimum(right, WIDTH * SAMPLES)
    top, bottom = np.maximum(top, 0), np.minimum(bottom, HEIGHT * SAMPLES)
    empty = (z < NEAR).all(-1) | (right <= left)
    bottom[empty] = top[empty]
    return _Boxes(top, bottom, left, right)


def _cut(boxes: _Boxes, f: int, o: int) -> tuple[slice, slice] | None:
    top, bottom = boxes.top[f, o], boxes.bottom[f, o]
    if bottom <= top:
        return None
    return slice(top, bottom), slice(boxes.left[f, o], boxes.right[f, o])


def _ground_and_sky(scene: Scene, eye: Float, d: Float) -> tuple[Float, Float]:
    """Return colour `(3, h, w)` and distance `(h, w)`; the sky is beyond every distance."""
    h = d.shape[1] // 2  # the camera stands level: the horizon is the middle row
    low, high = (np.array(c, np.float32)[:, None, None] for c in SKIES[scene.sky])
    share = np.clip(-d[1, :h], 0, 1) ** np.float32(0.7)
    image = np.empty_like(d)
    image[:, :h] = low + (high - low) * share
    depth = np.full(d.shape[1:], np.inf, np.float32)
    t = -eye[1] / np.maximum(d[1, h:], 1e-4)
    x, z = eye[0] + t * d[0, h:], eye[2] + t * d[2, h:]
    k, (a, b, c, e) = np.float32(2 * np.pi * scene.tile / 2), scene.phase
    fade = np.exp(np.float32(-0.09) * t)
    wave = np.sin(k * x + a) * np.sin(k * z + b)
    relief = 1 + fade * (np.float32(0.12) * np.clip(wave * 4, -1, 1))
    relief += (
        fade
        * np.float32(0.04)
        * np.sin(np.float32(0.23) * x + c)
        * np.sin(np.float32(0.31) * z + e)
    )
    lit = np.float32(0.55 + 0.45 * -scene.sun[1] / np.sin(np.radians(47)))
    image[:, h:] = np.array(GROUNDS[scene.ground], np.float32)[:, None, None] * (relief * lit)
    depth[h:] = t
    return image, depth


def _cast_shadows(
    scene: Scene,
    eye: Float,
    d: Float,
    image: Float,
    depth: Float,
    cuts: list[tuple[int, tuple[slice, slice] | None]],
) -> None:
    """Darken the ground where an object stands between it and the sun."""
    dark = np.zeros(depth.shape, bool)
    toward = scene.sun[:, None, None]
    for o, cut in cuts:
        if cut is None:
            continue
        t = depth[cut]
        hit = np.empty((3, *t.shape), np.float32)
        safe = np.where(np.isfinite(t), t, 1e4)
        hit[0], hit[1], hit[2] = eye[0] + safe * d[0][cut], 0.0, eye[2] + safe * d[2][cut]
        far, _ = _meet(scene, o, hit, toward)
        dark[cut] |= np.isfinite(far) & np.isfinite(t)
    image *= np.where(dark, np.float32(0.7), np.float32(1))


def _meet(scene: Scene, o: int, origin: Float, d: Float) -> tuple[Float, Float | None]:
    """Return where rays enter object `o` (infinite: never) and, for a box, by which axis."""
    offset = origin - scene.centre[o][:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        if scene.round[o]:
            b = _dot(offset, d)
            square = b * b - _dot(offset, offset) + scene.half[o, 0] ** 2
            t = -b - np.sqrt(square)  # NaN where the ray passes by
            return np.where(t > 0, t, np.float32(np.inf)), None
        half = scene.half[o][:, None, None]
        slow = np.where(np.abs(d) < 1e-6, np.float32(1e-6), d)
        middle, reach = -offset / slow, half / np.abs(slow)
        enter, leave = middle - reach, middle + reach
        t = np.maximum(np.maximum(enter[0], enter[1]), enter[2])
        out = np.minimum(np.minimum(leave[0], leave[1]), leave[2])
        return np.where((t < out) & (t > 0), t, np.float32(np.inf)), enter


def _dot(a: Float, b: Float) -> Float:
    product = a[0] * b[0]
    product += a[1] * b[1]
    product += a[2] * b[2]
    return product


def _draw(scene: Scene, o: int, eye: Float, d: Float, image: Float, depth: Float) -> None:
    """Paint object `o` over a part of the picture, in place."""
    t, enter = _meet(scene, o, eye[:, None, None], d)
    seen = t < depth
    if not seen.any():
        return
    rays, t = d[:, seen], t[seen]  # (3, n)
    if enter is None:
        normal = (eye[:, None] + t * rays - scene.centre[o][:, None]) / scene.half[o, 0]
    else:
        axis = enter[:, seen].argmax(0)
        normal = np.zeros_like(rays)
        columns = np.arange(len(axis))
        normal[axis, columns] = -np.sign(rays[axis, columns])
    light = 0.5 + 0.55 * np.maximum(scene.sun @ normal, 0)
    image[:, seen] = scene.paint[o][:, None] * light
    depth[seen] = t


def _finish(scene: Scene, image: Float, depth: Float) -> NDArray[np.uint8]:
    """Add fog, average the rays of each pixel and return bytes `(64, 96, 3)`."""
    horizon = np.array(SKIES[scene.sky][0], np.float32)[:, None, None]
    clear = np.where(np.isfinite(depth), np.exp(-((np.float32(FOG) * depth) ** 2)), 1)
    image = np.clip(horizon + (image - horizon) * clear, 0, 1)
    rows = image.reshape(3, HEIGHT, SAMPLES, -1)
    pairs = (rows[:, :, 0] + rows[:, :, 1]).reshape(3, HEIGHT, WIDTH, SAMPLES)
    mean = (pairs[..., 0] + pairs[..., 1]) / SAMPLES**2
    return np.rint(mean.transpose(1, 2, 0) * 255).astype(np.uint8)
