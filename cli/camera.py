"""`sanawm camera`: look at a path, convert it, roll one out, check it, before a model is loaded."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanawm.config import Resolved
from sanawm.errors import OutputError, SanawmError, UsageError

from .camera_params import CHECK, CONVERT, MAKE, SHOW
from .camera_path import frame_rate, path_settings, picture_size, read_path
from .console import Console
from .params import Flag

if TYPE_CHECKING:
    from sanawm.camera import Check, Trajectory

#: Frames from one clip length of the released model to the next: 8 a latent, 3 latents a block.
STRIDE = 24
NO_LENS = (
    "lens       not known: refine takes 90 degrees across its picture unless a preset, --fov-x or "
    "--intrinsics says otherwise"
)
#: What to do about a check that failed.
FIXES = {
    "length": "--num-frames N with --resample clip or --hold-last makes a path longer",
    "step": "--translation-scale changes the unit; ignore this when the camera only turns",
    "jumps": "look at these frames: wrong order (--camera-sort), or poses of a lost track",
    "field of view": "check that fx fy are in pixels of the picture whose size is given",
    "timestamps": "sort or repair the file",
}
FOV_FIX = "give an angle above 25 and below 120 degrees; with a picture the one upright counts too"
COLMAP_FILES = ("images.txt", "cameras.txt", "points3D.txt")


def show(values: dict[str, Any], console: Console) -> None:
    """Print what a camera path does: a table, a text plot on a terminal, a picture when asked."""
    trajectory, settings, plot = _seen(values, SHOW, console)
    lines = [trajectory.source, *_table(trajectory, settings), *_plot_line(plot)]
    data = {**_facts(trajectory, settings), "plot": _name(plot), **_said(console)}
    if _wants_text_plot(values, console):
        data["text_plot"] = _text_plot(trajectory)
        lines += ["", data["text_plot"]]
    _print("\n".join(lines), data, values, console)


def check(values: dict[str, Any], console: Console) -> None:
    """Print the checks of a camera path; raise `SanawmError` (exit 1) when one of them fails."""
    from sanawm.camera import check_trajectory

    trajectory, settings, plot = _seen(values, CHECK, console)
    checks = check_trajectory(trajectory, stride=STRIDE)
    failed = [c.name for c in checks if not c.passed]
    data = {
        "schema": 1,
        "status": "failed" if failed else "passed",
        "source": trajectory.source,
        "frames": len(trajectory),
        "checks": [c._asdict() for c in checks],
        "plot": _name(plot),
        **_said(console),
    }
    lines = [trajectory.source, *_check_lines(checks, settings), *_plot_line(plot)]
    _print("\n".join(lines), data, values, console)
    if failed:
        count = f"{len(failed)} of {len(checks)} checks failed"
        raise SanawmError(f"{trajectory.source}: {count}: {', '.join(failed)}")


def convert(values: dict[str, Any], console: Console) -> None:
    """Read a camera path and write it in another format."""
    _write(values, CONVERT, console)


def make(values: dict[str, Any], console: Console) -> None:
    """Roll an action string out and write its poses."""
    _write(values, MAKE, console)


def _seen(
    values: dict[str, Any], flags: Iterable[Flag], console: Console
) -> tuple[Trajectory, Resolved, Path | None]:
    """Return the path that was asked for, the settings, and the picture that was drawn of it."""
    from sanawm.camera import plot_trajectory
    from sanawm.io.files import atomic_write, check_output

    settings = path_settings(values, flags)
    if values.get("plot") == "":
        raise UsageError("--plot is empty, expected .png", fix="name a file, say path.png")
    plot = Path(values["plot"]) if values.get("plot") is not None else None
    if plot is not None:
        overwrite = settings.settings.output.overwrite
        check_output(plot, overwrite=overwrite, inputs=_inputs(settings), suffixes=(".png",))
    trajectory = read_path(settings, console.notes)
    if plot is not None:
        with atomic_write(plot) as part:
            plot_trajectory(trajectory, part, fps=frame_rate(settings))
    return trajectory, settings, plot


def _write(values: dict[str, Any], flags: Iterable[Flag], console: Console) -> None:
    """Write the path that was asked for and print where it is."""
    from sanawm.camera import save_trajectory, summarise_motion

    settings = path_settings(values, flags)
    output = settings.settings.output
    if output.output is None:
        raise UsageError("no output was named", fix="add -o OUT, say -o poses.npy")
    target, to = Path(output.output), values.get("to")
    kind = to or _kind_of_name(target)
    _check_target(target, kind, settings, to=to)
    trajectory, fps = read_path(settings, console.notes), frame_rate(settings)
    _refuse_bare_angle(trajectory, kind)
    written = save_trajectory(
        trajectory,
        target,
        to=to,
        size=picture_size(settings),
        fps=fps,
        overwrite=output.overwrite,
        notes=console.notes,
    )
    for line in [*summarise_motion(trajectory, fps=fps).lines()[:3], _clip_line(len(trajectory))]:
        console.notes.info(line)
    data = {**_facts(trajectory, settings), "output": str(written), "format": kind}
    console.result(str(written), {**data, **_said(console)})


def _kind_of_name(target: Path) -> str | None:
    """Return the format that a file name stands for, None when it stands for none."""
    if target.name == "images.txt" or not target.suffix:
        return "colmap"
    return {".npy": "npy", ".json": "nerfstudio"}.get(target.suffix.lower())


def _check_target(target: Path, kind: str | None, settings: Resolved, *, to: str | None) -> None:
    """Raise `OutputError` when the file, or a file of the COLMAP folder, cannot be written."""
    from sanawm.io.files import check_output

    files = [target]
    if kind == "colmap":
        folder = target.parent if target.name == "images.txt" else target
        if folder.exists() and not folder.is_dir():
            raise OutputError(
                f"output {folder} is a file, a COLMAP model is a folder", fix="name another folder"
            )
        if not to and target.name != "images.txt" and _is_of_others(folder):
            raise OutputError(
                f"output {folder} is a folder, expected the name of a file",
                fix=f"name a file in it, say -o {folder / 'poses.npy'}; for a COLMAP model in this "
                "folder add --to colmap",
            )
        files = [folder / name for name in COLMAP_FILES] if folder.is_dir() else [folder]
    for file in files:
        overwrite = settings.settings.output.overwrite
        check_output(file, overwrite=overwrite, inputs=_inputs(settings))


def _is_of_others(folder: Path) -> bool:
    """Tell whether a folder is there with other things in it than a COLMAP model."""
    if not folder.is_dir() or any((folder / name).exists() for name in COLMAP_FILES):
        return False
    return folder.name in ("", "..") or any(folder.iterdir())


def _inputs(settings: Resolved) -> list[Path]:
    """Return the files that are read, which no output may replace."""
    given = settings.settings.input
    named = [Path(name) for name in (given.camera, given.intrinsics) if name]
    inside = [
        folder / name
        for folder in named
        if folder.is_dir()
        for name in (*COLMAP_FILES, "transforms.json")
    ]
    return named + inside


def _refuse_bare_angle(trajectory: Trajectory, kind: str | None) -> None:
    """Raise `UsageError` when a lens known as an angle alone would have to be written in pixels."""
    from sanawm.camera.write import WITH_LENS

    if kind in WITH_LENS and trajectory.intrinsics is None and trajectory.fov_x_deg is not None:
        raise UsageError(
            f"{trajectory.source}: the lens is known as {trajectory.fov_x_deg:g} degrees across "
            f"the picture, and {kind} files hold it in pixels",
            fix="add --width and --height of the picture",
        )


def _table(trajectory: Trajectory, settings: Resolved) -> list[str]:
    """Return the lines that say what a path does."""
    from sanawm.camera import summarise_motion

    lines = summarise_motion(trajectory, fps=frame_rate(settings)).lines()
    if trajectory.intrinsics is None and trajectory.fov_x_deg is None:
        lines.append(NO_LENS)
    return [*lines, _clip_line(len(trajectory))]


def _clip_line(poses: int) -> str:
    """Return how many of the poses a clip of the released model takes."""
    from sanawm.shapes import snap_frames

    if poses <= STRIDE:
        return f"clip       too short: the released model makes {STRIDE}*k + 1 frames, 25 or more"
    frames = snap_frames(poses, STRIDE, poses)
    which = f"all {poses} poses" if frames == poses else f"the first {frames} of {poses} poses"
    return f"clip       {which}: the released model makes {STRIDE}*k + 1 frames"


def _facts(trajectory: Trajectory, settings: Resolved) -> dict[str, Any]:
    """Return what a path does for scripts: scene units, degrees, pixels."""
    from sanawm.camera import FRACTIONS, summarise_motion

    lens, size = trajectory.intrinsics, trajectory.source_size
    in_pixels = lens is not None and size != FRACTIONS
    return {
        "schema": 1,
        "status": "done",
        "source": trajectory.source,
        "format": trajectory.format,
        **summarise_motion(trajectory, fps=frame_rate(settings)).as_dict(),
        "intrinsics": [float(v) for v in lens[0]] if in_pixels and lens is not None else None,
        "picture": list(size) if in_pixels and size is not None else None,
    }


def _check_lines(checks: Iterable[Check], settings: Resolved) -> list[str]:
    given_as_angle = settings.settings.input.fov_x is not None
    fixes = FIXES | ({"field of view": FOV_FIX} if given_as_angle else {})
    lines = []
    for one in checks:
        lines.append(f"{'ok  ' if one.passed else 'FAIL'}  {one.name:<13}  {one.found}")
        if not one.passed and one.name in fixes:
            lines.append(f"{'':21}fix: {fixes[one.name]}")
    return lines


def _wants_text_plot(values: dict[str, Any], console: Console) -> bool:
    """Draw in text when asked, and unasked on a terminal that gets no JSON."""
    asked = values.get("text_plot")
    if asked is None:
        return sys.stdout.isatty() and not (values.get("json") or console.json)
    return bool(asked)


def _text_plot(trajectory: Trajectory) -> str:
    from sanawm.camera import plot_text

    columns = shutil.get_terminal_size(fallback=(80, 24)).columns
    return plot_text(trajectory, width=max(8, min(64, columns - 1)))


def _plot_line(plot: Path | None) -> list[str]:
    return [] if plot is None else [f"picture    {plot}"]


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _said(console: Console) -> dict[str, list[str]]:
    """Return the lines that the user was told about changes and doubts."""
    return {"changes": console.notes.changes, "warnings": console.notes.warnings}


def _print(text: str, data: dict[str, Any], values: dict[str, Any], console: Console) -> None:
    """Print a table, or the JSON that `--json` asks for."""
    console.result(json.dumps(data, indent=2) if values.get("json") else text, data)
