"""`sanawm compare` finds the smallest difference, names what it is, and calls equal files equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sanawm.comparison import BlockPlan, clips, compare, compare_paths
from sanawm.io.image import read_image
from sanawm.io.reader import VideoReader
from sanawm.notes import Notes
from tests.cli.command import sanawm
from tests.tools.clips import (
    BLOCK,
    FRAMES,
    HEIGHT,
    WIDTH,
    latents,
    moving,
    write_latents,
    write_lossless,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lossless(tmp_path_factory.mktemp("a") / "a.mkv", moving())


def report(a: Path, b: Path, *more: object) -> dict[str, Any]:
    done = sanawm("compare", a, b, "--json", *more)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    return found


def test_equal_files_are_equal(original: Path, tmp_path: Path) -> None:
    again = write_lossless(tmp_path / "b.mkv", moving())
    found = report(original, again, "--block-frames", BLOCK)
    assert found["equal"] is True
    assert found["differing_frames"] == found["max_error"] == found["mean_error"] == 0
    assert (found["psnr"], found["ssim"]) == (None, 1.0)
    assert [b["max_error"] for b in found["blocks"]] == [0, 0, 0]
    done = sanawm("compare", original, again, "--atol", 0, "--psnr-min", 99, "--ssim-min", 1)
    assert done.code == 0
    assert f"equal: all {FRAMES} frames, bit for bit" in done.out


def test_one_level_in_one_pixel_is_found(original: Path, tmp_path: Path) -> None:
    frames = moving()
    frames[17, 5, 7, 1] += 1
    changed = write_lossless(tmp_path / "b.mkv", frames)
    found = report(original, changed, "--block-frames", BLOCK)
    assert found["equal"] is False
    assert (found["differing_frames"], found["first_difference"]) == (1, 17)
    assert found["worst"] == {"frame": 17, "place": [5, 7, 1]}
    assert found["max_error"] == 1
    assert found["mean_error"] == pytest.approx(1 / frames.size)
    square = 1 / frames.size
    assert found["psnr"] == pytest.approx(10 * np.log10(255**2 / square))
    assert [b["max_error"] for b in found["blocks"]] == [0, 1, 0]
    done = sanawm("compare", original, changed, "--atol", 0)
    assert done.code == 1
    assert "frame 17, row 5, column 7, green" in done.out
    assert "an error of 1 is above 0" in done.error


def test_shifted_frames_are_named(original: Path, tmp_path: Path) -> None:
    frames = moving()
    late, early = frames.copy(), frames.copy()
    late[20:] = frames[19:-1]
    early[10:20] = frames[11:21]
    found = report(original, write_lossless(tmp_path / "late.mkv", late))
    assert found["equal"] is False
    assert found["shifted"] == {"before": list(range(20, FRAMES)), "after": []}
    found = report(original, write_lossless(tmp_path / "early.mkv", early))
    assert found["shifted"] == {"before": [], "after": list(range(10, 20))}
    text = sanawm("compare", original, tmp_path / "late.mkv").out
    assert "late: 17 frames from 20 to 36 of B show what A shows a frame earlier" in text


def test_a_seam_at_block_borders_is_named(original: Path, tmp_path: Path) -> None:
    frames = moving().astype(int)
    frames[1 + BLOCK : 1 + 2 * BLOCK] += 6
    seam = write_lossless(tmp_path / "b.mkv", np.clip(frames, 0, 255).astype(np.uint8))
    found = report(original, seam, "--block-frames", BLOCK)
    assert found["seams"] == ["B"]
    assert found["flicker"]["a"]["ratio"] == pytest.approx(1, abs=0.1)
    assert found["flicker"]["b"]["ratio"] > 1.3
    assert [round(b["jump_a"] or 0) for b in found["blocks"]] == [0, 1, 1]
    assert (
        "B jumps at block borders" in sanawm("compare", original, seam, "--block-frames", BLOCK).out
    )
    text = sanawm("compare", original, seam, "--block-frames", BLOCK).out
    assert "no failure by itself (1 is even), but B has more of it" in text
    both = sanawm("compare", seam, seam, "--block-frames", BLOCK).out
    assert "A and B jump at block borders" in both
    assert "no failure (1 is even): A and B have it alike" in both
    inside = moving().astype(int)
    inside[18:] += 6  # as large, but not at a border
    other = write_lossless(tmp_path / "c.mkv", np.clip(inside, 0, 255).astype(np.uint8))
    assert report(original, other, "--block-frames", BLOCK)["seams"] == []


def test_flicker_is_the_step_across_over_the_step_inside() -> None:
    still = np.zeros((7, 2, 2, 3))
    still[4:] = 9  # blocks of 4, 3
    rows = measured(still, still)
    flicker = compare.flicker_of(rows, BlockPlan(4, 3), clip="a")
    assert (flicker.border, flicker.inside, flicker.ratio) == (9, 0, np.inf)
    assert flicker.as_dict()["ratio"] is None
    moved = still + np.arange(7)[:, None, None, None]
    flicker = compare.flicker_of(measured(moved, still), BlockPlan(4, 3), clip="a")
    assert (flicker.border, flicker.inside, flicker.ratio) == (10, 1, 10)


def measured(a: np.ndarray, b: np.ndarray) -> list[Any]:
    measure = compare._Measure(peak=255.0, pictures=False)
    for number, pair in enumerate(zip(a, b, strict=True)):
        measure.add(number, *(frame.transpose(2, 0, 1) for frame in pair))
    return measure.finish()


def test_blocks_are_counted_like_the_run_counts_them() -> None:
    assert BlockPlan.of_size(12, 97) == (13, 12)
    assert BlockPlan.of_size(12, 96) == (12, 12)
    assert BlockPlan.parse("[4, 3]") == (4, 3)
    for odd in (None, "", "[]", "[0, 3]", "x", 3, [1, "a"], "[1,2,3]"):
        assert BlockPlan.parse(odd) is None
    plan = BlockPlan(13, 12)
    assert [plan.block_of(f) for f in (0, 12, 13, 24, 25)] == [0, 0, 1, 1, 2]
    assert [f for f in range(40) if plan.starts(f)] == [13, 25, 37]


def test_our_files_tell_their_blocks(run: Path) -> None:
    found = report(run / "out.mp4", run / "frames")
    assert found["block_frames"] == [12, 12]
    assert [(b["first"], b["last"]) for b in found["blocks"]] == [(0, 11), (12, 23)]
    assert found["ssim"] > 0.9  # what H.264 leaves of the PNG frames
    found = report(run / "refined.safetensors", run / "refined.safetensors")
    assert found["block_frames"] == [4, 3]
    assert found["equal"] is True


def test_latents_are_compared_by_value(tmp_path: Path) -> None:
    values = latents()
    a = write_latents(tmp_path / "a.safetensors", values)
    changed = values.clone()
    changed[0, 5, 3, 2, 1] += 0.25
    b = write_latents(tmp_path / "b.safetensors", changed)
    found = report(a, b, "--block-frames", 3)
    assert found["kind"] == "latents"
    assert found["worst"] == {"frame": 3, "place": [5, 2, 1]}
    assert found["max_error"] == pytest.approx(0.25)
    assert found["peak"] == pytest.approx(float(values.max() - values.min()))
    square = 0.25**2 / values.numel()
    assert found["psnr"] == pytest.approx(10 * np.log10(found["peak"] ** 2 / square), abs=1e-4)
    assert [b["max_error"] > 0 for b in found["blocks"]] == [True, False]
    assert found["ssim"] < 1
    assert sanawm("compare", a, b, "--atol", 0.3).code == 0
    assert sanawm("compare", a, b, "--atol", 0.2).code == 1


def test_bits_and_dtypes_count(tmp_path: Path) -> None:
    values = latents().half().float()
    values[0, 0, 0, 0, 0] = 0.0
    minus = values.clone()
    minus[0, 0, 0, 0, 0] = -0.0
    a = write_latents(tmp_path / "a.safetensors", values)
    for name, other in (("half", values.half()), ("minus zero", minus)):
        b = write_latents(tmp_path / f"{name}.safetensors", other)
        found = report(a, b)
        assert (found["equal"], found["max_error"]) == (False, 0), name
        assert sanawm("compare", a, b, "--atol", 0).code == 0
    brain = write_latents(tmp_path / "bf16.safetensors", latents().bfloat16())
    assert report(brain, brain)["equal"] is True


def test_a_shorter_clip_is_compared_as_far_as_it_goes(original: Path, tmp_path: Path) -> None:
    short = write_lossless(tmp_path / "b.mkv", moving()[:30])
    done = sanawm("compare", original, short, "--json")
    assert done.code == 0
    assert done.json["equal"] is False
    assert done.json["frames"] == {"a": FRAMES, "b": 30, "compared": 30}
    assert done.json["max_error"] == 0
    assert len(done.json["changes"]) == 1
    assert "the first 30 are compared" in done.err
    for threshold in (("--psnr-min", 10), ("--ssim-min", 0.1), ("--atol", 255)):
        done = sanawm("compare", original, short, *threshold)
        assert done.code == 1
        assert "37 and 30 frames: no threshold is met" in done.error


def test_thresholds_decide_the_exit_code(original: Path, tmp_path: Path) -> None:
    noisy = moving().astype(int) + np.random.default_rng(0).integers(-3, 4, moving().shape)
    b = write_lossless(tmp_path / "b.mkv", np.clip(noisy, 0, 255).astype(np.uint8))
    found = report(original, b)
    for flag, value in (("--psnr-min", found["psnr"]), ("--ssim-min", found["ssim"])):
        assert sanawm("compare", original, b, flag, value - 1e-3).code == 0
        done = sanawm("compare", original, b, flag, value + 1e-3, "--json")
        assert (done.code, done.json["status"]) == (1, "failed")
        assert len(done.json["failed"]) == 1
    assert sanawm("compare", original, b, "--atol", 3).code == 0
    assert sanawm("compare", original, b, "--atol", 2.9).code == 1


def test_what_cannot_be_compared_is_refused(original: Path, tmp_path: Path) -> None:
    small = write_lossless(tmp_path / "small.mkv", moving(height=24))
    z = write_latents(tmp_path / "z.safetensors", latents())
    narrow = write_latents(tmp_path / "n.safetensors", latents()[..., :4])
    nan = write_latents(tmp_path / "nan.safetensors", latents() * torch.nan)
    (tmp_path / "empty").mkdir()
    pairs = {
        (original, small): (2, "48x32"),
        (original, z): (2, "latents"),
        (z, narrow): (2, "8x6 with 16 channels"),
        (z, nan): (2, "NaN"),
        (original, tmp_path / "missing.mp4"): (3, "no such file"),
        (original, tmp_path / "empty"): (3, "no pictures"),
    }
    for (a, b), (code, text) in pairs.items():
        done = sanawm("compare", a, b)
        assert (done.code, done.out) == (code, ""), b
        assert text in done.error
    assert sanawm("compare", original, original, "--overwrite").code == 2
    assert sanawm("compare", original, original, "--block-frames", 0).code == 2
    done = sanawm("compare", original, original, "--psnr-min", "nan")
    assert (done.code, "use --psnr-min 30, say" in done.error) == (2, True)
    assert sanawm("compare", z, z, "--side-by-side", tmp_path / "s.mp4").code == 2
    assert not (tmp_path / "s.mp4").exists()


def test_side_by_side_has_a_left_and_b_right(original: Path, tmp_path: Path) -> None:
    dark = write_lossless(tmp_path / "b.mkv", moving() // 2)
    target = tmp_path / "both.mp4"
    found = report(original, dark, "--side-by-side", target)
    assert found["outputs"] == [str(target)]
    frames = np.stack(list(VideoReader(target).frames()))
    assert frames.shape == (FRAMES, HEIGHT, 2 * WIDTH, 3)
    expected = np.concatenate([moving(), moving() // 2], axis=2).astype(float)
    assert np.abs(frames - expected).mean() < 6
    done = sanawm("compare", original, dark, "--side-by-side", target)
    assert done.code == 5
    same = sanawm("compare", original, dark, "--side-by-side", original, "--overwrite")
    assert same.code == 2  # never over an input


def test_odd_heights_get_a_line(tmp_path: Path) -> None:
    a = write_lossless(tmp_path / "a.mkv", moving(3, height=31))
    done = sanawm("compare", a, a, "--side-by-side", tmp_path / "s.mp4")
    assert done.code == 0
    assert "one black line is added" in done.err
    assert VideoReader(tmp_path / "s.mp4").height == 32


def test_the_plot_is_a_picture(original: Path, tmp_path: Path) -> None:
    target = tmp_path / "plot.png"
    report(original, original, "--block-frames", BLOCK, "--plot", target)
    pixels = read_image(target, notes=Notes())
    assert pixels.shape == (760, 1100, 3)
    yellow = (np.abs(pixels.astype(int) - (242, 177, 52)).sum(-1) < 60).sum(0)
    assert (yellow > 300).sum() >= 2  # the two block borders, through all three parts
    assert sanawm("compare", original, original, "--plot", target).code == 5
    assert sanawm("compare", original, original, "--plot", tmp_path / "x.pdf").code == 2


def test_the_clips_are_read_frame_by_frame(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = {"a": 0, "b": 0}
    ahead = []
    opened = iter("ab")

    def counted(path: Path, *, notes: Notes) -> clips.Clip:
        name, clip = next(opened), clips.open_clip(path, notes=notes)

        def frames() -> Iterator[np.ndarray]:
            for frame in clip.frames():
                read[name] += 1
                ahead.append(abs(read["a"] - read["b"]))
                yield frame

        return replace(clip, frames=frames)

    monkeypatch.setattr(compare, "open_clip", counted)
    assert compare_paths(original, original).equal
    assert read == {"a": FRAMES, "b": FRAMES}
    assert max(ahead) == 1
