"""`sanawm camera show`: the table, the plots, the JSON, and every input flag."""

from __future__ import annotations

import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .places import DEMO, FORMATS, camera, case, shown

ACTIONS = {
    "demo_0": "w-100,dw-60,w-100,aw-60",
    "demo_3": "w-70,none-40,dw-35,w-70,aw-35,none-72",
}
MOTION = ("path_length", "forward", "right", "down", "yaw", "pitch", "step_median", "turn_max")


@pytest.mark.parametrize("name", ACTIONS)
def test_released_demo_paths_agree_with_their_published_actions(name: str) -> None:
    from_file = shown(DEMO / f"{name}_pose.npy")
    rolled_out = shown("--action", ACTIONS[name])
    assert from_file["frames"] == rolled_out["frames"]
    assert (from_file["format"], rolled_out["format"]) == ("npy", "action")
    for key in MOTION:
        assert from_file[key] == pytest.approx(rolled_out[key], abs=2e-4), key
    tables = [
        camera("show", *source).out.splitlines()[1:5]
        for source in ((DEMO / f"{name}_pose.npy",), ("--action", ACTIONS[name]))
    ]
    assert tables[0] == tables[1]


def test_table_of_a_walk() -> None:
    done = camera("show", "--action", "w-32,i-16", "--fov-x", 75)
    assert done.code == 0
    assert done.err == ""
    assert done.out.splitlines() == [
        "action 'w-32,i-16' (unified scheme)",
        "frames     49 (3 s at 16 a second)",
        "net move   forward 0.800 (scene units)",
        "net turn   up 9.6 degrees (pitch +9.6)",
        "path       0.800 scene units long; 0.025 a frame (median), at most 0.025",
        "turning    at most 0.60 degrees a frame",
        "lens       field of view 75.0 degrees across",
        "clip       all 49 poses: the released model makes 24*k + 1 frames",
    ]


def test_action_settings() -> None:
    fast = shown("--action", "w-24", "--translation-speed", 0.1)
    assert fast["forward"] == pytest.approx(2.4, abs=1e-4)
    turn = shown("--action", "d-24", "--rotation-speed-deg", 2)
    assert turn["yaw"] == pytest.approx(48, abs=1e-3)
    look = shown("--action", "i-200", "--pitch-limit-deg", 30)
    assert look["pitch"] == pytest.approx(30, abs=1e-3)
    legacy = shown("--action", "d-24", "--action-scheme", "legacy")
    assert (legacy["right"], legacy["yaw"]) == (pytest.approx(1.2, abs=1e-4), 0)


def test_convention_axes_scale_and_sort() -> None:
    right = {"forward": 1.163024, "right": 0.257836, "down": 0.0, "yaw": 24.0}
    for name, flags in (
        ("c2w_opencv.npy", ()),
        ("w2c_opencv.npy", ("--camera-convention", "w2c")),
        ("c2w_opengl.npy", ("--camera-axes", "opengl")),
    ):
        found = shown(case(f"C04/{name}"), *flags)
        assert {key: found[key] for key in right} == pytest.approx(right, abs=1e-3)
    wrong = camera("show", case("C04/w2c_opencv.npy")).out
    assert "net move   backwards 1.198, right 1.094" in wrong
    assert "net move   backwards 1.163" in camera("show", case("C04/c2w_opengl.npy")).out
    half = shown(case("C04/c2w_opencv.npy"), "--translation-scale", 0.5)
    assert half["path_length"] == pytest.approx(0.6, abs=1e-4)
    by_name = shown(case("C08/transforms.json"))
    as_stored = shown(case("C08/transforms.json"), "--camera-sort", "file")
    assert by_name["path_length"] == pytest.approx(1.6, abs=1e-3)
    assert as_stored["path_length"] > 2
    forced = camera("show", FORMATS / "kitti.txt", "--camera-format", "tum")
    assert forced.code == 2
    assert "12 columns, expected 8" in forced.err


