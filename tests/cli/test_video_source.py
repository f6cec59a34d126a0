"""`sanawm refine --video`: every change made to the clip is a line, on stderr and in the report."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from tests.io.clips import encode_plain, moving_clip

from .command import (
    CHANNELS,
    SPACE,
    STRIDE,
    pixel_frames,
    refined,
    report_of,
    sanawm,
    video_frames,
)

PLAIN = ("--set", "input.action=")
SMALL = ("--height", 48, "--width", 64)


@pytest.fixture
def clip(in_tmp: Path) -> Path:
    """A real MP4 of 40 frames, 160x120, 25 frames a second."""
    return encode_plain(in_tmp / "v.mp4", moving_clip(40, width=160, height=120), fps=Fraction(25))


def test_size_crop_frames_and_rate_are_said(clip: Path) -> None:
    done = sanawm("refine", "--video", clip, "--height", 64, "--width", 96, "-o", "o.mp4", *PLAIN)
    assert done.code == 0
    report = report_of(Path("o.mp4"))
    lines = (
        f"{clip}: 25 frames per second, from the video (preset tiny says 16)",
        f"{clip}: resized 160x120 to 96x72, cropped to 96x64: 11 % is cut off",
        f"{clip}: 40 frames trimmed to 37, a clip has {STRIDE}*k + 1 frames",
    )
    for line in lines:
        assert f"note: {line}" in done.err
    assert report["changes"] == list(lines)
    assert report["frames"] == {
        "asked": None, "decoded": 37, "written": 36, "dropped": 1, "first_pose": 1,
    }  # fmt: skip
    for key, value in {"video.fps": 25, "video.num_frames": 37}.items():
        assert report["settings"][key] == {"value": value, "origin": f"video {clip}"}
    assert report["settings"]["video.height"] == {"value": 64, "origin": "--height"}
    assert [row["input"] for row in report["inputs"]] == ["video"]
    with av.open("o.mp4") as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (96, 64, 25)
    assert len(video_frames(Path("o.mp4"))) == 36
    assert {"encode", "refine", "decode", "write"} <= {s["stage"] for s in report["timeline"]}
    assert report["memory"]["predicted"]["encoder_weights"] > 0


def test_a_video_that_fits_changes_nothing(in_tmp: Path) -> None:
    frames = moving_clip(STRIDE + 1, width=8 * SPACE, height=6 * SPACE)
    encode_plain(Path("v.mp4"), frames, fps=Fraction(16))
    done = sanawm("refine", "--video", "v.mp4", "-o", "o.mp4", *PLAIN)
    assert done.code == 0
    assert "note:" not in done.err
    assert report_of(Path("o.mp4"))["changes"] == []


def test_the_videos_own_size_is_kept_down_to_whole_latents(clip: Path) -> None:
    args = ("--num-frames", STRIDE + 1, "--no-video", "--save-latents", "r.safetensors", *PLAIN)
    done = sanawm("refine", "--video", clip, *args)
    assert done.code == 0
    assert refined(Path("r.safetensors")).shape == (1, CHANNELS, 4, 120 // SPACE, 160 // SPACE)


def test_a_large_video_is_scaled_to_what_the_preset_bears(in_tmp: Path) -> None:
    encode_plain(Path("v.mp4"), moving_clip(STRIDE + 1, width=640, height=272), fps=Fraction(16))
    done = sanawm("refine", "--video", "v.mp4", "-o", "o.mp4", *PLAIN)
    assert done.code == 0
    with av.open("o.mp4") as container:
        stream = container.streams.video[0]
        assert stream.width * stream.height <= 32768
        assert stream.width % SPACE == stream.height % SPACE == 0
        assert stream.width / stream.height == pytest.approx(640 / 272, rel=0.1)
        size = f"{stream.width}x{stream.height}"
    assert any("resized 640x272" in c and size in c for c in report_of(Path("o.mp4"))["changes"])


def test_a_large_cut_is_a_warning(clip: Path) -> None:
    args = ("--height", 64, "--width", 32, "--num-frames", STRIDE + 1, "-o", "o.mp4", *PLAIN)
    done = sanawm("refine", "--video", clip, *args)
    assert f"warning: {clip}: 62 % of the picture is cut off to fit 32x64" in done.err
    assert any("62 %" in line for line in report_of(Path("o.mp4"))["warnings"])


def test_num_frames_caps_and_snaps(clip: Path) -> None:
    args = ("refine", "--video", clip, *SMALL, *PLAIN)
    done = sanawm(*args, "--num-frames", STRIDE + 2, "-o", "o.mp4")
    assert f"note: {STRIDE + 2} frames asked: {STRIDE + 1} are used" in done.err
    assert len(video_frames(Path("o.mp4"))) == STRIDE
    done = sanawm(*args, "--num-frames", 99, "-o", "p.mp4")
    assert f"note: 99 frames asked ({clip} has 40): 37 are used" in done.err
    assert len(video_frames(Path("p.mp4"))) == 36


def test_the_users_rate_beats_the_videos(clip: Path) -> None:
    args = ("--fps", 10, "--num-frames", STRIDE + 1, "-o", "o.mp4", *SMALL, *PLAIN)
    done = sanawm("refine", "--video", clip, *args)
    assert f"note: {clip}: its 25 frames per second are played as 10" in done.err
    with av.open("o.mp4") as container:
        assert container.streams.video[0].average_rate == 10


def test_resampling_picks_frames_at_the_users_rate(clip: Path) -> None:
    args = ("--fps", 10, "--video-sampling", "resample", "-o", "o.mp4", *SMALL, *PLAIN)
    done = sanawm("refine", "--video", clip, *args)
    assert done.code == 0, done.err
    assert f"note: {clip}: 40 frames at 25 resampled to 16 at 10 (24 skipped, 0 repeated)" in (
        done.err
    )
    assert len(video_frames(Path("o.mp4"))) == STRIDE


def test_frames_are_encoded_in_order_without_the_rest(in_tmp: Path) -> None:
    """The first blocks do not depend on how long the video is."""
    frames = moving_clip(3 * STRIDE + 1, width=64, height=48)
    encode_plain(Path("long.mp4"), frames, crf=0)
    encode_plain(Path("short.mp4"), frames[: STRIDE + 1], crf=0)
    for name in ("long", "short"):
        args = ("--video", f"{name}.mp4", "--save-latents", f"{name}.safetensors", "--no-video")
        assert sanawm("refine", *args, *PLAIN).code == 0
    long, short = (refined(Path(f"{n}.safetensors")) for n in ("long", "short"))
    assert torch.equal(short, long[:, :, :4])


def test_a_video_that_is_too_short(in_tmp: Path) -> None:
    encode_plain(Path("v.mp4"), moving_clip(STRIDE, width=64, height=48))
    done = sanawm("refine", "--video", "v.mp4", "-o", "o.mp4", *PLAIN)
    assert done.code == 2
    assert f"v.mp4: {STRIDE} frames make less than one block" in done.error
    assert f"at least {STRIDE + 1}" in done.error


def test_a_video_that_is_cut_short_gives_what_is_there(in_tmp: Path) -> None:
    encode_plain(
        Path("v.mkv"), np.random.default_rng(0).integers(0, 255, (40, 48, 64, 3), np.uint8)
    )
    data = Path("v.mkv").read_bytes()
    Path("v.mkv").write_bytes(data[: len(data) * 3 // 4])
    done = sanawm("refine", "--video", "v.mkv", "-o", "o.mp4", *PLAIN)
    assert done.code == 0, done.err
    assert len(video_frames(Path("o.mp4"))) in (STRIDE, 2 * STRIDE)


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("no.mp4", None, 3, "no.mp4: no such file"),
        ("text.mp4", b"no video", 2, "text.mp4: not a video"),
        ("empty.mp4", b"", 2, "empty.mp4"),
    ],
)
def test_files_that_are_no_video(
    in_tmp: Path, name: str, content: bytes | None, code: int, words: str
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    done = sanawm("refine", "--video", name, "-o", "o.mp4", *PLAIN)
    assert done.code == code
    assert words in done.error
    assert not Path("o.mp4").exists()


# The camera is recorded, it changes no pixel


def test_a_camera_is_checked_and_recorded_but_changes_no_pixel(clip: Path) -> None:
    frames = pixel_frames(4)
    poses = np.tile(np.eye(4, dtype=np.float32), (frames + 3, 1, 1))
    poses[:, 0, 3] = np.linspace(0, 1, len(poses))
    np.save("c.npy", poses)
    common = ("refine", "--video", clip, "--num-frames", frames, *SMALL)
    with_camera = ("--camera", "c.npy", "--save-camera", "s.npy", "-o", "a.mp4")
    done = sanawm(*common, *with_camera)
    assert done.code == 0
    assert f"{len(poses)} poses, the first {frames} are used" in done.err
    assert sanawm(*common, *PLAIN, "-o", "b.mp4").code == 0
    np.testing.assert_array_equal(video_frames(Path("a.mp4")), video_frames(Path("b.mp4")))
    camera = report_of(Path("a.mp4"))["camera"]
    assert camera["source"].startswith("c.npy")
    assert camera["changes_pixels"] is False
    assert report_of(Path("b.mp4"))["camera"] is None
    saved = np.load("s.npy")
    assert saved.dtype == np.float32
    np.testing.assert_array_equal(saved, poses[:frames])


def test_hold_last_and_resample_make_a_short_path_fit(clip: Path) -> None:
    frames = pixel_frames(4)
    poses = np.tile(np.eye(4, dtype=np.float32), (5, 1, 1))
    poses[:, 2, 3] = np.arange(5)
    np.save("c.npy", poses)
    common = ("refine", "--video", clip, *SMALL, "--num-frames", frames, "--camera", "c.npy")
    done = sanawm(*common, "--hold-last", "--save-camera", "held.npy", "-o", "a.mp4")
    assert done.code == 0
    assert f"5 poses, the last is held up to frame {frames - 1}" in done.err
    np.testing.assert_array_equal(np.load("held.npy")[:, 2, 3], np.minimum(np.arange(frames), 4))
    done = sanawm(*common, "--resample", "clip", "--save-camera", "even.npy", "-o", "b.mp4")
    assert done.code == 0
    even = np.load("even.npy")[:, 2, 3]
    np.testing.assert_allclose(even, np.linspace(0, 4, frames), atol=1e-5)


def test_a_saved_camera_is_taken_again(clip: Path) -> None:
    poses = np.tile(np.eye(4, dtype=np.float32), (STRIDE + 1, 1, 1))
    poses[:, 0, 3] = np.linspace(0, 0.3, len(poses))
    np.save("c.npy", poses)
    common = ("refine", "--video", clip, "--num-frames", STRIDE + 1, *SMALL)
    assert sanawm(*common, "--camera", "c.npy", "--save-camera", "d.npy", "-o", "a.mp4").code == 0
    assert sanawm(*common, "--camera", "d.npy", "--save-camera", "e.npy", "-o", "b.mp4").code == 0
    assert Path("d.npy").read_bytes() == Path("e.npy").read_bytes()


def test_a_presets_path_that_does_not_fit_is_left_out_with_a_line(in_tmp: Path) -> None:
    frames = 9 * STRIDE + 1  # longer than the preset's path
    encode_plain(Path("v.mp4"), moving_clip(frames, width=32, height=32), fps=Fraction(16))
    done = sanawm("refine", "--video", "v.mp4", "-o", "o.mp4")
    assert done.code == 0
    assert f"poses, the clip {frames} frames: no camera is recorded" in done.err
    report = report_of(Path("o.mp4"))
    assert report["camera"] is None
    assert any("no camera is recorded" in line for line in report["changes"])
