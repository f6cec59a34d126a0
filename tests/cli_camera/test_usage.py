"""Help, flags that contradict each other, and what may be imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sanawm.cli import camera_params
from sanawm.cli.refine_params import REFINE

from sanawm.settings import all_keys

from .places import DEMO, camera, case
from .test_convert import refused

POSES = case("C01/clean.npy")


def help_of(command: str) -> str:
    """Return the help text of a command on one line, without boxes."""
    done = camera(command, "--help")
    assert done.code == 0
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.out).split())


@pytest.mark.parametrize("command", ["show", "check", "make"])
def test_help_says_what_the_schemes_differ_in(command: str) -> None:
    text = help_of(command)
    assert "unified (default): A/D TURN left and right, J/L STRAFE" in text
    assert "legacy (first release, diffusers 0.42.1): A/D STRAFE, J/L TURN" in text
    assert "unified 0.025, legacy 0.05" in text


def test_help_lists_the_commands() -> None:
    done = camera("--help")
    assert done.code == 0
    for name in ("show", "convert", "make", "check"):
        assert f" {name} " in done.out


def test_flags_are_the_settings_of_the_same_name() -> None:
    """A flag that `refine` has too must be spelled the same and set the same key."""
    elsewhere = {flag.key: flag for flag in REFINE}
    for flag in (*camera_params.SHOW, *camera_params.CONVERT, *camera_params.MAKE):
        assert flag.key in all_keys()
        if flag.key in elsewhere:
            assert (flag.names, flag.type) == (elsewhere[flag.key].names, elsewhere[flag.key].type)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("neither a file nor --action was given",)),
        ((POSES, "--action", "w-24"), ("FILE and --action exclude each other",)),
        (("--action", ""), ("--action is empty",)),
        (("--action", " "), ("the action string is empty",)),
        (("",), ("FILE is empty",)),
        ((POSES, "--intrinsics", ""), ("--intrinsics is empty",)),
        ((POSES, "--plot", ""), ("expected .png",)),
        (("--action", "w24"), ("'w24' has no frame count",)),
        (("--action", "q-24"), ("'q'", "letters of w a s d i j k l")),
        (("--action", "w-24", "--action-scheme", "old"), ("old: expected unified or legacy",)),
        (("--action", "w-24", "--pitch-limit-deg", 100), ("pitch limit 100", "0 to 90")),
        (("--action", "w-24", "--camera-format", "tum"), ("--camera-format is about a file",)),
        (("--action", "w-24", "--translation-scale", 2), ("--translation-scale is about a file",)),
        ((POSES, "--action-scheme", "legacy"), ("--action-scheme is about an action string",)),
        ((POSES, "--translation-speed", 1), ("--translation-speed is about an action string",)),
        ((POSES, "--camera-format", "nerf"), ("camera format 'nerf' does not exist",)),
        ((POSES, "--camera-convention", "cw"), ("--camera-convention cw: expected c2w or w2c",)),
        ((POSES, "--camera-axes", "gl"), ("--camera-axes gl: expected opencv or opengl",)),
        (
            (POSES, "--camera-sort", "time"),
            ("time: expected name or file", "use --camera-sort"),
        ),
        ((POSES, "--translation-scale", 0), ("translation scale 0", "more than 0")),
        ((POSES, "--hold-last"), ("--hold-last needs the length", "add --num-frames N")),
        ((POSES, "--resample", "clip"), ("--resample clip needs the length",)),
        ((POSES, "--resample", "half"), ("--resample half: expected clip or time",)),
        ((POSES, "--resample", "time"), ("no timestamps to sample by",)),
        ((POSES, "--num-frames", 49, "--hold-last", "--resample", "clip"), ("exclude each other",)),
        ((POSES, "--num-frames", "ten"), ("--num-frames ten: expected a whole number",)),
        ((POSES, "--fps", "fast"), ("frame rate 'fast' is no number",)),
        ((POSES, "--fps", 0), ("frame rate 0 is not above zero",)),
        ((POSES, "--width", 640), ("--width without --height", "add --height")),
        ((POSES, "--height", 360), ("--height without --width", "add --width")),
        ((POSES, "--width", 0, "--height", 360), ("--width 0: expected a whole number, 1",)),
        ((POSES, "--width", -3), ("--width -3: expected", "the width of the image file")),
        ((POSES, "--intrinsics", "70 70 48 32"), ("write --intrinsics 70,70,48,32",)),
        ((POSES, "--translation-scale", "1e300"), ("translation scale 1e+300 makes",)),
        ((POSES, "--fov-x", 180), ("field of view 180 degrees is impossible",)),
        ((POSES, "--fov-x", 75, "--intrinsics", "1,1,1,1"), ("--fov-x", "exclude each other")),
        ((POSES, "--intrinsics", "1,2,3"), ("expected (4,) fx fy cx cy",)),
        ((POSES, "--speed", 3), ("No such option",)),
    ],
)
def test_refused_in_three_lines(arguments: tuple, words: tuple) -> None:
    refused(camera("show", *arguments), 2, *words)


def test_missing_files_are_3() -> None:
    refused(camera("show", "no.npy"), 3, "no.npy: no such file")
    refused(camera("show", "w-24"), 3, "w-24: no such file", 'write --action "w-24"')
    refused(camera("show", POSES, "--intrinsics", "no.npy"), 3, "no.npy: no such file")


def test_underscores_and_late_global_options() -> None:
    assert camera("show", DEMO / "demo_0_pose.npy", "--num_frames", "25", "--quiet").code == 0


def test_help_and_usage_errors_stay_light() -> None:
    code = """
import sys
from sanawm.cli import app
for arguments in (["camera", "--help"], ["camera", "show", "--help"], ["camera", "show", "--x"]):
    try:
        app.main(arguments)
    except SystemExit:
        pass
print(sorted({"torch", "numpy", "matplotlib", "PIL", "sanawm.camera"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_torch_is_needed_to_show_a_path(tmp_path: Path) -> None:
    code = f"""
import sys
from sanawm.cli import app
try:
    app.main(["camera", "show", {str(POSES)!r}])
except SystemExit as e:
    assert e.code == 0
print(sorted({{"torch", "matplotlib", "av"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_failure() -> None:
    command = f"{sys.executable} -m sanawm camera show {POSES} --text-plot; echo code $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"], capture_output=True, text=True, check=True
    )
    assert done.stderr == "code 0\n"


def test_make_asks_for_an_action_and_no_file(tmp_path: Path) -> None:
    done = camera("make", "-o", tmp_path / "m.npy")
    refused(done, 2, "no --action was given", 'add, say, --action "w-24,dw-24"')
    assert "file" not in done.err


def test_the_line_about_an_unknown_lens_names_what_decides() -> None:
    assert (
        "lens       not known: refine takes 90 degrees across its picture unless a preset, --fov-x "
        "or --intrinsics says otherwise"
    ) in camera("show", "--action", "w-24").out
