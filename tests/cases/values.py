"""The values that the cases state, and how to look at them. `out` is the folder of the run."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from sanawm.camera import ImageSize, load_trajectory, plan_frames
from sanawm.checkpoint import read_pt
from sanawm.errors import UsageError
from sanawm.io.image import fit_size
from sanawm.io.rates import parse_fps
from sanawm.notes import Notes
from sanawm.plan import Plan
from sanawm.shapes import Window
from tests.cli.command import sanawm

C04 = [[0.913545, 0, 0.406737, 0.257836], [0, 1, 0, 0], [-0.406737, 0, 0.913545, 1.163024]]
C07 = [[0.961262, 0, 0.275637, 0.124748], [0, 1, 0, 0], [-0.275637, 0, 0.961262, 0.787626]]
C08 = [[0.913545, 0, -0.406737, -0.370830], [0, 1, 0, 0], [0.406737, 0, 0.913545, 1.544619]]
C09 = [[0.848048, 0, 0.529919, 0.366094], [0, 1, 0, 0], [-0.529919, 0, 0.848048, 1.126721]]
#: Asked frames, poses, and the frames used at strides of 24 (released) and 8 (VAE alone); C06.
SNAPPED = [
    (241, 50, 49, 49), (241, 1, 1, 1), (241, 242, 241, 241), (100, 242, 97, 97),
    (240, 242, 241, 241), (13, 242, 25, 17), (37, 242, 49, 41), (36, 242, 25, 33),
    (25, 242, 25, 25),
]  # fmt: skip
#: The picture that the camera and lens cases go with.
PICTURE = ImageSize(640, 360)


# Camera paths: `file` is the case, `out` the folder in which `camera convert` wrote out.npy


def walks_by_one(file: Path, out: Path) -> None:
    """Identity rotations, pose k at (0, 0, k); every dtype gives the same float32 bits."""
    expected = np.tile(np.eye(4, dtype=np.float32), (25, 1, 1))
    expected[:, 2, 3] = np.arange(25)
    poses = np.load(out / "out.npy")
    assert poses.dtype == np.float32
    assert poses.tobytes() == expected.tobytes()


def last_pose(file: Path, out: Path, frame: int, expected: list[list[float]]) -> None:
    poses = np.load(out / "out.npy").astype(np.float64)
    assert len(poses) == frame + 1
    np.testing.assert_allclose((np.linalg.inv(poses[0]) @ poses[-1])[:3], expected, atol=2e-5)


def lens_of_file(file: Path, out: Path, expected: tuple[float, ...]) -> None:
    trajectory = load_trajectory(file, image_size=PICTURE, notes=Notes())
    assert trajectory.intrinsics is not None
    np.testing.assert_allclose(trajectory.intrinsics[0], expected, rtol=1e-6)


def snapping(file: Path, out: Path) -> None:
    for asked, poses, *used in SNAPPED:
        for stride, wanted in zip((24, 8), used, strict=True):
            notes = Notes()
            if wanted < stride + 1:
                with pytest.raises(UsageError, match="a clip needs at least"):
                    plan_frames(asked, poses=poses, stride=stride, explicit=False, notes=notes)
                continue
            found = plan_frames(asked, poses=poses, stride=stride, explicit=False, notes=notes)
            assert found == wanted
            assert bool(notes.changes) == (found != asked)


# Runs of the released model: `plan` is their plan


def has_frames(plan: Plan, frames: int) -> None:
    assert plan.frames.decoded == frames
    assert plan.camera is not None
    assert len(plan.camera) == frames


def target_lens(plan: Plan, expected: tuple[float, ...] | None, row: int = -1) -> None:
    """Compare with pixels of the 1280x704 picture; the model gets them on its 40x22 grid."""
    lens = plan.source.rays.grid_intrinsics * [32, 32, 32, 32]  # type: ignore[attr-defined]
    assert lens.shape == (25, 4)
    if expected is None:
        zoom = np.load(Path(plan.settings.settings.input.intrinsics or ""))[:25] * 2
        np.testing.assert_allclose(lens[:, 0], zoom[:, 0], rtol=1e-5)
        return
    np.testing.assert_allclose(lens[row], expected, rtol=1e-5)


def pixels(plan: Plan) -> np.ndarray:
    picture = plan.source.picture  # type: ignore[attr-defined]
    assert picture.shape == (704, 1280, 3)
    return picture.astype(int)


def cropped(plan: Plan, expected: tuple[int, ...]) -> None:
    from PIL import Image

    with Image.open(plan.source.path) as image:
        fit = fit_size(*image.size, 1280, 704)
    assert (fit.resized_w, fit.resized_h, fit.left, fit.top) == expected
    pixels(plan)


def grey(plan: Plan) -> None:
    found = pixels(plan)
    assert (found[..., 0] == found[..., 1]).all()
    assert (found[..., 1] == found[..., 2]).all()
    assert abs(found[352, 640, 0] - 129) <= 2


def red(plan: Plan) -> None:
    assert np.abs(pixels(plan) - [255, 0, 0]).max() <= 3


def red_and_blue(plan: Plan) -> None:
    found = pixels(plan)
    assert np.abs(found[:, 320] - [255, 0, 0]).mean() < 8
    assert np.abs(found[:, 960] - [0, 0, 255]).mean() < 8


def first_of_two(plan: Plan) -> None:
    assert np.abs(pixels(plan) - 40).max() <= 1


# Frames: `out` holds the video that the writer made


def bars(file: Path, out: Path) -> None:
    with av.open(str(out / "out.mp4")) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (stream.width, stream.height, context.pix_fmt) == (64, 32, "yuv420p")
        tags = (context.color_range, context.colorspace, context.color_primaries)
        assert (*tags, context.color_trc) == (1, 1, 1, 1)
        shown = [f.to_ndarray(format="rgb24").astype(int) for f in container.decode(stream)]
    assert len(shown) == 9
    for frame in shown:
        for x, colour in zip((8, 24, 40, 56), np.load(file)[0, 16, 8::16], strict=True):
            assert np.abs(frame[16, x] - colour).max() <= 3


def counter(file: Path, out: Path) -> None:
    with av.open(str(out / "out.mp4")) as container:
        shown = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    bits = np.stack(shown)[:, 8, 2:24:4, 1] > 128
    assert [sum(int(b) << i for i, b in enumerate(row)) for row in bits] == list(range(49))


def rates(file: Path, out: Path) -> None:
    for case in json.loads(file.read_text(encoding="utf-8")):
        if case.get("error"):
            with pytest.raises(UsageError):
                parse_fps(case["fps"])
            continue
        assert parse_fps(case["fps"]) == Fraction(case["rate"])


# Files of settings


def state_dict(file: Path, out: Path) -> None:
    tensors = read_pt(file)["state_dict"]
    assert tensors
    assert all(isinstance(t, torch.Tensor) for t in tensors.values())


def names(file: Path, out: Path) -> None:
    """Through the command: accepted names give exactly that file, the others touch nothing."""
    folder = out / "videos"
    folder.mkdir()
    before = sorted(p.name for p in Path("/tmp").glob("escape_abs*"))
    for case in json.loads(file.read_text(encoding="utf-8")):
        done = sanawm("refine", "--output-dir", folder, f"--name={case['name']}", "--dry-run",
                      "--log-format", "json")  # fmt: skip
        assert list(folder.iterdir()) == []
        assert list(out.iterdir()) == [folder]
        if case["accepted"]:
            assert done.code == 0, (case["id"], done.err)
            assert done.json["output"] == str(folder / f"{case['name']}.mp4")
        else:
            assert done.code == 2, (case["id"], done.err)
    assert sorted(p.name for p in Path("/tmp").glob("escape_abs*")) == before


def lists(file: Path, out: Path) -> None:
    """Through the command: `--sigmas` and `--denoising-step-list` take what the rules allow."""
    cases: dict[str, list[dict[str, Any]]] = json.loads(file.read_text(encoding="utf-8"))
    assert set(cases) == {"refiner_sigmas", "stage1_steps"}
    flags = {"refiner_sigmas": "--sigmas", "stage1_steps": "--denoising-step-list"}
    keys = {"refiner_sigmas": "refiner.sigmas", "stage1_steps": "stage1.denoising_step_list"}
    for kind, rows in cases.items():
        for case in rows:
            value = case["value"]
            text = value if isinstance(value, str) else ",".join(map(str, value))
            done = sanawm("refine", f"{flags[kind]}={text}", "-o", out / "o.mp4", "--dry-run",
                          "--log-format", "json")  # fmt: skip
            assert done.code == (0 if case["ok"] else 2), (case["id"], done.err)
            if case["ok"]:
                used = done.json["settings"][keys[kind]]["value"]
                assert used == [float(v) for v in text.replace(" ", "").strip(",").split(",")]
                assert len(used) - 1 == case["steps"]


def windows(file: Path, out: Path) -> None:
    """Block by block: active and history frames, sink positions, frames attended to."""
    for name, case in json.loads(file.read_text(encoding="utf-8")).items():
        window = Window(case["sink"], case["block"], case["kv_max_frames"])
        spans = list(window.blocks(case["latent_frames"]))
        assert len(spans) == len(case["blocks"]), name
        for span, wanted in zip(spans, case["blocks"], strict=True):
            history = window.history_at(span.start)
            active = list(range(span.start, span.stop))
            assert active == wanted["active"]
            assert list(range(span.start - history, span.start)) == wanted["history"]
            first = window.sink_position_at(span.start)
            assert list(range(first, first + window.sink)) == wanted["sink_rope_positions"]
            assert window.sink + history + span.frames == wanted["frames_attended"]
