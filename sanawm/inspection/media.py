"""Videos, pictures and folders of frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sanawm.errors import InputError
from sanawm.io.image import read_image
from sanawm.io.reader import VideoReader
from sanawm.io.remux import open_input, video_stream
from sanawm.notes import Notes

from .finding import Finding, Look, TensorRow, size_text
from .recipes import changed_settings, recipe_lines
from .statistics import statistics_of


def look_at_video(path: Path, look: Look, notes: Notes) -> Finding:
    """Describe a video; of one that sanawm made, the metadata are read back.

    Frames are counted by their packets; only the first is decoded unless `look.stats`. Raises
    `MissingFile` or `InputError`.
    """
    reader = VideoReader(path, notes=notes)
    with open_input(path) as container:
        stream = video_stream(container, path)
        codec = f"{stream.codec_context.name}, {stream.codec_context.pix_fmt}"
        container_name = container.format.name.split(",")[0]
    frames, fps = reader.frame_count, reader.fps
    seconds = frames / float(fps)
    rate = f"{float(fps):.6g} fps" + (" (uneven)" if reader.variable_rate else "")
    lines = [
        f"{reader.width}x{reader.height}, {frames} frames at {rate} = {seconds:.2f} s, {codec}, "
        f"{size_text(path.stat().st_size)}"
    ]
    data: dict[str, Any] = {
        "width": reader.width,
        "height": reader.height,
        "frames": frames,
        "fps": str(fps),
        "seconds": seconds,
        "codec": codec.split(",")[0],
        "bytes": path.stat().st_size,
        "metadata": None,
    }
    title = f"video ({container_name})"
    recipe = read_recipe(reader.metadata)
    if recipe is not None:
        title = f"video made by sanawm {recipe.get('version', '?')}"
        settings = recipe.get("settings")
        changed = changed_settings(settings if isinstance(settings, dict) else {})
        lines += recipe_lines(recipe, changed)
        data |= {"metadata": recipe, "changed_settings": changed}
    elif reader.metadata:
        data["metadata"] = reader.metadata
        lines += [f"{key} {value[:100]}" for key, value in sorted(reader.metadata.items())]
    data["unfinished"] = path.stem.endswith(".part")
    if data["unfinished"]:
        title += ", unfinished"
        lines.insert(0, "the run that writes it goes on, or was stopped before its end")
    found = Finding(path, "video", title, lines, data)
    if look.stats:
        found.tensors = [_pixels(frames, reader.height, reader.width, reader.frames())]
    return found


def read_recipe(tags: dict[str, str]) -> dict[str, Any] | None:
    """Return what sanawm wrote into a video's metadata, None when it is of another tool."""
    try:
        recipe = json.loads(tags["sanawm"])
    except (KeyError, ValueError, RecursionError):
        return None
    return recipe if isinstance(recipe, dict) else None


def look_at_image(path: Path, look: Look, notes: Notes) -> Finding:
    """Describe a picture as `--image` reads it. Raises `MissingFile` or `InputError`."""
    pixels = read_image(path, notes=notes)
    height, width = pixels.shape[:2]
    title = f"picture, {width}x{height}, {size_text(path.stat().st_size)}"
    data = {"width": width, "height": height, "bytes": path.stat().st_size}
    found = Finding(path, "image", title, [], data)
    if look.stats:
        found.tensors = [_pixels(1, height, width, iter([pixels]))]
    return found


def look_at_frames(folder: Path, files: list[Path], look: Look, notes: Notes) -> Finding:
    """Describe a folder of pictures of one size, as `--frames-dir` writes it."""
    first = read_image(files[0], notes=notes)
    height, width = first.shape[:2]
    size = sum(f.stat().st_size for f in files)
    title = f"{len(files)} frames of {width}x{height} as pictures, {size_text(size)}"
    data = {"frames": len(files), "width": width, "height": height, "bytes": size}
    found = Finding(folder, "frames", title, [], data)
    if look.stats:
        pixels = frames_of_folder(files, notes=notes)
        found.tensors = [_pixels(len(files), height, width, pixels)]
    return found


def frames_of_folder(files: list[Path], *, notes: Notes) -> Iterator[np.ndarray]:
    """Yield the pictures of `files`, uint8 `(H, W, 3)`; all must have the size of the first."""
    size: tuple[int, ...] | None = None
    for file in files:
        pixels = read_image(file, notes=notes)
        if size is not None and pixels.shape != size:
            raise InputError(
                f"{file}: {pixels.shape[1]}x{pixels.shape[0]}, the frames before it are "
                f"{size[1]}x{size[0]}"
            )
        size = pixels.shape
        yield pixels


def _pixels(frames: int, height: int, width: int, pixels: Iterator[np.ndarray]) -> TensorRow:
    shape = (frames, height, width, 3)
    return TensorRow("pixels", "U8", shape, int(np.prod(shape)), statistics_of(pixels))
