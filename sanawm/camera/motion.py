"""A trajectory in plain words: how far, which way, how fast.

Directions are those of the first frame's camera: forward is where it looks, right and down its own.
A path read with the wrong convention shows here: it goes backwards, or turns the other way.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from sanawm.notes import Notes

from .framing import ImageSize
from .geometry import Float64, relative_poses
from .trajectory import Trajectory
from .view_angle import field_of_view

#: Median step, scene units a frame, outside which the scale is probably wrong. The model was
#: trained on steps of a few hundredths.
STEP_RANGE = (1e-5, 1.0)
#: A step this many times the median, or a turn of this many degrees, is a jump and no motion.
JUMP_FACTOR, JUMP_DEG = 10.0, 30.0


@dataclass(frozen=True)
class MotionSummary:
    """What a camera does over a trajectory. Lengths are scene units, angles degrees.

    `forward`, `right`, `down` lead from the first to the last position; `yaw` (right) and `pitch`
    (up) from the first to the last direction, full turns counted. `step_*` are lengths a frame,
    `turn_max` the largest rotation between two frames, `fov_*` those of the first frame.
    """

    frames: int
    fps: float
    path_length: float
    forward: float
    right: float
    down: float
    yaw: float
    pitch: float
    step_median: float
    step_max: float
    turn_max: float
    fov_x: float | None
    fov_y: float | None

    def as_dict(self) -> dict[str, int | float | None]:
        """Return the fields by name, for reports."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the summary as lines for people; parts that are zero are left out."""
        seconds = (self.frames - 1) / self.fps
        text = [
            f"frames     {self.frames} ({seconds:.6g} s at {self.fps:g} a second)",
            f"net move   {self._move()}",
            f"net turn   {self._turn()}",
        ]
        if self.path_length > 0:
            text.append(
                f"path       {_length(self.path_length)} scene units long; "
                f"{_length(self.step_median)} a frame (median), at most {_length(self.step_max)}"
            )
        if self.turn_max >= 0.005:
            text.append(f"turning    at most {self.turn_max:.2f} degrees a frame")
        if self.fov_x is not None and self.fov_y is not None:
            text.append(f"lens       field of view {self.fov_x:.1f} x {self.fov_y:.1f} degrees")
        elif self.fov_x is not None:
            text.append(f"lens       field of view {self.fov_x:.1f} degrees across")
        return text

    def _move(self) -> str:
        parts = [
            f"{plus if value > 0 else minus} {_length(abs(value))}"
            for value, plus, minus in (
                (self.forward, "forward", "backwards"),
                (self.right, "right", "left"),
                (self.down, "down", "up"),
            )
            if abs(value) > max(1e-3 * self.path_length, 1e-9)
        ]
        return f"{', '.join(parts)} (scene units)" if parts else "none"

    def _turn(self) -> str:
        parts = [
            f"{plus if value > 0 else minus} {abs(value):.1f} degrees ({name} {value:+.1f})"
            for value, plus, minus, name in (
                (self.yaw, "right", "left", "yaw"),
                (self.pitch, "up", "down", "pitch"),
            )
            if abs(value) >= 0.05
        ]
        return ", ".join(parts) or "none"


def summarise_motion(trajectory: Trajectory, *, fps: float = 16.0) -> MotionSummary:
    """Return the motion of a trajectory whose frames are shown at `fps` a second."""
    relative = relative_poses(trajectory.poses).astype(np.float64)
    steps, turns = frame_steps(trajectory)
    yaw, pitch = _directions(relative)
    right, down, forward = (float(value) for value in relative[-1, :3, 3])
    fov_x, fov_y = _fov(trajectory)
    return MotionSummary(
        frames=len(trajectory),
        fps=fps,
        path_length=float(steps.sum()),
        forward=forward,
        right=right,
        down=down,
        yaw=float(yaw[-1]),
        pitch=float(pitch[-1]),
        step_median=float(np.median(steps)) if len(steps) else 0.0,
        step_max=float(steps.max(initial=0.0)),
        turn_max=float(turns.max(initial=0.0)),
        fov_x=fov_x,
        fov_y=fov_y,
    )


