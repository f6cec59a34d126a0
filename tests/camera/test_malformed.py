"""Malformed trajectory files: what is said about each, and that damage never crashes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sanawm.errors import InputError, MissingFile, SanawmError, UsageError

from .places import FORMATS, load
from .test_load import CAMERA, IMAGE, MATRIX, WH

IDENTITY = "1 0 0 0 0 1 0 0 0 0 1 0"
ROW19 = f"0 .5 .5 .5 .5 0 0 {IDENTITY}"
BAD_TEXT = [
    ("poses.txt", f"{IDENTITY}\n{IDENTITY[:-2]}\n", "kitti", "line 2 has 11 columns, expected 12"),
    (
        "p.txt",
        f"{IDENTITY}\n\n{IDENTITY[:-1]}x\n",
        None,
        "line 3, column 12: found 'x', expected a",
    ),
    (
        "p.txt",
        f"# c\n{IDENTITY[:-1]}nan\n",
        None,
        "line 2, column 12: found nan, expected a finite",
    ),
    ("p.txt", "0 0 0 0 0 0 0 0\n", None, "line 1: the quaternion is zero"),
    ("p.txt", "0 0 0 0 0 0 0 1_0\n", None, "line 1, column 8: found 1_0, expected a finite"),
    ("p.txt", f"url\n{ROW19}\n{ROW19} 7\n{ROW19}\n", None, "line 3 has 20 columns, expected 19"),
    ("p.txt", "1 2 3\n", None, "3 columns a line: no trajectory that can be read"),
    ("p.txt", "hello\n", None, "no rows of numbers: no trajectory that can be read"),
    ("p.txt", "# nothing\n", "tum", "no poses in this file"),
    ("p.txt", "", None, "the file is empty"),
    ("cameras.txt", f"# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n{CAMERA}\n", None, "no poses"),
    ("images.txt", f"{IMAGE}\n{IMAGE}\n", None, "line 2: found something else than the 2-D points"),
    ("images.txt", f"\n{IMAGE}\n\n", None, "line 1: found an empty line, expected an image line"),
    ("images.txt", "1 1 0 0 0 0 0\n\n", None, "line 1: found 7 columns, expected an image line"),
    ("images.txt", "1 0 0 0 0 1 2 3 1 a.png\n", None, "the quaternion QW QX QY QZ is zero"),
    ("images.txt", "# none\n", None, "no poses in this file"),
    ("images.bin", "\0\0", None, "a binary COLMAP model"),
    ("clip.mp4", "\0\0\0 ftypisom", None, "binary data, expected a camera file: NumPy"),
    ("a.json", "{", None, "line 1, column 2: no valid JSON"),
    ("a.json", "[1, 2]", None, "the JSON is a list, expected an object"),
    ("a.json", "[" * 100_000, None, "no usable JSON: its lists and objects are nested too deep"),
    ("p.txt", f"{IDENTITY[:-1]}1e30\n", "kitti", "found 1e30, expected at most 1e[+]20 either way"),
    ("p.txt", "1\n", "kitti", "line 1 has 1 column, expected 12"),
    ("images.txt", "word\n", None, "line 1: found 1 column, expected an image line"),
    (
        "r.txt",
        f"url\n{ROW19.replace('.5', '0', 1)}\n",
        None,
        "line 2: fx is 0, expected a positive fraction of the picture",
    ),
    (
        "a.json",
        json.dumps({"fl_x": 5, "h": 4, "frames": [{"transform_matrix": MATRIX}]}),
        None,
        "the top of the file: w is missing beside h",
    ),
    (
        "a.json",
        json.dumps({"fl_x": 5, "frames": [{"transform_matrix": MATRIX, "w": 4}]}),
        None,
        "frame 0: h is missing beside w",
    ),
    ("a.json", '{"a": 1}', None, "found the keys a, expected frames or camera_path"),
    ("a.json", '{"frames": []}', None, "no poses in this file"),
    ("a.json", '{"frames": [1]}', None, "found no list of objects under frames"),
    ("a.json", '{"frames": [{}]}', None, "frame 0: found nothing under transform_matrix"),
    (
        "a.json",
        '{"frames": [{"file_path": "x.png", "transform_matrix": [[1, 2], [3, 4]]}]}',
        None,
        r"frame 0 \(x.png\): found something else under transform_matrix, expected 4 rows of 4",
    ),
    (
        "a.json",
        json.dumps({"fl_x": -5, "w": 4, "h": 4, "frames": [{"transform_matrix": MATRIX}]}),
        None,
        "frame 0: fl_x is -5, expected a number above 0",
    ),
    (
        "a.json",
        json.dumps({"fl_x": 5, "frames": [{"transform_matrix": MATRIX}]}),
        None,
        "fl_x without cx, cy and without w, h",
    ),
    (
        "a.json",
        json.dumps({"camera_angle_x": 4.0, "frames": [{"transform_matrix": MATRIX}]}),
        None,
        "camera_angle_x is 4.0, expected a number above 0 below 3.14159",
    ),
    (
        "a.json",
        json.dumps(
            {"camera_path": [{"camera_to_world": [n for row in MATRIX for n in row], "fov": 50}]}
        ),
        None,
        "fov without render_width and render_height",
    ),
]


@pytest.mark.parametrize(("name", "text", "kind", "message"), BAD_TEXT)
def test_malformed_text(
    name: str, text: str, kind: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        load(path, camera_format=kind)
    assert str(path) in caught.value.message
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_missing_files_and_bad_options(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"gone.npy: no such file") as caught:
        load(tmp_path / "gone.npy")
    assert caught.value.exit_code == 3
    with pytest.raises(InputError, match=r"a folder without images.txt \(COLMAP\)"):
        load(tmp_path)
    (tmp_path / "images.bin").write_bytes(b"\0")
    with pytest.raises(InputError, match="--output_type TXT"):
        load(tmp_path)
    inner = tmp_path / "project" / "sparse" / "0"
    inner.mkdir(parents=True)
    for name in ("images.bin", "images.txt"):
        (inner / name).write_text("")
        with pytest.raises(InputError, match="its COLMAP model lies in sparse/0") as hint:
            load(tmp_path / "project")
        assert hint.value.fix == f"name {inner}"
    path = FORMATS / "c2w_3x4.npy"
    for options, message in (
        ({"camera_format": "nerfstudo"}, "does not exist\n  fix: use nerfstudio"),
        ({"translation_scale": 0.0}, "translation scale 0"),
        ({"translation_scale": float("inf")}, "translation scale inf"),
        ({"translation_scale": 1e300}, r"translation scale 1e\+300 makes positions of up to"),
        ({"convention": "w2x"}, "camera convention 'w2x' does not exist"),
        ({"axes": "unreal"}, "camera axes 'unreal' does not exist"),
        ({"sort": "size"}, "camera sort 'size' does not exist"),
    ):
        with pytest.raises(UsageError, match=message):
            load(path, **options)
    with pytest.raises(UsageError, match="direction and axes of llff are fixed"):
        load(FORMATS / "llff_poses_bounds.npy", axes="opengl")
    with pytest.raises(InputError, match="no whole"):
        load(path, camera_format="npz")
    with pytest.raises(InputError, match=r"shape \(6, 3, 4\), expected numbers of shape \(F, 17\)"):
        load(path, camera_format="llff")


def test_a_huge_number_is_not_called_infinite(tmp_path: Path) -> None:
    poses = np.tile(np.eye(4), (2, 1, 1))
    poses[1, 0, 3] = 1e30
    np.save(tmp_path / "p.npy", poses)
    with pytest.raises(InputError, match=r"row 0, column 3 .* is 1e\+30, expected at most 1e\+20"):
        load(tmp_path / "p.npy")


def test_arrays_of_other_shapes(tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    for shape in ((4, 4), (3, 16), (2, 4, 3), (1, 2, 4, 4)):
        np.save(path, np.zeros(shape))
        with pytest.raises(InputError, match=r"poses of shape .*, expected \(F, 4, 4\)"):
            load(path)
    np.save(path, np.array([None, 3]), allow_pickle=True)
    with pytest.raises(InputError, match="holds Python objects, which are never loaded"):
        load(path)
    path.write_bytes(b"\x93NUMPY\x01\x00nonsense")
    with pytest.raises(InputError, match="no NumPy array"):
        load(path)


SAMPLES = sorted(p for p in FORMATS.iterdir() if p.name not in ("expected.npz", "resample.npz"))


def load_or_refuse(path: Path) -> np.ndarray | SanawmError:
    try:
        return load(path, image_size=WH)[0].poses
    except SanawmError as error:
        return error


TOKENS = [b"nan", b"-1", b"1e400", b"7", b"0", b"\n", b" ", b",", b"{}", b"[]", b"null", b"\xff"]


@given(
    st.sampled_from(SAMPLES),
    st.lists(
        st.tuples(
            st.integers(0, 2**13),
            st.sampled_from(TOKENS) | st.binary(max_size=4),
            st.sampled_from([0, 1, 1, 8, 200]),
        ),
        max_size=3,
    ),
)
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_files_never_crash(
    tmp_path: Path, sample: Path, edits: list[tuple[int, bytes, int]]
) -> None:
    """Whatever is written into a file, it is read as finite rigid poses or refused in words."""
    data = bytearray(sample.read_bytes())
    for where, put, cut in edits:
        at = where % (len(data) + 1)
        data[at : at + cut] = put
    for other in tmp_path.iterdir():  # a camera list of an earlier example
        other.unlink()
    path = tmp_path / sample.name
    path.write_bytes(bytes(data))
    outcome = load_or_refuse(path)
    if isinstance(outcome, SanawmError):
        assert str(path) in outcome.message
        assert outcome.exit_code == 2
    else:
        assert np.isfinite(outcome).all()
        assert np.abs(np.linalg.det(outcome[:, :3, :3].astype(float)) - 1).max() < 1e-5
