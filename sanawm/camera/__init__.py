"""Cameras: action strings, trajectory files, intrinsics, and what the model reads of them.

Poses are camera-to-world, OpenCV axes (+X right, +Y down, +Z forward), one a frame, float32.
Nothing here imports torch.
"""

from .actions import ActionWalk, parse_actions, roll_out_actions
from .checks import Check, check_trajectory
from .clip import fit_to_clip, plan_frames, poses_available
from .framing import Framing, ImageSize, frame_image
from .intrinsics import (
    describe_lens,
    fit_intrinsics,
    read_intrinsics,
    resolve_intrinsics,
)
from .live import LiveRays
from .load import load_trajectory
from .motion import MotionSummary, summarise_motion, warn_about_steps
from .plot import plot_text, plot_trajectory
from .rays import CameraRays, camera_rays
from .trajectory import FRACTIONS, Trajectory
from .view_angle import field_of_view
from .write import save_trajectory

__all__ = [
    "FRACTIONS",
    "ActionWalk",
    "CameraRays",
    "Check",
    "Framing",
    "ImageSize",
    "LiveRays",
    "MotionSummary",
    "Trajectory",
    "camera_rays",
    "check_trajectory",
    "describe_lens",
    "field_of_view",
    "fit_intrinsics",
    "fit_to_clip",
    "frame_image",
    "load_trajectory",
    "parse_actions",
    "plan_frames",
    "plot_text",
    "plot_trajectory",
    "poses_available",
    "read_intrinsics",
    "resolve_intrinsics",
    "roll_out_actions",
    "save_trajectory",
    "summarise_motion",
    "warn_about_steps",
]
