"""Which files a run writes, checked before any work. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .config import Resolved
from .errors import OutputError, SanawmError, UsageError
from .io.begun import check_part
from .io.files import check_named, check_output, check_stem, part_path, refuse_inputs
from .io.run_state import looks_like_state, read_recipe
from .paths import real_path

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


#: How an MP4 is named.
ONE_WAY = "use -o FILE.mp4, or --output-dir DIR with --name STEM"
#: Outputs that grow as part files of their own.
GROWING = ("video", "save_latents", "save_stage1", "save_noise")


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
    #: A stopped run goes on: what it wrote beside the video is continued, or written anew.
    continued: bool = False

    @property
    def replace_sides(self) -> bool:
        """Whether files beside the video may exist already."""
        return self.overwrite or self.continued

    @property
    def main(self) -> Path:
        """The path that the command prints: the video, else the latents."""
        path = self.video or self.save_latents
        assert path is not None
        return path

    def files(self) -> list[Path]:
        """Return every single file that will be written."""
        return self._named(("video", *SIDE_FILES))

    def growing(self) -> list[Path]:
        """Return the files that grow as part files of their own."""
        return self._named(GROWING)

    def _named(self, names: Iterable[str]) -> list[Path]:
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
    for path in (video, sides["save_latents"]):
        if path is not None:
            check_named(path)
    if sides["report"] is None:
        sides["report"] = (video or sides["save_latents"] or Path()).with_suffix(".json")
    frames_dir = Path(out.frames_dir) if out.frames_dir else None
    if video is None:
        for key in ("preview", "frames_dir"):
            if getattr(out, key):
                flag = key.replace("_", "-")
                raise UsageError(
                    f"--{flag} needs decoded frames, but --no-video was given",
                    fix=f"leave out --no-video, or --{flag}",
                )
    outputs = Outputs(
        video=video,
        overwrite=out.overwrite,
        frames_dir=frames_dir,
        **sides,  # type: ignore[arg-type]  # paths by name; no name of another field is among them
    )
    if out.resume:
        # A run that was killed before its first state has left its part file all the same.
        begun = part_path(outputs.main).exists() or state_file(outputs, out.state) is not None
        # With a finished one `resume.saved_run` says that there is nothing to continue.
        outputs = replace(outputs, continued=begun or is_finished(outputs, out.state))
    given = [file for path in inputs for file in files_of(path)]
    _check(outputs, sides, given)
    _check_state(outputs, default_state(outputs, out.state), given)
    return outputs


def files_of(path: Path, *, deep: bool = False) -> list[Path]:
    """Return the files that an input stands for: itself, or those in the folder that it is."""
    if not path.is_dir():
        return [path]
    return [p for p in path.glob("**/*" if deep else "*") if p.is_file()]


def refuse_weights(outputs: Outputs, state: Path | None, folders: Iterable[Path]) -> None:
    """Raise `UsageError` when an output is a file of the models that the run reads."""
    weights = [file for folder in folders for file in files_of(folder, deep=True)]
    refuse_inputs([*outputs.files(), *([state] if state else [])], weights)


def state_file(outputs: Outputs, chosen: str | None) -> Path | None:
    """Return the run state of an earlier, unfinished run, if there is one.

    chosen: the setting `output.state`: a path, `none`, or None for `FILE.state` beside the output.
    """
    path = default_state(outputs, chosen)
    return path if path is not None and path.exists() else None


def is_finished(outputs: Outputs, chosen: str | None) -> bool:
    """Tell whether the main output is there and nothing of an unfinished run is.

    chosen: the setting `output.state`. With `overwrite` it does not count.
    """
    if outputs.overwrite or not outputs.main.exists():
        return False
    return not part_path(outputs.main).exists() and state_file(outputs, chosen) is None


def default_state(outputs: Outputs, chosen: str | None) -> Path | None:
    """Return where the run state lies, or None when the run keeps none."""
    if chosen == "none":
        return None
    return Path(chosen) if chosen else outputs.main.with_suffix(".state")


def _video_path(settings: Resolved) -> Path:
    out = settings.settings.output
    if out.output:
        if out.name:
            raise UsageError("--name goes with --output-dir, not with --output", fix=ONE_WAY)
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
            raise UsageError(
                f"{path} is named twice: as {seen[real]} and as {name}", fix="name another file"
            )
        seen[real] = name
        own = name in GROWING
        # A run that was killed while it closed has given some of its files their names already.
        renamed = own and outputs.continued and not part_path(path).exists()
        overwrite = outputs.overwrite or renamed if own else outputs.replace_sides
        overwrite = overwrite or (name == "report" and _is_of_unfinished_run(path))
        check_output(path, overwrite=overwrite, inputs=inputs, suffixes=endings[name])
        if own:
            check_part(path, overwrite=outputs.overwrite)
    if outputs.frames_dir is not None:
        overwrite = outputs.replace_sides
        check_frames_dir(outputs.frames_dir, seen, overwrite=overwrite, inputs=inputs)


def _check_state(outputs: Outputs, path: Path | None, inputs: list[Path]) -> None:
    """Check that the run state replaces no other output, no input and no file of someone else."""
    if path is None:
        return
    for other in outputs.files():
        if path.absolute() in (other.absolute(), part_path(other).absolute()):
            raise UsageError(f"--state {path} is also an output of this run", fix="name another")
    check_output(path, overwrite=True, inputs=inputs)
    if not path.exists() or path.stat().st_size == 0:
        return
    if not looks_like_state(path):
        raise OutputError(
            f"{path} exists and is no run state of sanawm", fix="name another file with --state"
        )
    if outputs.continued or path == default_state(outputs, None):
        return
    try:
        owner = str(read_recipe(path).get("output") or outputs.main.absolute())
    except SanawmError:
        return  # a broken state serves nobody
    if Path(owner) != outputs.main.absolute():
        raise OutputError(
            f"{path} is the run state of another output ({owner})",
            fix="continue that run with --resume, delete the state, or name another with --state",
        )


def check_frames_dir(
    folder: Path, files: Mapping[Path, str], *, overwrite: bool, inputs: Iterable[Path] = ()
) -> None:
    """Check the folder of PNG frames without making it; `files` are the other outputs.

    None of the `inputs` may be a picture that would be replaced.
    """
    if folder.absolute() in files:
        raise UsageError(
            f"{folder} is named twice: as {files[folder.absolute()]} and as frames folder",
            fix="name another folder",
        )
    if not folder.parent.is_dir():
        raise OutputError(
            f"--frames-dir {folder}: the folder {folder.parent} does not exist",
            fix=f"mkdir -p {folder.parent}",
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"--frames-dir {folder} is a file", fix="name a folder")
    if not overwrite and any(folder.iterdir()):
        raise OutputError(
            f"--frames-dir {folder} is not empty", fix="add --overwrite, or choose another folder"
        )
    here = real_path(folder)
    for path in inputs:
        if real_path(path).parent == here and path.match("frame_*.png"):
            raise UsageError(
                f"--frames-dir {folder} holds an input of this run ({path})",
                fix="choose another folder",
            )


def _is_of_unfinished_run(report: Path) -> bool:
    """Tell whether a file is the report of a run that failed, which the next try may replace."""
    if not report.is_file():
        return False
    try:
        data = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    ours = isinstance(data, dict) and str(data.get("tool")).startswith("sanawm")
    return ours and data.get("status") in ("interrupted", "failed")
