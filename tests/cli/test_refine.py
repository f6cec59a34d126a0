"""`sanawm refine`: what it writes is what was asked, and what its parts compute."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sanawm.shapes import Window
from sanawm.text.embeddings import PromptEmbeds, load_prompt_embeds
from tests.io.clips import box_names

from . import reference
from .command import (
    CHANNELS,
    SPACE,
    STRIDE,
    TIME,
    pixel_frames,
    pngs,
    refined,
    report_of,
    sanawm,
    video_frames,
)
from .conftest import LATENTS, Run, make_latents, save_latents

FRAMES = pixel_frames(LATENTS[0])
#: The command prepares the model for its block size, which sums in another order.
CLOSE = {"atol": 2e-5, "rtol": 1e-5}
REPORT_KEYS = [
    "schema", "status", "tool", "versions", "device", "command", "settings", "inputs", "weights",
    "seeds", "frames", "blocks", "first_chunk_seconds", "timeline", "memory", "prompt_sha256",
    "compile", "compile_seconds", "steady_seconds_per_block", "steady_realtime_factor",
    "total_seconds", "peak_memory_bytes", "changes", "warnings", "output",
]  # fmt: skip


@pytest.fixture(scope="module")
def prompt(run: Run) -> PromptEmbeds:
    """The embeddings of the run's prompt."""
    return load_prompt_embeds(run.folder / "embeds.safetensors").prompt


# What a run writes


def test_the_video_has_the_frames_that_the_report_states(run: Run) -> None:
    report, frames = report_of(run.video), video_frames(run.video)
    assert len(frames) == report["frames"]["written"] == report["output"]["frames"] == FRAMES - 1
    assert report["frames"] == {
        "asked": None, "decoded": FRAMES, "written": FRAMES - 1, "dropped": 1, "first_pose": 1,
    }  # fmt: skip
    assert run.done.json["frames_written"] == FRAMES - 1
    assert report["output"]["bytes"] == run.video.stat().st_size


def test_the_video_is_an_ordinary_mp4(run: Run) -> None:
    with av.open(str(run.video)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.codec_tag, context.pix_fmt) == ("h264", "avc1", "yuv420p")
        assert (stream.width, stream.height) == (LATENTS[2] * SPACE, LATENTS[1] * SPACE)
        assert stream.average_rate == 16
        assert stream.frames == FRAMES - 1
        frame = next(container.decode(stream))
        tags = (frame.colorspace, frame.color_range, frame.color_primaries, frame.color_trc)
        assert tags == (1, 1, 1, 1)
    assert box_names(run.video) == ["ftyp", "free", "mdat", "moov"]


def test_latents_and_frames_are_what_the_parts_compute(
    run: Run, latents: Path, prompt: PromptEmbeds
) -> None:
    result = refined(run.folder / "refined.safetensors")
    torch.testing.assert_close(result, reference.refine(refined(latents), prompt), **CLOSE)
    frames = reference.decode(result)[1:]
    np.testing.assert_array_equal(pngs(run.folder / "frames"), frames)
    # H.264 halves the colour planes of this noise, and loses little else.
    assert np.abs(coarse(video_frames(run.video)) - coarse(frames)).mean() < 4