def test_length_and_time() -> None:
    whole = DEMO / "demo_0_pose.npy"
    assert shown(whole, "--num-frames", 25)["frames"] == 25
    assert shown(whole, "--num-frames", 25)["forward"] == pytest.approx(0.6, abs=1e-4)
    held = shown(case("C06/F24.npy"), "--num-frames", 49, "--hold-last")
    assert held["frames"] == 49
    assert "the last is held up to frame 48" in held["changes"][0]
    squeezed = shown(whole, "--num-frames", 49, "--resample", "clip")
    assert squeezed["forward"] == pytest.approx(shown(whole)["forward"], abs=1e-4)
    timed = shown(case("C07/clip.txt"), "--resample", "time", "--fps", "30")
    assert timed["frames"] == 9
    assert timed["fps"] == 30
    assert (
        "frames     49 (2 s at 24 a second)" in camera("show", "--action", "w-48", "--fps", 24).out
    )
    film = shown("--action", "w-48", "--fps", "23.976")
    assert film["fps"] == pytest.approx(24000 / 1001)


def angle(side: float, focal: float) -> float:
    """Return the field of view in degrees across `side` pixels."""
    return math.degrees(2 * math.atan(side / (2 * focal)))


@pytest.mark.parametrize(
    ("flags", "view", "picture"),
    [
        (("--intrinsics", "600,610,320,180"), (angle(640, 600), angle(360, 610)), [640, 360]),
        (
            ("--intrinsics", "600,610,320,180", "--width", 1280, "--height", 720),
            (angle(1280, 600), angle(720, 610)),
            [1280, 720],
        ),
        (("--fov-x", 75), (75.0, None), None),
        (
            ("--fov-x", 75, "--width", 640, "--height", 360),
            (75.0, angle(9, 16 / math.tan(math.radians(37.5)) / 2)),
            [640, 360],
        ),
        ((), (None, None), None),
    ],
)
def test_lens_of_a_path_without_one(flags: tuple, view: tuple, picture: list | None) -> None:
    found = shown("--action", "w-24", *flags)
    assert (found["fov_x"], found["fov_y"]) == pytest.approx(view, abs=1e-4)
    assert found["picture"] == picture
    assert (found["intrinsics"] is None) == (picture is None)


def test_lens_of_a_file_and_what_replaces_it() -> None:
    colmap = case("C09")
    assert shown(colmap)["intrinsics"] == [512, 514, 320, 180]
    larger = shown(colmap, "--width", 1280, "--height", 720)
    assert larger["intrinsics"] == [1024, 1028, 640, 360]
    assert larger["fov_x"] == pytest.approx(shown(colmap)["fov_x"])
    replaced = shown(colmap, "--intrinsics", "320,320,320,180")
    assert replaced["fov_x"] == pytest.approx(90)
    assert replaced["picture"] == [640, 360]
    assert shown(colmap, "--fov-x", 60)["fov_x"] == pytest.approx(60)
    fractions = shown(case("C07/clip.txt"))
    assert (fractions["intrinsics"], fractions["picture"]) == (None, None)
    assert (fractions["fov_x"], fractions["fov_y"]) == pytest.approx((90, 58.72), abs=0.01)
    pixels = shown(case("C07/clip.txt"), "--width", 640, "--height", 360)
    assert pixels["intrinsics"] == pytest.approx([320, 320, 320, 180])
    blender = shown(FORMATS / "blender_transforms.json")
    assert (blender["fov_y"], blender["intrinsics"]) == (None, None)


def test_size_that_changes_nothing_is_said() -> None:
    done = camera("show", "--action", "w-24", "--width", 640, "--height", 360)
    assert done.err == (
        "warning: --width and --height change nothing: this path has no intrinsics\n"
    )


def test_size_guessed_from_the_principal_point_is_said() -> None:
    done = camera("show", "--action", "w-24", "--intrinsics", "600,610,320,180")
    assert "the picture's size is not known, 640x360 is taken" in done.err


def test_clip_line() -> None:
    def clip(*arguments: object) -> str:
        return camera("show", *arguments).out.splitlines()[-1]

    rule = "the released model makes 24*k + 1 frames"
    assert clip(case("C06/F242.npy")) == f"clip       the first 241 of 242 poses: {rule}"
    assert clip(case("C06/F50.npy")) == f"clip       the first 49 of 50 poses: {rule}"
    assert clip(case("C06/F50.npy"), "--num-frames", 25) == f"clip       all 25 poses: {rule}"
    for short in ("C06/F1.npy", "C06/F24.npy"):
        assert clip(case(short)) == f"clip       too short: {rule}, 25 or more"


