"""The flags of `sanawm refine`, in the order of its help."""

from __future__ import annotations

from .camera_params import ACTION_FLAGS, ACTION_STRING, ALLOW_EXTREME_FOV, LENS_FLAGS
from .params import (
    CAMERA_FLAGS,
    COMPILE,
    CUDA_GRAPH,
    DEVICE,
    FPS,
    LENGTH,
    PRECISION,
    PROMPT,
    REFINE_OUTPUT,
    REFINER,
    SCHEDULE,
    SIZE,
    SOURCE,
    STAGE1,
    STORE,
)

#: Of the lens flags, those that are not the size of the video.
LENS = tuple(flag for flag in LENS_FLAGS if flag.key.startswith("input."))

REFINE = (
    *PROMPT,
    *SOURCE,
    LENGTH,
    *SIZE,
    *CAMERA_FLAGS,
    ACTION_STRING,
    *ACTION_FLAGS,
    *LENS,
    ALLOW_EXTREME_FOV,
    FPS,
    *REFINER,
    *STAGE1,
    *PRECISION,
    *SCHEDULE,
    COMPILE,
    CUDA_GRAPH,
    *DEVICE,
    STORE,
    *REFINE_OUTPUT,
)