def coarse(frames: np.ndarray) -> np.ndarray:
    """Return means of 8x8 pixels."""
    T, H, W, _ = frames.shape
    return frames.reshape(T, H // 8, 8, W // 8, 8, 3).mean(axis=(2, 4))


def test_the_sink_frame_is_handed_on_bit_for_bit(run: Run, latents: Path) -> None:
    saved = refined(run.folder / "refined.safetensors")
    assert torch.equal(saved[:, :, :1], refined(latents)[:, :, :1])


def test_frames_dir_holds_one_named_png_a_frame(run: Run) -> None:
    names = sorted(p.name for p in (run.folder / "frames").iterdir())
    assert names == [f"frame_{i:06d}.png" for i in range(FRAMES - 1)]


def test_preview_is_a_picture_with_a_row_a_block(run: Run) -> None:
    sheet = iio.imread(run.folder / "sheet.png")
    boundary = (sheet == (255, 150, 30)).all(axis=-1).all(axis=1)
    starts = np.flatnonzero(np.diff(boundary.astype(int)) == 1)
    assert len(starts) == 1  # between two rows
    assert sheet.std() > 10


def test_the_report_is_complete(run: Run) -> None:
    report = report_of(run.video)
    assert set(REPORT_KEYS) <= set(report)
    assert (report["schema"], report["status"], report["error"]) == (1, "done", None)
    assert report["settings"]["video.crf"] == {"value": 18, "origin": "preset tiny"} or (
        report["settings"]["video.crf"]["origin"] == "built-in default"
    )
    assert report["settings"]["input.prompt"] == {"value": "a red tower", "origin": "--prompt"}
    assert report["seeds"] == {"seed": 42, "refiner": 42}
    rows = {row["input"]: row for row in report["inputs"]}
    assert set(rows) == {"latents", "camera"}
    assert all(len(row["sha256"]) == 64 and row["bytes"] > 0 for row in rows.values())
    components = {row["component"] for row in report["weights"]}
    assert {"refiner/transformer", "refiner/connectors", "vae", "text_encoder"} <= components
    for row in report["weights"]:
        assert row["tensors"] > 0
        assert row["bytes"] > 0
        assert row["dtypes"]
        assert len(row["header_sha256"]) == 64
    assert report["memory"]["predicted"]["peak"] > 0
    assert {"text", "refine", "decode"} <= set(report["memory"]["per_stage"])
    assert report["peak_memory_bytes"] == report["memory"]["peak"] > 0


def test_the_report_has_a_row_a_block(run: Run) -> None:
    rows = report_of(run.video)["blocks"]
    assert [(r["index"], r["start"], r["stop"]) for r in rows] == [(0, 1, 4), (1, 4, 7)]
    assert [(r["history"], r["sink_position"]) for r in rows] == [(0, 0), (3, 0)]
    frames = pngs(run.folder / "frames").astype(np.float64)
    luma = frames @ (0.2126, 0.7152, 0.0722)
    assert rows[0]["luma_mean"] == pytest.approx(luma[:STRIDE].mean(), abs=2)
    assert rows[1]["luma_std"] == pytest.approx(luma[STRIDE:].std(), abs=2)
    assert all(r["seconds"] > 0 and r["memory_bytes"] > 0 for r in rows)


def test_the_first_chunk_is_on_disk_before_the_last_block_is_refined(
    in_tmp: Path, latents: Path
) -> None:
    clip = make_latents(22, *LATENTS[1:])
    z = save_latents(in_tmp / "z.safetensors", clip)
    assert sanawm("refine", "--latents", z, "-o", "o.mp4").code == 0
    spans = report_of(Path("o.mp4"))["timeline"]
    last = max(s["stop"] for s in spans if s["stage"] == "refine")
    first = min(s["stop"] for s in spans if s["stage"] == "write")
    assert first < last
    for stage in ("read", "refine", "decode", "write"):
        assert [s["chunk"] for s in spans if s["stage"] == stage][-7:] == list(range(7))


# Frames: dropped, kept, snapped, ragged


def test_keep_first_frame_writes_one_more_and_the_rest_is_equal(
    in_tmp: Path, latents: Path, run: Run
) -> None:
    args = ("--latents", latents, "--prompt", "a red tower", "--frames-dir", "f")
    assert sanawm("refine", *args, "-o", "o.mp4", "--keep-first-frame").code == 0
    frames, report = pngs(Path("f")), report_of(Path("o.mp4"))
    assert len(frames) == len(video_frames(Path("o.mp4"))) == FRAMES
    assert report["frames"]["written"] == FRAMES
    assert report["frames"]["dropped"] == report["frames"]["first_pose"] == 0
    np.testing.assert_array_equal(frames[1:], pngs(run.folder / "frames"))


@pytest.mark.parametrize(
    ("asked", "used"),
    [(STRIDE + 1, STRIDE + 1), (STRIDE + 3, STRIDE + 1), (2 * STRIDE, 2 * STRIDE + 1)],
)
def test_num_frames_is_snapped_with_a_line_that_names_both(
    in_tmp: Path, latents: Path, asked: int, used: int
) -> None:
    done = sanawm("refine", "--latents", latents, "--num-frames", asked, "-o", "o.mp4")
    assert done.code == 0
    assert len(video_frames(Path("o.mp4"))) == used - 1
    report = report_of(Path("o.mp4"))
    assert report["frames"]["asked"] == asked
    lines = [line for line in report["changes"] if "asked" in line]
    assert bool(lines) == (asked != used)
    for line in lines:
        assert f"{asked} frames asked" in line
        assert f"{used} are used" in line
        assert f"note: {line}" in done.err


def test_more_frames_than_the_file_holds_use_all_with_a_line(in_tmp: Path, latents: Path) -> None:
    done = sanawm("refine", "--latents", latents, "--num-frames", 500, "-o", "o.mp4")
    assert done.code == 0
    assert f"500 frames asked: {latents} holds {FRAMES}, all are used" in done.err
    assert len(video_frames(Path("o.mp4"))) == FRAMES - 1


@pytest.mark.parametrize("frames", [2, 3, 5, 6])
def test_a_short_last_block_is_accepted_with_a_line(in_tmp: Path, frames: int) -> None:
    z = save_latents(in_tmp / "z.safetensors", make_latents(frames, *LATENTS[1:]))
    done = sanawm("refine", "--latents", z, "-o", "o.mp4")
    assert done.code == 0
    short = (frames - 1) % 3
    assert f"{frames} latent frames are not 1 + 3*k: the last block has {short}" in done.err
    assert len(video_frames(Path("o.mp4"))) == pixel_frames(frames) - 1
    assert report_of(Path("o.mp4"))["blocks"][-1]["stop"] == frames


# Options that change pixels reach the model


def saved(latents: Path, *options: object) -> torch.Tensor:
    """Return the latents that a run with `options` saves in the current folder."""
    done = sanawm(
        "refine", "--latents", latents, "--prompt", "a red tower", "--no-video",
        "--save-latents", "r.safetensors", "--overwrite", *options,
    )  # fmt: skip
    assert done.code == 0, done.err
    return refined(Path("r.safetensors"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--sink-size", 0), {"window": Window(0, 3, 11)}),
        (("--sink-size", 2), {"window": Window(2, 3, 11)}),
        (("--refiner-block-size", 1), {"window": Window(1, 1, 11)}),
        (("--refiner-kv-max-frames", 4), {"window": Window(1, 3, 4)}),
        (("--sigmas", "0.9,0.5,0"), {"sigmas": (0.9, 0.5, 0.0)}),
        (("--seed", 7), {"seed": 7}),
        (("--refiner-seed", 7), {"seed": 7}),
        (("--seed", 3, "--refiner-seed", 7), {"seed": 7}),
        (("--fps", 24), {"fps": 24.0}),
        (("--fps", "24000/1001"), {"fps": 24000 / 1001}),
        (("--refiner-mode", "single-shot"), {"single_shot": True}),
        (("--set", "refiner.kv_max_frames=4"), {"window": Window(1, 3, 4)}),
    ],
    ids=str,
)
def test_model_options_reach_the_model(
    in_tmp: Path,
    run: Run,
    prompt: PromptEmbeds,
    options: tuple[object, ...],
    expected: dict[str, object],
) -> None:
    clip = make_latents(10, *LATENTS[1:])
    z = save_latents(in_tmp / "z.safetensors", clip)
    result = saved(z, *options)
    wanted = reference.refine(clip, prompt, **expected)  # type: ignore[arg-type]
    torch.testing.assert_close(result, wanted, **CLOSE)
    assert not torch.allclose(result, reference.refine(clip, prompt), atol=1e-3)


def test_bfloat16_is_close_to_float32(
    in_tmp: Path, latents: Path, run: Run, prompt: PromptEmbeds
) -> None:
    result = saved(latents, "--precision", "bf16")
    exact = refined(run.folder / "refined.safetensors")
    assert not torch.equal(result, exact)
    assert float((result - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()) < 0.05
    assert report_of(Path("r.safetensors"))["device"]["dtype"] == "bfloat16"
    prompt16 = PromptEmbeds(prompt.embeds.bfloat16(), prompt.mask)
    close = reference.refine(refined(latents), prompt16, dtype=torch.bfloat16)
    assert torch.allclose(result, close, atol=0.15, rtol=0.05)


def test_sink_zero_writes_every_frame(in_tmp: Path, latents: Path) -> None:
    assert sanawm("refine", "--latents", latents, "--sink-size", 0, "-o", "o.mp4").code == 0
    assert len(video_frames(Path("o.mp4"))) == FRAMES
    assert report_of(Path("o.mp4"))["frames"]["dropped"] == 0


def test_sigmas_of_another_recipe_are_used_with_a_warning(in_tmp: Path, latents: Path) -> None:
    args = ("--latents", latents, "--sigmas", "0.9,0.5,0", "-o", "o.mp4")
    done = sanawm("refine", *args)
    assert "warning: sigmas 0.9, 0.5, 0 are not those the preset declares" in done.err
    assert any("sigmas" in line for line in report_of(Path("o.mp4"))["warnings"])


def test_a_small_window_is_used_with_a_warning(in_tmp: Path, latents: Path) -> None:
    args = ("--latents", latents, "--refiner-kv-max-frames", 3, "-o", "o.mp4")
    done = sanawm("refine", *args)
    assert done.code == 0
    assert "warning: refiner window 3 is below sink + block = 4" in done.err


def test_fps_changes_latents_and_output_fps_only_the_file(
    in_tmp: Path, latents: Path, run: Run
) -> None:
    args = ("--latents", latents, "--prompt", "a red tower", "--frames-dir", "f")
    done = sanawm("refine", *args, "--output-fps", "24000/1001", "-o", "o.mp4")
    assert done.code == 0
    np.testing.assert_array_equal(pngs(Path("f")), pngs(run.folder / "frames"))
    with av.open("o.mp4") as container:
        assert container.streams.video[0].average_rate == Fraction(24000, 1001)
    np.testing.assert_array_equal(video_frames(Path("o.mp4")), video_frames(run.video))
    told = ("--latents", latents, "--prompt", "a red tower", "--no-video", "--save-latents")
    assert sanawm("refine", *told, "r.safetensors", "--fps", 24).code == 0
    other = refined(Path("r.safetensors"))
    assert not torch.equal(other, refined(run.folder / "refined.safetensors"))


# What one run saves, another takes


def test_noise_and_embeddings_go_from_run_to_run(in_tmp: Path, latents: Path, run: Run) -> None:
    result = saved_with(
        latents,
        "--noise", run.folder / "noise.safetensors",
        "--prompt-embeds", run.folder / "embeds.safetensors",
        "--set", "model.text_encoder=/nonexistent",
        "--save-noise", "noise.safetensors",
        "--save-prompt-embeds", "embeds.safetensors",
    )  # fmt: skip
    assert torch.equal(result, refined(run.folder / "refined.safetensors"))
    for name in ("noise.safetensors", "embeds.safetensors"):
        first, second = load_file(run.folder / name), load_file(name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[k], second[k]) for k in first)


def saved_with(latents: Path, *options: object) -> torch.Tensor:
    """Return the latents of a run with options that bring their own prompt."""
    done = sanawm(
        "refine", "--latents", latents, "--no-video", "--save-latents", "r.safetensors", *options
    )
    assert done.code == 0, done.err
    return refined(Path("r.safetensors"))


def test_saved_noise_is_the_seeds_noise(run: Run) -> None:
    eps = load_file(run.folder / "noise.safetensors")["eps"]
    generator = torch.Generator().manual_seed(42)
    block = (1, CHANNELS, 3, *LATENTS[1:])
    expected = [torch.randn(block, generator=generator) for _ in range(2)]
    assert torch.equal(eps, torch.cat(expected, dim=2))


def test_other_noise_gives_another_clip(in_tmp: Path, latents: Path, run: Run) -> None:
    eps = load_file(run.folder / "noise.safetensors")["eps"].flip(0, 2).contiguous()
    save_file({"eps": eps}, "n.safetensors")
    result = saved(latents, "--noise", "n.safetensors")
    assert not torch.equal(result, refined(run.folder / "refined.safetensors"))


def test_saved_latents_name_rate_seed_and_recipe(in_tmp: Path, latents: Path, run: Run) -> None:
    def metadata(path: Path) -> dict[str, str]:
        with safe_open(path, "pt") as file:
            return dict(file.metadata())

    first = metadata(run.folder / "refined.safetensors")
    assert (first["fps"], first["seed"]) == ("16", "42")
    saved(latents, "--fps", "24000/1001", "--seed", 5)
    other = metadata(Path("r.safetensors"))
    assert (other["fps"], other["seed"]) == ("24000/1001", "5")
    assert len(other["recipe_sha256"]) == 64 != first["recipe_sha256"]
    saved(latents)
    assert metadata(Path("r.safetensors"))["recipe_sha256"] != other["recipe_sha256"]


def test_no_video_needs_no_vae(in_tmp: Path, latents: Path, run: Run) -> None:
    args = ("refine", "--latents", latents, "--prompt", "a red tower", "--no-video")
    done = sanawm(*args, "--save-latents", "r.safetensors", "--set", "model.vae=/nonexistent")
    assert done.code == 0
    assert done.out == "r.safetensors\n"
    assert sorted(p.name for p in in_tmp.iterdir()) == ["r.json", "r.safetensors"]
    assert torch.equal(refined(Path("r.safetensors")), refined(run.folder / "refined.safetensors"))
    report = report_of(Path("r.safetensors"))
    assert report["frames"]["written"] == report["frames"]["decoded"] == 0
    assert all(row["seconds"] > 0.001 for row in report["blocks"])


def test_a_batch_of_clips_is_refined_without_video(in_tmp: Path) -> None:
    z = make_latents(4, *LATENTS[1:])
    path = save_latents(in_tmp / "two.safetensors", torch.cat((z, z + 0.1)))
    result = saved(path)
    assert result.shape == (2, CHANNELS, 4, *LATENTS[1:])


@pytest.mark.parametrize("kind", ["npy", "npz", "pt", "half"])
def test_latents_come_in_other_files(in_tmp: Path, latents: Path, run: Run, kind: str) -> None:
    z = refined(latents)
    path = in_tmp / f"in.{kind}"
    if kind == "npy":
        np.save(path, z.numpy())
    elif kind == "npz":
        np.savez(path, latents=z.numpy())
    elif kind == "pt":
        torch.save({"latents": z}, path)
    else:
        path = save_latents(in_tmp / "in.safetensors", z.half())
    result = saved(path)
    exact = refined(run.folder / "refined.safetensors")
    if kind == "half":
        assert torch.allclose(result, exact, atol=0.05)
    else:
        assert torch.equal(result, exact)


# Names and places


def test_name_and_output_dir(in_tmp: Path, latents: Path) -> None:
    done = sanawm(
        "refine", "--latents", latents, "--num-frames", STRIDE + 1, "--output-dir", in_tmp,
        "--name", "a clip {1}",
    )  # fmt: skip
    assert done.code == 0
    assert done.out == f"{in_tmp / 'a clip {1}.mp4'}\n"
    assert sorted(p.name for p in in_tmp.iterdir()) == ["a clip {1}.json", "a clip {1}.mp4"]


def test_report_goes_where_it_was_asked(in_tmp: Path, latents: Path) -> None:
    args = ("--latents", latents, "--num-frames", STRIDE + 1, "-o", "o.mp4", "--report", "r.json")
    done = sanawm("--log-format", "json", "refine", *args)
    assert done.json["report"] == "r.json"
    assert sorted(p.name for p in in_tmp.iterdir()) == ["o.mp4", "r.json"]
    assert json.loads(Path("r.json").read_text())["status"] == "done"


def test_faststart_puts_the_index_first(in_tmp: Path, latents: Path, run: Run) -> None:
    args = ("--latents", latents, "--prompt", "a red tower", "-o", "o.mp4", "--faststart")
    assert sanawm("refine", *args).code == 0
    names = box_names(Path("o.mp4"))
    assert names.index("moov") < names.index("mdat")
    np.testing.assert_array_equal(video_frames(Path("o.mp4")), video_frames(run.video))
    assert report_of(Path("o.mp4"))["output"]["bytes"] == Path("o.mp4").stat().st_size
    with av.open("o.mp4") as container:
        assert "sanawm" in container.metadata


def test_underscores_are_hyphens(in_tmp: Path, latents: Path) -> None:
    args = ("--latents", latents, f"--num_frames={STRIDE + 1}", "--keep_first_frame")
    assert sanawm("refine", *args, "-o", "o.mp4").code == 0
    assert len(video_frames(Path("o.mp4"))) == STRIDE + 1


def test_options_that_change_nothing_get_a_line(in_tmp: Path, latents: Path) -> None:
    done = sanawm(
        "refine", "--latents", latents, "--num-frames", STRIDE + 1, "-o", "o.mp4",
        "--video-sampling", "resample", "--camera-format", "npy", "--set", "stage1.noise=reference",
    )  # fmt: skip
    assert done.code == 0
    assert "warning: --video-sampling changes nothing: it goes with --video" in done.err
    assert "warning: --camera-format changes nothing: it goes with --camera" in done.err
    assert "warning: --set stage1.noise changes nothing: it goes with --image" in done.err
    assert len([w for w in report_of(Path("o.mp4"))["warnings"] if "changes nothing" in w]) == 3


def test_time_is_in_latent_frames_of_the_models_ratio() -> None:
    # Guards the constants that the tests above are written in.
    assert STRIDE == 3 * TIME
    assert FRAMES == 2 * STRIDE + 1
