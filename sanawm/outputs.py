"""Which files a run writes, checked before any work. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .config import Resolved
from .errors import OutputError, UsageError
from .io.files import check_output, check_stem

#: Settings keys of single-file outputs beside the video, with their accepted endings.
SIDE_FILES = {
    "save_latents": (".safetensors",),
    "save_stage1": (".safetensors",),
    "save_prompt_embeds": (".safetensors",),
    "save_noise": (".safetensors",),
    "save_camera": (".npy",),
    "preview": (".png",),
    "report": (".json",),
}


@dataclass(frozen=True)
class Outputs:
    """Paths of a run's outputs; None where it was not asked for."""

    video: Path | None
    overwrite: bool
    save_latents: Path | None = None
    save_stage1: Path | None = None
    save_prompt_embeds: Path | None = None
    save_noise: Path | None = None
    save_camera: Path | None = None
    preview: Path | None = None
    report: Path | None = None
    frames_dir: Path | None = None

    @property
    def main(self) -> Path:
        """The path that the command prints: the video, else the latents."""
        path = self.video or self.save_latents
        assert path is not None
        return path

    def files(self) -> list[Path]:
        """Return every single file that will be written."""
        names = ("video", *SIDE_FILES)
        return [p for p in (getattr(self, n) for n in names) if p is not None]


def plan_outputs(settings: Resolved, *, inputs: Iterable[Path]) -> Outputs:
    """Return the outputs that `settings` ask for.

    Raises `UsageError` (no output, two outputs with one name, an output that is an input) and
    `OutputError` (exists without overwrite, folder missing or read-only).
    """
    out = settings.settings.output
    video = _video_path(settings) if out.video else None
    sides = {k: Path(v) if (v := getattr(out, k)) else None for k in SIDE_FILES}
    if video is None and sides["save_latents"] is None:
        raise UsageError(
            "--no-video without --save-latents would write nothing",
            fix="add --save-latents FILE.safetensors",
        )
    if sides["save_stage1"] is not None and not settings.settings.input.image:
        raise UsageError("--save-stage1: stage 1 does not run without --image", fix="leave it out")
    if sides["report"] is None:
        sides["report"] = (video or sides["save_latents"] or Path()).with_suffix(".json")
    frames_dir = Path(out.frames_dir) if out.frames_dir else None
    if video is None:
        for key in ("preview", "frames_dir"):
            if getattr(out, key):
                flag = key.replace("_", "-")
                raise UsageError(f"--{flag} needs decoded frames, but --no-video was given")
    outputs = Outputs(video=video, overwrite=out.overwrite, frames_dir=frames_dir, **sides)
    _check(outputs, sides, list(inputs))
    return outputs


def _video_path(settings: Resolved) -> Path:
    out = settings.settings.output
    if out.output:
        if out.name:
            raise UsageError("--name goes with --output-dir, not with --output")
        return Path(out.output)
    if not out.output_dir:
        raise UsageError("no output: where should the video go?", fix="add -o FILE.mp4")
    if not out.name:
        raise UsageError("--output-dir needs --name", fix="add --name STEM")
    return Path(out.output_dir) / f"{check_stem(out.name)}.mp4"


def _check(outputs: Outputs, sides: dict[str, Path | None], inputs: list[Path]) -> None:
    seen: dict[Path, str] = {}
    endings = {"video": (".mp4",), **SIDE_FILES}
    for name, path in (("video", outputs.video), *sides.items()):
        if path is None:
            continue
        real = path.absolute()
        if real in seen:
            raise UsageError(f"{path} is named twice: as {seen[real]} and as {name}")
        seen[real] = name
        check_output(path, overwrite=outputs.overwrite, inputs=inputs, suffixes=endings[name])
    folder = outputs.frames_dir
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OutputError(f"--frames-dir {folder} is a file", fix="name a folder")
