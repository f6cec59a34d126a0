"""Draw `docs/cameras.png`: camera axes, signs of yaw and pitch, and a short path.

Run it as `python docs/make_cameras_png.py [OUT.png]`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Polygon

from sanawm.camera import roll_out_actions

X_COLOUR, Y_COLOUR, Z_COLOUR, TURN_COLOUR = "#c0392b", "#1e8449", "#2456a6", "#7d3c98"
ACTION = "w-24,dw-60"


def main() -> None:
    """Draw the picture beside this file, or where the first argument says."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("cameras.png")
    figure = Figure(figsize=(14.4, 5.0), dpi=100)
    draw_axes(figure.add_axes((0.0, 0.0, 0.30, 0.88), projection="3d"))
    draw_yaw(figure.add_axes((0.30, 0.03, 0.26, 0.85)))
    draw_pitch(figure.add_axes((0.565, 0.03, 0.22, 0.85)))
    draw_path(figure.add_axes((0.81, 0.11, 0.19, 0.75)))
    figure.savefig(target, metadata={"Software": None})
    print(target)


def draw_axes(axes: Any) -> None:
    """Draw the camera's own axes and its picture; scene axes are (x, z, -y) of matplotlib."""
    corners = np.array([[-0.8, -0.45], [0.8, -0.45], [0.8, 0.45], [-0.8, 0.45], [-0.8, -0.45]])
    axes.plot(corners[:, 0], np.full(5, 1.3), -corners[:, 1], color="0.35", lw=1.4)
    for x, y in corners[:4]:
        axes.plot([0, x], [0, 1.3], [0, -y], color="0.7", lw=0.9)
    arrows = (
        ((0.95, 0, 0), "+X right", X_COLOUR, (0.5, 0, -0.26)),
        ((0, 0, -0.95), "+Y down", Y_COLOUR, (0.07, 0, -0.95)),
        ((0, 2.6, 0), "+Z forward", Z_COLOUR, (-0.1, 2.6, 0.14)),
    )
    for (x, y, z), name, colour, place in arrows:
        axes.quiver(0, 0, 0, x, y, z, color=colour, lw=2.6, arrow_length_ratio=0.1)
        axes.text(*place, name, color=colour, fontsize=12, weight="bold")
    axes.text(-0.8, 1.3, 0.52, "pixel (0, 0)", fontsize=9, color="0.25", ha="center")
    axes.scatter([-0.8], [1.3], [0.45], color="0.25", s=18)
    axes.text(-0.06, 0, -0.14, "camera", fontsize=10, color="black", ha="right")
    axes.scatter([0], [0], [0], color="black", s=30)
    axes.set(xlim=(-0.9, 1.2), ylim=(0, 2.6), zlim=(-1.0, 0.9))
    axes.set_box_aspect((2.1, 2.6, 1.9), zoom=1.25)
    axes.view_init(elev=24, azim=-107)
    axes.set_axis_off()
    axes.set_title("axes of a camera (OpenCV)", fontsize=12)


def draw_yaw(axes: Any) -> None:
    """Draw a camera from above with the signs of yaw and of strafing."""
    _blank(axes, "from above: yaw", (-1.35, 1.35), (-0.75, 1.4))
    _view(axes, angle=90)
    _arrow(axes, (0, 0), (0, 1.2), Z_COLOUR, "+Z forward  (W)", (0.06, 1.2), "left")
    _arrow(axes, (0, 0), (1.0, 0), X_COLOUR, "+X right", (1.0, -0.18), "center")
    _turn(axes, 90, 35, "yaw +\nturns right", (1.0, 0.66))
    _turn(axes, 90, 145, "yaw −\nturns left", (-1.0, 0.66))
    axes.text(0, -0.62, "Y points away from you,\ninto the ground", ha="center", color=Y_COLOUR)


def draw_pitch(axes: Any) -> None:
    """Draw a camera from its right side with the signs of pitch."""
    _blank(axes, "from the right: pitch", (-0.35, 1.55), (-1.1, 1.15))
    _view(axes, angle=0)
    _arrow(axes, (0, 0), (1.15, 0), Z_COLOUR, "+Z forward", (0.9, 0.08), "left")
    _arrow(axes, (0, 0), (0, -0.95), Y_COLOUR, "+Y down", (0.07, -0.95), "left")
    _turn(axes, 0, 50, "pitch +\nlooks up (I)", (1.0, 0.72))
    _turn(axes, 0, -50, "pitch −\nlooks down (K)", (1.05, -0.72))


def draw_path(axes: Any) -> None:
    """Draw a rolled-out action string from above."""
    poses = roll_out_actions(ACTION).relative()
    x, z = poses[:, 0, 3], poses[:, 2, 3]
    axes.plot(x, z, ".", color="0.45", ms=3)
    for frame in (0, 24, 44, 64, 84):
        turned = poses[frame, :3, :3]
        wings = np.array([[0, 0, 0], [-0.13, 0, 0.2], [0.13, 0, 0.2]]) @ turned.T
        place = np.stack([wings[:, 0] + x[frame], wings[:, 2] + z[frame]], axis=1)
        axes.add_patch(Polygon(place, facecolor="#cfe0f5", edgecolor=Z_COLOUR, zorder=3))
        axes.text(x[frame] - 0.1, z[frame], str(frame), fontsize=9, ha="right", va="center")
    axes.set_aspect("equal", anchor="N")
    axes.set_xlim(-0.5, 0.95)
    axes.set(xlabel="right (scene units)", ylabel="forward (scene units)")
    axes.grid(color="0.92")
    axes.set_title(f'--action "{ACTION}"\nframes 0 to 84, from above', fontsize=11)


def _blank(axes: Any, title: str, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=y)
    axes.set_aspect("equal", anchor="N")
    axes.set_axis_off()
    axes.set_title(title, fontsize=12)


def _view(axes: Any, *, angle: float) -> None:
    """Draw the camera at the origin and the wedge that it sees in a direction (degrees)."""
    middle = np.radians(angle)
    spread = np.radians(26)
    ends = [(0.62 * np.cos(middle + s), 0.62 * np.sin(middle + s)) for s in (-spread, spread)]
    axes.add_patch(Polygon([(0, 0), *ends], facecolor="#cfe0f5", edgecolor=Z_COLOUR))
    axes.plot(0, 0, "o", color="black", ms=7, zorder=5)


def _arrow(
    axes: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    name: str,
    place: tuple[float, float],
    align: str,
) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "lw": 2.4, "mutation_scale": 16}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    axes.text(*place, name, color=colour, fontsize=11, weight="bold", ha=align)


def _turn(axes: Any, start: float, end: float, name: str, place: tuple[float, float]) -> None:
    """Draw a bent arrow from one direction to another (degrees) with its name."""
    low, high = sorted((start, end))
    radius = 0.82
    axes.add_patch(Arc((0, 0), 2 * radius, 2 * radius, theta1=low, theta2=high, color=TURN_COLOUR))
    sign = 1 if end > start else -1
    tip, back = np.radians(end), np.radians(end - 4 * sign)
    axes.annotate(
        "",
        xy=(radius * np.cos(tip), radius * np.sin(tip)),
        xytext=(radius * np.cos(back), radius * np.sin(back)),
        arrowprops={"arrowstyle": "-|>", "color": TURN_COLOUR, "mutation_scale": 16},
    )
    axes.text(*place, name, color=TURN_COLOUR, fontsize=11, ha="center", va="center")


if __name__ == "__main__":
    main()
