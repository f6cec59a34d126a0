"""The flags of `sanawm camera`, as rows like those of `params`, and its other parameters."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from .params import OUTPUT, OVERWRITE, TARGET, Flag

PATH = "How the file is read"
CLIP = "Length and time"
ACTION = "Action string"
LENS = "Lens"

ACTION_STRING = Flag(
    "--action",
    "input.action",
    str,
    "Keys and frames, like w-24,dw-24: 24 frames of W, then 24 of D and W together. W/S move "
    "forward and back, I/K look up and down; A D J L depend on --action-scheme. Frame 0 is the "
    "first image, so N frames of keys give N + 1 poses.",
    ACTION,
)
ACTION_FLAGS = (
    Flag(
        "--action-scheme",
        "camera.action_scheme",
        str,
        "unified (default): A/D TURN left and right, J/L STRAFE, and motion fades out after a key "
        "is released. legacy (first release, diffusers 0.42.1): A/D STRAFE, J/L TURN, motion stops "
        "at once. Strings written before June 2026 need legacy.",
        ACTION,
    ),
    Flag(
        "--translation-speed",
        "camera.translation_speed",
        float,
        "Scene units a frame (unified 0.025, legacy 0.05).",
        ACTION,
    ),
    Flag(
        "--rotation-speed-deg",
        "camera.rotation_speed_deg",
        float,
        "Degrees a frame (unified 0.6, legacy 1.2).",
        ACTION,
    ),
    Flag(
        "--pitch-limit-deg",
        "camera.pitch_limit_deg",
        float,
        "Steepest look up or down (unified 60, legacy 85).",
        ACTION,
    ),
)
FILE_FLAGS = (
    Flag(
        "--camera-format",
        "camera.format",
        str,
        "Force the format instead of looking at the content: npy, npz, nerfstudio, camera-path, "
        "blender, colmap, re10k, tum, kitti or llff.",
        PATH,
    ),
    Flag(
        "--camera-convention",
        "camera.convention",
        str,
        "c2w (camera-to-world) or w2c (world-to-camera), against what the format says.",
        PATH,
    ),
    Flag(
        "--camera-axes",
        "camera.axes",
        str,
        "opencv (+Y down, looks along +Z) or opengl (+Y up, looks along -Z), against what the "
        "format says.",
        PATH,
    ),
    Flag(
        "--camera-sort",
        "camera.sort",
        str,
        "name: frames in the order of their image names (default); file: as in the file.",
        PATH,
    ),
    Flag(
        "--translation-scale",
        "camera.translation_scale",
        float,
        "Multiply positions, to bring a path of arbitrary scale to about a metre a unit.",
        PATH,
    ),
)
LENGTH = Flag(
    "--num-frames",
    "video.num_frames",
    int,
    "Poses of the result: the first N, or N with --hold-last or --resample.",
    CLIP,
)
CLIP_FLAGS = (
    LENGTH,
    Flag(
        "--hold-last/--no-hold-last",
        "camera.hold_last",
        bool,
        "Repeat the last pose when the path has fewer than --num-frames.",
        CLIP,
    ),
    Flag(
        "--resample",
        "camera.resample",
        str,
        "clip: stretch or squeeze the path to --num-frames; time: sample the file's timestamps "
        "at --fps.",
        CLIP,
    ),
    Flag(
        "--fps",
        "video.fps",
        str,
        "Frames per second: 16 (default), 23.976 or 24000/1001.",
        CLIP,
    ),
)
ALLOW_EXTREME_FOV = Flag(
    "--allow-extreme-fov/--no-allow-extreme-fov",
    "camera.allow_extreme_fov",
    bool,
    "Warn about a field of view outside 25 to 120 degrees instead of refusing it.",
    LENS,
)
LENS_FLAGS = (
    Flag(
        "--intrinsics",
        "input.intrinsics",
        str,
        "fx,fy,cx,cy in pixels of the image file, or a .npy or .npz of shape (4,), (3,3), (F,4) "
        "or (F,3,3). Replaces what the path's file holds.",
        LENS,
    ),
    Flag("--fov-x", "input.fov_x", float, "Field of view across the image, degrees.", LENS),
    Flag("--width", "video.width", int, "Width of the image file, pixels; with --height.", LENS),
    Flag("--height", "video.height", int, "Height of the image file, pixels.", LENS),
)

SHOW = (ACTION_STRING, *ACTION_FLAGS, *FILE_FLAGS, *CLIP_FLAGS, *LENS_FLAGS, OVERWRITE)
CHECK = SHOW
CONVERT = (TARGET, *FILE_FLAGS, *CLIP_FLAGS, *LENS_FLAGS, OVERWRITE)
MAKE = (ACTION_STRING, TARGET, *ACTION_FLAGS, *CLIP_FLAGS, *LENS_FLAGS, OVERWRITE)


def _parameter(name: str, type_: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[type_ | None, declared],
    )


def _option(names: str, type_: Any, help_: str) -> inspect.Parameter:
    """Return an option that sets no settings key."""
    long = names.split("/")[0].split(",")[0]
    option = typer.Option(*names.split(","), help=help_, rich_help_panel=OUTPUT, show_default=False)
    return _parameter(long.removeprefix("--").replace("-", "_"), type_, option)


FILE_HELP = (
    "Camera path: .npy (F,4,4), .npz, nerfstudio, Blender, COLMAP text (its folder or images.txt), "
    "RealEstate10K, TUM, KITTI or LLFF."
)
FILE = _parameter(
    "file",
    str,
    typer.Argument(metavar="FILE", show_default=False, help=f"{FILE_HELP} Or --action instead."),
)
PLOT = _option("--plot", str, "Draw top and side view into this .png.")
JSON = _option("--json", bool, "Print the result as JSON.")
TEXT_PLOT = _option(
    "--text-plot/--no-text-plot", bool, "Draw a top view in text (default: on a terminal)."
)
TO = _option(
    "--to",
    str,
    "Format: npy, nerfstudio, colmap, re10k, tum or kitti. Without it the name decides: .npy, "
    ".json (nerfstudio), no ending (COLMAP folder).",
)