def orbit() -> np.ndarray:
    """Three quarters of a circle to the right around a point 3 units ahead."""
    poses = np.tile(np.eye(4, dtype=np.float32), (97, 1, 1))
    for pose, angle in zip(poses, np.linspace(0, -1.5 * np.pi, 97), strict=True):
        c, s = np.cos(angle), np.sin(angle)
        pose[:3, :3] = [[c, 0, s], [0, 1, 0], [-s, 0, c]]
        pose[:3, 3] = np.array([0, 0, 3]) - 3 * pose[:3, 2]
    return poses


def test_pictures_of_an_orbit_a_dolly_and_a_colmap_path(tmp_path: Path) -> None:
    """These three were looked at; here: they are drawn, whole, and named in the result."""
    np.save(tmp_path / "orbit.npy", orbit())
    for source in ((tmp_path / "orbit.npy",), ("--action", "w-48,s-24"), (case("C09"),)):
        target = tmp_path / "plot.png"
        done = camera("show", *source, "--plot", target, "--overwrite")
        assert done.code == 0
        assert done.out.splitlines()[-1] == f"picture    {target}"
        with Image.open(target) as picture:
            assert picture.size == (1280, 660)
    assert shown(tmp_path / "orbit.npy")["yaw"] == pytest.approx(-270, abs=0.01)
    assert [p.name for p in tmp_path.glob("*.png")] == ["plot.png"]


def test_picture_is_not_replaced_unasked(tmp_path: Path) -> None:
    target = tmp_path / "plot.png"
    target.write_bytes(b"mine")
    done = camera("show", "--action", "w-24", "--plot", target)
    assert done.code == 5
    assert done.err == f"error: {target} exists\n  fix: add --overwrite, or choose another name\n"
    assert (done.out, target.read_bytes()) == ("", b"mine")
    assert camera("show", "--action", "w-24", "--plot", tmp_path / "plot.jpg").code == 2
    assert camera("show", "--action", "w-24", "--plot", tmp_path / "no" / "plot.png").code == 5


def test_text_plot_only_when_asked_or_on_a_terminal() -> None:
    plain = camera("show", "--action", "w-24,dw-48")
    assert "top view" not in plain.out
    drawn = camera("show", "--action", "w-24,dw-48", "--text-plot")
    assert drawn.out.startswith(plain.out)
    assert "\nS\n" in drawn.out
    assert drawn.out.splitlines()[-1].startswith("top view: S start, E end")
    as_json = camera("show", "--action", "w-24", "--text-plot", "--json").json
    assert as_json["text_plot"].startswith("E\n^")


def on_terminal(*arguments: str) -> str:
    """Return what a process of its own writes to a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "sanawm", "camera", "show", *arguments]
    done = subprocess.run(command, stdout=slave, stderr=subprocess.DEVNULL, check=True)
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        text += part
    os.close(master)
    assert done.returncode == 0
    return text.decode().replace("\r\n", "\n")


def test_terminal_gets_the_text_plot() -> None:
    plain = camera("show", "--action", "w-24")
    drawn = camera("show", "--action", "w-24", "--text-plot")
    assert on_terminal("--action", "w-24") == drawn.out
    assert on_terminal("--action", "w-24", "--no-text-plot") == plain.out


def test_json_on_stdout_either_way(tmp_path: Path) -> None:
    found = shown(case("C08/with_distortion.json"), "--plot", tmp_path / "a.png")
    assert found["schema"] == 1
    assert found["status"] == "done"
    assert found["plot"] == str(tmp_path / "a.png")
    assert "distortion k1=-0.21 ignored" in found["warnings"][0]
    from tests.cli.command import sanawm

    events = sanawm("--log-format", "json", "camera", "show", case("C08/with_distortion.json"))
    assert events.json == found | {"plot": None}
    assert [e["level"] for e in events.events] == ["warning", "info"]
