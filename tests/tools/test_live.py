"""Steering live: what a growing path makes equals what the same path, given in advance, makes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sanawm
from sanawm.camera import ActionWalk, LiveRays, camera_rays, roll_out_actions
from sanawm.camera.framing import ImageSize
from sanawm.errors import InputError, UsageError
from sanawm.io.image import read_image
from sanawm.io.reader import VideoReader
from sanawm.notes import Notes
from sanawm.pipeline import Pipeline
from sanawm.shapes import BlockSpan, LatentShape, VAERatios
from sanawm.stage1.plan import OpenChunks, plan_chunks
from tests.cli.command import TINY
from tests.cli.command import sanawm as command

ROOT = Path(__file__).parents[2]
RATIOS, SIZE = VAERatios(4, 8), ImageSize(96, 64)
LENS = np.array([50, 50, 48, 32], dtype=np.float32)
PROMPT = "a red tower"


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    """The tiny pipeline, its encoder kept."""
    pipeline = Pipeline.from_config("tiny")
    pipeline.keep_encoder = True
    return pipeline


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompts")


def session(pipe: Pipeline, cache: Path) -> sanawm.LiveSession:
    picture = read_image(TINY / "first.png", notes=Notes())
    return sanawm.LiveSession(pipe, picture, PROMPT, fov_x_deg=90, cache=cache)


def fly(pipe: Pipeline, cache: Path, keys: list[str]) -> list[sanawm.FrameChunk]:
    """Return the blocks of a flight with one key a block."""
    live, camera = session(pipe, cache), ActionWalk()
    return [live.step(camera.walk(f"{k}-{live.block_frames}")) for k in keys]


def pixels(chunks: list[sanawm.FrameChunk]) -> np.ndarray:
    return np.concatenate([c.frames for c in chunks])


@pytest.mark.parametrize("scheme", ["unified", "legacy"])
def test_a_walk_in_pieces_is_the_walk_at_once(scheme: str) -> None:
    pieces = ["w-7", "wd-5", "none-3", "i-120", "jk-4", "w-1"]
    camera = ActionWalk(scheme=scheme, rotation_speed_deg=1.5)
    walked = np.concatenate([camera.walk(piece) for piece in pieces])
    whole = roll_out_actions(",".join(pieces), scheme=scheme, rotation_speed_deg=1.5)
    assert np.array_equal(walked, whole.poses[1:])


def test_a_wrong_string_leaves_the_camera_where_it_is() -> None:
    camera, other = ActionWalk(), ActionWalk()
    camera.walk("w-3")
    other.walk("w-3")
    with pytest.raises(InputError, match="'x'"):
        camera.walk("w-3,x-2")
    assert np.array_equal(camera.walk("d-2"), other.walk("d-2"))
    with pytest.raises(UsageError, match="does not exist"):
        ActionWalk(scheme="nosuch")


def test_rays_of_a_growing_path_are_those_of_the_whole() -> None:
    poses = roll_out_actions("w-12,wd-12,ia-24").poses  # 49 frames, 13 latents
    whole = camera_rays(poses, np.repeat(LENS[None], 49, axis=0), size=SIZE, ratios=RATIOS)
    live = LiveRays(LENS, size=SIZE, ratios=RATIOS)
    live.append(poses[:1])
    for chunk, end in (
        (BlockSpan(0, 0, 4), 13),
        (BlockSpan(1, 4, 7), 25),
        (BlockSpan(2, 7, 13), 49),
    ):
        with pytest.raises(UsageError, match=f"needs {end} camera poses"):
            live.raymap(chunk.start, chunk.stop)
        live.append(poses[len(live.poses) : end])
        span = (chunk.start, chunk.stop)
        assert np.array_equal(live.raymap(*span), whole.raymap(*span))
        assert np.array_equal(live.chunk_plucker(*span), whole.chunk_plucker(*span))
    assert np.array_equal(live.poses, poses)


def test_only_rigid_poses_are_taken() -> None:
    live = LiveRays(LENS, size=SIZE, ratios=RATIOS)
    eye = np.eye(4, dtype=np.float32)
    bad = {
        "shape": eye,
        "NaN": eye[None] * np.nan,
        "no rotation": np.diag([2, 1, 1, 1])[None],
        "no rotation and": np.diag([-1, 1, 1, 1])[None],
    }
    for text, poses in bad.items():
        with pytest.raises(UsageError, match=text):
            live.append(poses)
    assert len(live.poses) == 0


def test_open_chunks_are_those_of_every_clip() -> None:
    spans = OpenChunks(3)
    for frames in (4, 7, 31, 61):
        plan = plan_chunks(frames, 3)
        assert [spans[i] for i in range(len(plan))] == plan


def test_blocks_equal_those_of_the_path_given_in_advance(
    pipe: Pipeline, cache: Path, tmp_path: Path
) -> None:
    live = pixels(fly(pipe, cache, ["w", "wd", "a", "a"]))
    done = command(
        "refine", "--image", TINY / "first.png", "--prompt", PROMPT, "--fov-x", 90,
        "--action", "w-12,wd-12,a-24", "--num-frames", 49, "-o", tmp_path / "x.mp4",
        "--frames-dir", tmp_path / "frames",
    )  # fmt: skip
    assert done.code == 0, done.err
    given = np.stack(
        [read_image(p, notes=Notes()) for p in sorted((tmp_path / "frames").iterdir())]
    )
    assert np.array_equal(live, given)


def test_the_keys_change_the_pixels_from_their_block_on(pipe: Pipeline, cache: Path) -> None:
    ahead, turned = fly(pipe, cache, ["w", "w", "w"]), fly(pipe, cache, ["w", "d", "w"])
    assert [c.first for c in ahead] == [1, 13, 25]
    assert np.array_equal(ahead[0].frames, turned[0].frames)
    for number in (1, 2):
        assert (ahead[number].frames != turned[number].frames).any()


def test_memory_does_not_grow_with_the_clip(pipe: Pipeline, cache: Path) -> None:
    """The refiner's cache is allocated once; stage 1's state is full after three chunks."""
    from sanawm.stage1 import sampler

    sizes = []
    commit = sampler.Stage1State.commit

    def watched(self: sampler.Stage1State, *arguments: object, **more: object) -> None:
        commit(self, *arguments, **more)  # type: ignore[arg-type]
        sizes.append(self.nbytes)

    patch = pytest.MonkeyPatch()
    patch.setattr(sampler.Stage1State, "commit", watched)
    try:
        fly(pipe, cache, ["w", "d", "w", "a", "w", "w"])
    finally:
        patch.undo()
    assert len(set(sizes[3:])) == 1


def test_a_wrong_step_changes_nothing(pipe: Pipeline, cache: Path) -> None:
    live, camera = session(pipe, cache), ActionWalk()
    poses = camera.walk("w-12")
    for bad in (poses[:5], np.concatenate([poses, poses]), poses * np.nan):
        with pytest.raises(UsageError):
            live.step(bad)
    assert len(live.poses) == 1
    first = live.step(poses)
    assert np.array_equal(first.frames, fly(pipe, cache, ["w"])[0].frames)
    assert len(live.poses) == 13


UNSTEERABLE = {
    "refiner.sink_size=2": "sink of 2",
    'refiner.mode="single-shot"': "whole clip",
    'stage1.noise="reference"': "whole clip",
    "refiner.block_size=4": "differ from stage 1's chunks",
    "video.height=60": "height 60",
}


@pytest.mark.parametrize("setting", UNSTEERABLE)
def test_settings_that_cannot_be_steered_are_refused(setting: str) -> None:
    pipe = Pipeline.from_config("tiny", sets=[setting])
    with pytest.raises(UsageError, match=UNSTEERABLE[setting]):
        sanawm.LiveSession(pipe, np.zeros((64, 96, 3), np.uint8), PROMPT)


def test_single_shot_mode_has_no_open_end() -> None:
    pipe = Pipeline.from_config("tiny", sets=['refiner.mode="single-shot"'])
    shape = LatentShape(1, 16, 1, 8, 12)
    with pytest.raises(UsageError, match="no open end"):
        pipe.refine(iter([torch.zeros(1)]), None, shape=shape, open_ended=True)  # type: ignore[arg-type]


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "flight.mp4"
    monkeypatch.setattr(sys, "argv", ["steer_live.py", str(out), "3"])
    made = runpy.run_path(str(ROOT / "examples/steer_live.py"))
    assert VideoReader(out).frame_count == 36
    assert np.load(out.with_suffix(".npy")).shape == (37, 4, 4)
    said = capsys.readouterr().out
    assert said.count(": keys ") == 3
    pilot = made["pilot"]
    frames = np.zeros((1, 8, 16, 3), np.uint8)
    assert pilot(frames) == "d"
    frames[0, :, 12] = (200, 0, 0)
    assert pilot(frames) == "wd"
    frames[0, :, :4] = (250, 0, 0)
    assert pilot(frames) == "wa"