def frame_steps(trajectory: Trajectory) -> tuple[Float64, Float64]:
    """Return from frame to frame the distance in scene units and the rotation in degrees, `(F-1,)`.

    The rotation comes from the difference of the two matrices, which keeps small angles exact.
    """
    poses = trajectory.poses.astype(np.float64)
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    chords = np.linalg.norm(np.diff(poses[:, :3, :3], axis=0), axis=(1, 2)) / np.sqrt(8.0)
    return steps, np.degrees(2.0 * np.arcsin(np.minimum(chords, 1.0)))


def find_jump(trajectory: Trajectory) -> tuple[int, str] | None:
    """Return the frame before the first jump and the jump in words, None when there is none.

    A jump is a step that stands out from the rest: a lost track, or frames in the wrong order.
    """
    steps, turns = frame_steps(trajectory)
    moving = steps[steps > 0]
    limit = JUMP_FACTOR * float(np.median(moving)) if len(moving) else np.inf
    jumps = np.flatnonzero((steps > limit) | (turns > JUMP_DEG))
    if not len(jumps):
        return None
    frame = int(jumps[0])
    return frame, (
        f"from frame {frame} to {frame + 1} the camera jumps {steps[frame]:.3g} scene units and "
        f"turns {turns[frame]:.1f} degrees"
    )


def warn_about_jumps(trajectory: Trajectory, *, notes: Notes) -> None:
    """Warn of the first jump in a file; an action string moves as it says, however it fades out."""
    jump = None if trajectory.format == "action" else find_jump(trajectory)
    if jump is not None:
        notes.warn(
            f"{trajectory.source}: {jump[1]}: poses of a lost track, or frames in the wrong order"
        )


def warn_about_steps(trajectory: Trajectory, *, notes: Notes) -> None:
    """Warn when the median step is too large, or for a file too small, to be what was meant."""
    steps, _ = frame_steps(trajectory)
    if not len(steps):
        return
    held = len(steps) - 1 - int(np.argmax(steps[::-1] > 0))  # frames held at the end do not count
    steps = steps[: held + 1]
    low, high = STEP_RANGE
    median = float(np.median(steps))
    if median > high:
        notes.warn(
            f"{trajectory.source}: the camera moves {median:.3g} scene units a frame, more than "
            f"{high:g} (usual: 0.025 to 0.05); --translation-scale changes the unit"
        )
    elif median < low and trajectory.format != "action":
        notes.warn(
            f"{trajectory.source}: the camera moves {median:.3g} scene units a frame, less than "
            f"{low:g}: it hardly leaves its place; --translation-scale changes the unit"
        )


def _directions(relative: Float64) -> tuple[Float64, Float64]:
    """Return yaw and pitch of each frame in degrees; yaw goes on counting past a half turn."""
    x, y, z = relative[:, :3, 2].T
    level = np.hypot(x, z)
    yaw = np.arctan2(x, z)
    for frame in np.flatnonzero(level < 1e-6):  # looking straight up or down: no yaw of its own
        yaw[frame] = yaw[frame - 1]
    return np.degrees(np.unwrap(yaw)), np.degrees(np.arctan2(-y, level))


def _fov(trajectory: Trajectory) -> tuple[float | None, float | None]:
    """Return the field of view of the first frame as far as it is known."""
    if trajectory.intrinsics is not None:
        size = trajectory.source_size or centred_size(trajectory)
        across, upright = field_of_view(trajectory.intrinsics[:1], size)[0]
        return float(across), float(upright)
    return trajectory.fov_x_deg, None


def centred_size(trajectory: Trajectory) -> ImageSize:
    """Return the picture size for which the principal point of frame 0 is its centre."""
    assert trajectory.intrinsics is not None
    width, height = 2.0 * trajectory.intrinsics[0, 2:]
    return ImageSize(max(1, round(float(width))), max(1, round(float(height))))


def _length(value: float) -> str:
    """Return a length in scene units with three decimals, or as a power when it is tiny."""
    return f"{value:.3f}" if value >= 0.0995 or value == 0 else f"{value:.3g}"
