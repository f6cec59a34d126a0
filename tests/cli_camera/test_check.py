"""`sanawm camera check`: 0 when all is well, 1 for a failed check, 2 and 3 for bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .places import DEMO, camera, case


def walk(frames: int = 49, step: float = 0.025) -> np.ndarray:
    poses = np.tile(np.eye(4, dtype=np.float32), (frames, 1, 1))
    poses[:, 2, 3] = step * np.arange(frames)
    return poses


def test_good_paths() -> None:
    for source in ((DEMO / "demo_0_pose.npy",), (DEMO / "demo_3_pose.npy",), ("--action", "w-24")):
        done = camera("check", *source)
        assert (done.code, done.err) == (0, "")
        assert [line[:4] for line in done.out.splitlines()[1:]] == ["ok  "] * 3


@pytest.mark.parametrize(
    ("name", "poses", "flags", "found"),
    [
        ("length", walk(24), (), "24 poses, a clip needs at least 25"),
        ("step", walk(step=3.0), (), "median step 3 scene units a frame"),
        ("step", walk(), ("--translation-scale", 100), "median step 2.5 scene units a frame"),
        ("field of view", walk(), ("--fov-x", 150), "field of view 150.0 degrees, accepted more"),
    ],
)
def test_failed_check(
    name: str, poses: np.ndarray, flags: tuple, found: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", poses)
    done = camera("check", tmp_path / "a.npy", *flags)
    assert done.code == 1
    lines = done.out.splitlines()
    (failed,) = [i for i, line in enumerate(lines) if line.startswith("FAIL")]
    assert lines[failed].startswith(f"FAIL  {name}")
    assert found in lines[failed]
    assert lines[failed + 1].startswith(" " * 21 + "fix: ")
    assert done.err.splitlines()[-1].endswith(f"checks failed: {name}")


def test_jumps_and_timestamps_name_the_frame(tmp_path: Path) -> None:
    poses = walk()
    poses[20:, 0, 3] += 5
    np.save(tmp_path / "a.npy", poses)
    done = camera("check", tmp_path / "a.npy")
    assert done.code == 1
    assert "FAIL  jumps          from frame 19 to 20 the camera jumps 5 scene units" in done.out
    rows = [f"{t} 0 0 {0.025 * i} 0 0 0 1" for i, t in enumerate([*range(26), 25, 27])]
    (tmp_path / "a.txt").write_text("\n".join(rows))
    done = camera("check", tmp_path / "a.txt")
    assert done.code == 1
    assert "FAIL  timestamps     frame 26 is not later than frame 25" in done.out


def test_json_says_the_same() -> None:
    done = camera("check", case("C09"), "--json")
    assert done.code == 1
    found = done.json
    assert found["status"] == "failed"
    assert found["frames"] == 9
    assert {c["name"]: c["passed"] for c in found["checks"]} == {
        "length": False,
        "step": True,
        "jumps": True,
        "field of view": True,
    }
    assert camera("check", "--action", "w-24", "--json").json["status"] == "passed"


def test_malformed_and_missing() -> None:
    bad = camera("check", case("C01/nan.npy"), "--json")
    assert (bad.code, bad.out) == (2, "")
    assert "frame 5, row 1, column 3 (counted from 0) is nan" in bad.err
    gone = camera("check", "no/such.npy")
    assert (gone.code, gone.out) == (3, "")
    assert gone.err == "error: no/such.npy: no such file\n  fix: check the path\n"


def test_picture_is_drawn_also_when_a_check_fails(tmp_path: Path) -> None:
    target = tmp_path / "a.png"
    done = camera("check", case("C09"), "--plot", target)
    assert done.code == 1
    assert f"picture    {target}" in done.out
    with Image.open(target) as picture:
        assert picture.format == "PNG"


def test_a_wide_angle_is_not_told_about_pixels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", walk())
    done = camera("check", tmp_path / "a.npy", "--fov-x", 120, "--width", 1280, "--height", 704)
    assert done.code == 1
    assert "field of view 87.2 to 120.0 degrees, accepted more than 25, less" in done.out
    assert "fix: give an angle above 25 and below 120 degrees; with a picture the" in done.out
    assert "fx fy" not in done.out
    one = tmp_path / "one.txt"
    one.write_text("1 0 0 0 0 0 0 1\n")
    assert "1 pose, a clip needs at least 25" in camera("check", one).out


def test_a_jump_is_warned_about_wherever_a_path_is_fitted(tmp_path: Path) -> None:
    poses = walk()
    poses[20:, 0, 3] += 86
    np.save(tmp_path / "a.npy", poses)
    words = "from frame 19 to 20 the camera jumps 86 scene units"
    for flags in ((), ("--num-frames", 25)):
        assert words in camera("show", tmp_path / "a.npy", *flags).err
    assert "jumps" not in camera("show", tmp_path / "a.npy", "--num-frames", 20).err
    assert "jumps" not in camera("show", "--action", "w-6,none-200").err
