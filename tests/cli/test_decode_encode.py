"""`sanawm decode` and `sanawm encode`: the half runs, alone and chained to the main job."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.io.clips import encode_plain, moving_clip

from .command import (
    CHANNELS,
    SPACE,
    STRIDE,
    TIME,
    pixel_frames,
    pngs,
    refined,
    sanawm,
    video_frames,
)
from .conftest import LATENTS, Run, make_latents, save_latents

FRAMES = pixel_frames(LATENTS[0])


def metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


# decode


def test_decoding_saved_latents_gives_the_frames_of_the_run(in_tmp: Path, run: Run) -> None:
    z = run.folder / "refined.safetensors"
    done = sanawm("decode", z, "-o", "d.mp4", "--drop-first-frame", "--frames-dir", "f")
    assert (done.code, done.out) == (0, "d.mp4\n")
    np.testing.assert_array_equal(pngs(Path("f")), pngs(run.folder / "frames"))
    np.testing.assert_array_equal(video_frames(Path("d.mp4")), video_frames(run.video))
    assert "(growing as d.part.mp4)" in done.err
    assert f"done: {FRAMES - 1} frames -> d.mp4" in done.err


def test_decode_keeps_the_first_frame_by_default(in_tmp: Path, run: Run) -> None:
    z = run.folder / "refined.safetensors"
    done = sanawm("decode", z, "-o", "d.mp4", "--frames-dir", "f", "--log-format", "json")
    assert done.json["frames_written"] == FRAMES
    assert {"run_start", "chunk_done", "run_done"} <= {e["event"] for e in done.events}
    frames = pngs(Path("f"))
    assert len(frames) == len(video_frames(Path("d.mp4"))) == FRAMES
    np.testing.assert_array_equal(frames[1:], pngs(run.folder / "frames"))


def test_clean_latents_decode_without_refining(in_tmp: Path, latents: Path) -> None:
    """Refiner or VAE at fault? Each stage runs alone."""
    assert sanawm("decode", latents, "-o", "d.mp4").code == 0
    with av.open("d.mp4") as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (LATENTS[2] * SPACE, LATENTS[1] * SPACE)
        assert stream.frames == FRAMES


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_any_number_of_latent_frames_is_decoded(in_tmp: Path, frames: int) -> None:
    z = save_latents(in_tmp / "z.safetensors", make_latents(frames, *LATENTS[1:]))
    assert sanawm("decode", z, "-o", "d.mp4").code == 0
    assert len(video_frames(Path("d.mp4"))) == pixel_frames(frames)


def test_the_rate_is_the_flags_else_the_files_else_the_presets(in_tmp: Path, latents: Path) -> None:
    save_file({"latents": refined(latents)}, "z.safetensors", metadata={"fps": "24000/1001"})

    def rate(*arguments: object) -> tuple[Fraction | None, str]:
        done = sanawm("decode", *arguments, "-o", "d.mp4", "--overwrite")
        assert done.code == 0
        with av.open("d.mp4") as container:
            return container.streams.video[0].average_rate, done.err

    found, text = rate("z.safetensors")
    assert found == Fraction(24000, 1001)
    assert "note: z.safetensors: 23.976 frames per second, from the latents file" in text
    assert rate("z.safetensors", "--fps", 12)[0] == 12
    assert rate(latents)[0] == 16
    save_file({"latents": refined(latents)}, "bad.safetensors", metadata={"fps": "fast"})
    done = sanawm("decode", "bad.safetensors", "-o", "e.mp4")
    assert done.code == 2
    assert "bad.safetensors: in its metadata, frame rate 'fast'" in done.error


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("z.safetensors",), 2, "no output"),
        ((), 2, "Missing argument 'LATENTS'"),
        (("no.safetensors", "-o", "d.mp4"), 3, "no.safetensors: no such file"),
        (("z.safetensors", "-o", "d.mkv"), 2, "use d.mp4"),
        (("z.safetensors", "-o", "no/d.mp4"), 5, "mkdir -p no"),
        (("z.safetensors", "-o", "there.mp4"), 5, "there.mp4 exists"),
        (("z.safetensors", "-o", "d.mp4", "--encoder", "nosuch"), 4, "'nosuch'"),
        (("z.safetensors", "-o", "d.mp4", "--crf", 99), 2, "--crf"),
        (("z.safetensors", "-o", "d.mp4", "--frames-dir", "d.mp4"), 2, "named twice"),
        (("z.safetensors", "-o", "d.mp4", "--device", "cuda:77"), 4, "cuda:77"),
        (("nan.safetensors", "-o", "d.mp4", "--frames-dir", "f"), 2, "nan.safetensors"),
        (("two.safetensors", "-o", "d.mp4"), 2, "a batch of 2"),
        (("turned.safetensors", "-o", "d.mp4"), 2, "axis order"),
        (("z.safetensors", "-o", "d.mp4", "--set", "model.vae=/no"), 3, "/no"),
    ],
    ids=str,
)
def test_decode_refuses(in_tmp: Path, arguments: tuple[object, ...], code: int, words: str) -> None:
    z = make_latents(4, *LATENTS[1:])
    save_latents(in_tmp / "z.safetensors", z)
    save_latents(in_tmp / "two.safetensors", torch.cat((z, z)))
    save_latents(in_tmp / "turned.safetensors", z.transpose(1, 2))
    z[0, 0, 0, 0, 0] = float("nan")
    save_latents(in_tmp / "nan.safetensors", z)
    Path("there.mp4").touch()
    before = sorted(Path().iterdir())
    done = sanawm("decode", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.error
    assert sorted(Path().iterdir()) == before


# encode


def test_a_picture_becomes_one_latent_frame(in_tmp: Path) -> None:
    iio.imwrite("p.png", moving_clip(1, width=96, height=64)[0])
    done = sanawm("encode", "p.png", "-o", "z.safetensors")
    assert (done.code, done.out) == (0, "z.safetensors\n")
    assert refined(Path("z.safetensors")).shape == (1, CHANNELS, 1, 64 // SPACE, 96 // SPACE)
    assert "done: latents (1, 16, 1, 8, 12) -> z.safetensors" in done.err


def test_a_picture_of_another_shape_is_fitted_with_a_line(in_tmp: Path) -> None:
    iio.imwrite("p.png", moving_clip(1, width=100, height=100)[0])
    done = sanawm("encode", "p.png", "-o", "z.safetensors", "--height", 48, "--width", 64)
    assert done.code == 0
    assert "note: p.png: resized 100x100 to 64x64, cropped to 64x48: 25 % is cut off" in done.err
    assert refined(Path("z.safetensors")).shape[3:] == (48 // SPACE, 64 // SPACE)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (("--height", 65), ("height 65", f"multiple of {SPACE}", "--height 64 or 72")),
        (("--width", 95), ("width 95", "--width 88 or 96")),
        (("--height", 8), ("height 8", f"at least {2 * SPACE}", "--height 16")),
    ],
)
def test_sizes_that_do_not_fit_name_the_two_nearest(
    in_tmp: Path, size: tuple[object, ...], words: tuple[str, ...]
) -> None:
    iio.imwrite("p.png", moving_clip(1)[0])
    encode_plain(Path("v.mp4"), moving_clip(14))
    for arguments in (
        ("encode", "p.png", "-o", "z.safetensors"),
        ("encode", "v.mp4", "-o", "z.safetensors"),
        ("refine", "--video", "v.mp4", "-o", "o.mp4"),
    ):
        done = sanawm(*arguments, *size)
        assert done.code == 2
        for word in words:
            assert word in done.error


def test_a_video_becomes_latents_with_its_rate(in_tmp: Path) -> None:
    encode_plain(Path("v.mp4"), moving_clip(23, width=64, height=48), fps=Fraction(30000, 1001))
    done = sanawm("encode", "v.mp4", "-o", "z.safetensors")
    assert done.code == 0
    assert f"note: v.mp4: 23 frames trimmed to 21, a clip has {TIME}*k + 1 frames" in done.err
    z = refined(Path("z.safetensors"))
    assert z.shape == (1, CHANNELS, 6, 48 // SPACE, 64 // SPACE)
    assert metadata(Path("z.safetensors"))["fps"] == "30000/1001"


def test_num_frames_caps_a_video(in_tmp: Path) -> None:
    encode_plain(Path("v.mp4"), moving_clip(23, width=64, height=48))
    args = ("encode", "v.mp4", "--num-frames", 9)
    assert sanawm(*args, "-o", "z.safetensors").code == 0
    assert refined(Path("z.safetensors")).shape[2] == 3
    done = sanawm("encode", "v.mp4", "--num-frames", 10, "-o", "y.safetensors")
    assert f"note: 10 frames asked: 9 are used, a clip has {TIME}*k + 1 frames" in done.err


def test_encoding_twice_gives_the_same_bits_and_decoding_the_same_shape(in_tmp: Path) -> None:
    encode_plain(Path("v.mp4"), moving_clip(1 + STRIDE, width=64, height=48))
    for name in ("a", "b"):
        assert sanawm("encode", "v.mp4", "-o", f"{name}.safetensors").code == 0
    assert torch.equal(refined(Path("a.safetensors")), refined(Path("b.safetensors")))
    assert sanawm("decode", "a.safetensors", "-o", "d.mp4").code == 0
    assert video_frames(Path("d.mp4")).shape == video_frames(Path("v.mp4")).shape


def test_encoded_latents_refine_like_the_video_itself(in_tmp: Path) -> None:
    encode_plain(Path("v.mp4"), moving_clip(1 + STRIDE, width=64, height=48))
    assert sanawm("encode", "v.mp4", "-o", "z.safetensors").code == 0
    common = ("refine", "--no-video", "--set", "input.action=")
    for name, source in (("a", ("--video", "v.mp4")), ("b", ("--latents", "z.safetensors"))):
        assert sanawm(*common, *source, "--save-latents", f"{name}.safetensors").code == 0
    a, b = refined(Path("a.safetensors")), refined(Path("b.safetensors"))
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)  # other chunks, other summation


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("p.png",), 2, "no output"),
        (("no.png", "-o", "z.safetensors"), 3, "no.png: no such file"),
        (("no.mp4", "-o", "z.safetensors"), 3, "no.mp4: no such file"),
        (("text.png", "-o", "z.safetensors"), 2, "text.png"),
        (("text.mp4", "-o", "z.safetensors"), 2, "text.mp4: not a video"),
        (("p.png", "-o", "z.mp4"), 2, "use z.safetensors"),
        (("p.png", "-o", "there.safetensors"), 5, "there.safetensors exists"),
        (("p.png", "-o", "z.safetensors", "--set", "model.vae=/no"), 3, "/no"),
        (("p.png", "-o", "z.safetensors", "--precision", "fp8"), 2, "--precision fp8: expected"),
    ],
    ids=str,
)
def test_encode_refuses(in_tmp: Path, arguments: tuple[object, ...], code: int, words: str) -> None:
    iio.imwrite("p.png", moving_clip(1)[0])
    Path("text.png").write_text("no picture")
    Path("text.mp4").write_text("no video")
    Path("there.safetensors").touch()
    before = sorted(Path().iterdir())
    done = sanawm("encode", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.error
    assert sorted(Path().iterdir()) == before
