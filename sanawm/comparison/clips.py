"""The two kinds of clips that are compared, each read frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from sanawm.errors import InputError, MissingFile
from sanawm.io.image import PICTURE_ENDINGS
from sanawm.notes import Notes

from .rows import BlockPlan

Frame = NDArray[Any]
#: Endings of files that are read as latents.
LATENT_ENDINGS = (".safetensors", ".npy", ".npz", ".pt", ".pth")


@dataclass(frozen=True)
class Clip:
    """A clip: pictures `(H, W, 3)` uint8, or latent frames `(B * C, H, W)` of their own dtype.

    `size` is the shape of a frame, `fps` the rate if the file tells one, `plan` its blocks if the
    file tells them. `frames()` starts a pass over the clip.
    """

    path: Path
    kind: Literal["pictures", "latents"]
    count: int
    size: tuple[int, ...]
    dtype: str
    frames: Callable[[], Iterator[Frame]]
    fps: str | None = None
    plan: BlockPlan | None = None

    @property
    def line(self) -> str:
        """What the clip is, for people."""
        if self.kind == "latents":
            channels, height, width = self.size
            what = f"{self.count} latent frames of {width}x{height}, {channels} channels"
            return f"{self.path}: {what}, {self.dtype}"
        height, width, _ = self.size
        rate = f" at {self.fps} fps" if self.fps else ""
        return f"{self.path}: {self.count} frames of {width}x{height}{rate}"


def open_clip(path: Path, *, notes: Notes) -> Clip:
    """Open a video, a folder of pictures, a picture or a latents file.

    Raises `MissingFile`, `InputError` or `CheckpointError` for what cannot be read.
    """
    if path.is_dir():
        return _folder(path, notes)
    if path.suffix.lower() in LATENT_ENDINGS:
        return _latents(path)
    if path.suffix.lower() in PICTURE_ENDINGS:
        return _pictures(path, [path], notes)
    return _video(path, notes)


def _latents(path: Path) -> Clip:
    from sanawm.io.latents import LatentsSource

    source = LatentsSource.open(path)
    shape = source.shape

    def frames() -> Iterator[Frame]:
        for t in range(shape.frames):
            tensor = source.frames(t, t + 1)[:, :, 0].flatten(0, 1)
            # float32 holds bfloat16 and float16 exactly; NumPy has no bfloat16
            exact = tensor if source.dtype in ("float64", "float32") else tensor.float()
            yield exact.numpy()

    return Clip(
        path,
        "latents",
        shape.frames,
        (shape.batch * shape.channels, shape.height, shape.width),
        source.dtype,
        frames,
        plan=BlockPlan.parse(source.metadata.get("blocks")),
    )


def _video(path: Path, notes: Notes) -> Clip:
    from sanawm.inspection.media import read_recipe
    from sanawm.io.reader import VideoReader

    reader = VideoReader(path, notes=notes)
    recipe = read_recipe(reader.metadata) or {}
    return Clip(
        path,
        "pictures",
        reader.frame_count,
        (reader.height, reader.width, 3),
        "uint8",
        reader.frames,
        fps=str(reader.fps),
        plan=BlockPlan.parse(recipe.get("blocks")),
    )


def _folder(folder: Path, notes: Notes) -> Clip:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURE_ENDINGS)
    if not files:
        raise MissingFile(f"{folder}: no pictures in this folder", fix="name a video or its frames")
    return _pictures(folder, files, notes)


def _pictures(path: Path, files: list[Path], notes: Notes) -> Clip:
    from sanawm.inspection.media import frames_of_folder
    from sanawm.io.image import read_image

    size = read_image(files[0], notes=notes).shape

    def frames() -> Iterator[Frame]:
        return frames_of_folder(files, notes=notes)

    return Clip(path, "pictures", len(files), size, "uint8", frames)


def check_pair(a: Clip, b: Clip) -> None:
    """Raise `InputError` unless the frames of both clips have the same kind and size."""
    if a.kind != b.kind:
        raise InputError(
            f"{a.path} holds {a.kind}, {b.path} holds {b.kind}: they cannot be compared",
            fix="decode the latents first (sanawm decode)",
        )
    if a.size != b.size:
        raise InputError(
            f"{a.path} has frames of {_size(a)}, {b.path} of {_size(b)}",
            fix="compare clips of one size",
        )


def _size(clip: Clip) -> str:
    if clip.kind == "pictures":
        return f"{clip.size[1]}x{clip.size[0]}"
    return f"{clip.size[2]}x{clip.size[1]} with {clip.size[0]} channels"
