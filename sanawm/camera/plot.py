"""Draw a trajectory: a picture of its top and side view, or a top view in text.

Everything is shown from the first frame's camera: up in the top view is where it looked.
matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sanawm.errors import OutputError

from .framing import ImageSize
from .geometry import Float64, relative_poses
from .motion import centred_size, summarise_motion
from .trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Cameras drawn along the path, and their size as a share of the picture.
FRUSTA, FRUSTUM_SHARE = 9, 0.09
#: Half width and half height of the view at distance 1 when the lens is not known.
DEFAULT_VIEW = (0.6, 0.34)
START_COLOUR, END_COLOUR, COLOURS = "#1a9850", "#d73027", "viridis"
#: Signs of the text plot for the eight directions a camera looks, clockwise from forward.
ARROWS = "^/>\\v/<\\"


def plot_trajectory(
    trajectory: Trajectory, path: Path, *, fps: float = 16.0, title: str | None = None
) -> Path:
    """Draw top and side view of a trajectory into a PNG file and return its path.

    Axes are equal and in scene units; the start is marked, the colour runs with time and small
    pyramids show where the camera looks. Raises `OutputError` when the file cannot be written.
    """
    import warnings

    from matplotlib.figure import Figure

    relative = relative_poses(trajectory.poses).astype(np.float64)
    corners = _frusta(trajectory, relative)
    summary = summarise_motion(trajectory, fps=fps)
    figure = Figure(figsize=(12.8, 6.6), dpi=100, layout="constrained")
    top, side = figure.subplots(1, 2)
    right, down, forward = relative[:, :3, 3].T
    _draw_view(top, right, forward, corners[..., 0], corners[..., 2])
    _label(top, "top view: seen from above", "right (scene units)", "forward (scene units)")
    marks = _draw_view(side, forward, -down, corners[..., 2], -corners[..., 1])
    _label(side, "side view: seen from the right", "forward (scene units)", "up (scene units)")
    bar = figure.colorbar(marks, ax=[top, side], shrink=0.8, pad=0.01)
    bar.set_label(f"frame ({fps:g} a second)")
    words = "   ".join(" ".join(line.split()) for line in summary.lines()[:3])
    head = textwrap.fill(title or trajectory.source, 150)
    figure.suptitle(f"{head}\n{words}", fontsize=10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters of the title that the font does not have
            figure.savefig(path, format="png")
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}",
            fix="check the folder and the free space",
        ) from error
    return path


def _frusta(trajectory: Trajectory, relative: Float64) -> Float64:
    """Return eye and four picture corners of the drawn cameras, `(n, 5, 3)` in the first frame."""
    frames = np.unique(np.linspace(0, len(relative) - 1, FRUSTA).round().astype(int))
    half_x, half_y = DEFAULT_VIEW
    if trajectory.intrinsics is not None:
        size: ImageSize = trajectory.source_size or centred_size(trajectory)
        fx, fy = trajectory.intrinsics[0, :2].astype(np.float64)
        half_x, half_y = size.width / (2 * fx), size.height / (2 * fy)
    elif trajectory.fov_x_deg is not None:
        half_x = float(np.tan(np.radians(trajectory.fov_x_deg) / 2))
        half_y = half_x * 9 / 16
    spread = float(np.ptp(relative[:, :3, 3], axis=0).max())
    depth = FRUSTUM_SHARE * spread if spread > 1e-9 else 1.0
    local = np.array([[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]], dtype=np.float64)
    local *= depth * np.array([half_x, half_y, 1.0])
    return local @ relative[frames, :3, :3].transpose(0, 2, 1) + relative[frames, None, :3, 3]


def _draw_view(axes: Axes, x: Float64, y: Float64, corners_x: Float64, corners_y: Float64) -> Any:
    """Draw one view: path, cameras, start and end; return the coloured points for the scale."""
    from matplotlib.collections import LineCollection

    edges = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]])
    points = np.stack([corners_x, corners_y], axis=-1)  # (n, 5, 2)
    lines = LineCollection(list(points[:, edges].reshape(-1, 2, 2)), cmap=COLOURS, linewidths=0.9)
    lines.set_array(np.repeat(np.linspace(0, len(x) - 1, len(points)), len(edges)))
    axes.add_collection(lines)
    axes.plot(x, y, color="0.75", linewidth=1.0, zorder=1)
    marks = axes.scatter(x, y, c=np.arange(len(x)), cmap=COLOURS, s=9, zorder=3)
    axes.plot(x[0], y[0], "o", ms=10, color=START_COLOUR, zorder=4, label="start (frame 0)")
    end = f"end (frame {len(x) - 1})"
    axes.plot(x[-1], y[-1], "s", ms=13, mfc="none", mec=END_COLOUR, mew=2, zorder=4, label=end)
    _draw_arrows(axes, x, y)
    axes.legend(loc="best", fontsize=8)
    axes.autoscale_view()
    return marks


def _draw_arrows(axes: Axes, x: Float64, y: Float64) -> None:
    """Put arrow heads on the path at even distances, so that its direction is seen."""
    lengths = np.concatenate([[0.0], np.hypot(np.diff(x), np.diff(y)).cumsum()])
    if lengths[-1] < 1e-9:
        return
    for share in (0.25, 0.5, 0.75):
        frame = int(np.searchsorted(lengths, share * lengths[-1]))
        axes.annotate(
            "",
            xy=(x[frame], y[frame]),
            xytext=(x[frame - 1], y[frame - 1]),
            arrowprops={"arrowstyle": "-|>", "color": "black", "mutation_scale": 16},
            zorder=5,
        )


def _label(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def plot_text(trajectory: Trajectory, *, width: int = 64, height: int = 20) -> str:
    """Return a top view of a trajectory in plain ASCII, at most `width` by `height` characters.

    Each sign shows where the camera looks there: `^` is the direction of the first frame. A
    character is about twice as high as wide, which the scale takes into account.
    """
    relative = relative_poses(trajectory.poses).astype(np.float64)
    x, z = relative[:, 0, 3], relative[:, 2, 3]
    wide, tall = float(np.ptp(x)), float(np.ptp(z))
    column_unit = max(wide / max(width - 1, 1), tall / (2 * max(height - 1, 1)), 1e-9)
    columns = np.round((x - x.min()) / column_unit).astype(int)
    rows = np.round((z.max() - z) / (2 * column_unit)).astype(int)
    canvas = [[" "] * (columns.max() + 1) for _ in range(rows.max() + 1)]
    heading = np.arctan2(relative[:, 0, 2], relative[:, 2, 2])
    signs = np.round(heading / (np.pi / 4)).astype(int) % 8
    for row, column, sign in zip(rows, columns, signs, strict=True):
        canvas[row][column] = ARROWS[sign]
    canvas[rows[-1]][columns[-1]] = "E"
    canvas[rows[0]][columns[0]] = "S"
    lines = ["".join(line).rstrip() for line in canvas]
    moved = wide + tall > 1e-9
    scale = f"10 columns = {column_unit * 10:.3g} scene units" if moved else "it does not move"
    lines.append(f"top view: S start, E end, signs show where the camera looks; {scale}")
    return "\n".join(lines)
