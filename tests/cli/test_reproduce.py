"""Runs can be repeated: from the MP4's own metadata, in one process, and block by block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from sanawm.io.video import read_metadata
from sanawm.settings import all_keys

from .command import STRIDE, finish, pngs, refined, sanawm, start, video_frames
from .conftest import LATENTS, Run, make_latents, save_latents


def toml_of(settings: dict[str, Any]) -> str:
    """Write settings by key as a TOML file."""
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if value is not None:
            # JSON's strings, numbers, lists and booleans are TOML's.
            sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{s}]\n" + "\n".join(rows) for s, rows in sections.items())


def recipe_of(video: Path) -> dict[str, Any]:
    """Return the recipe in the metadata of a video."""
    recipe: dict[str, Any] = json.loads(read_metadata(video)["sanawm"])
    return recipe


def elsewhere(recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings of a recipe with its outputs in another folder."""
    return {
        key: str(folder / Path(value).name)
        if key.startswith("output.") and isinstance(value, str)
        else value
        for key, value in recipe["settings"].items()
    }


def test_the_metadata_is_complete_and_readable_by_any_tool(run: Run, latents: Path) -> None:
    with av.open(str(run.video)) as container:
        recipe = json.loads(container.metadata["sanawm"])
    assert set(recipe["settings"]) == set(all_keys())
    assert recipe["settings"]["input.latents"] == str(latents)
    assert recipe["prompt"] == "a red tower"
    assert {row["component"] for row in recipe["weights"]} >= {"refiner/transformer", "vae"}
    assert all(len(row["sha256"]) == 64 for row in recipe["inputs"])


def test_the_metadata_reproduces_the_run(in_tmp: Path, run: Run) -> None:
    settings = elsewhere(recipe_of(run.video), in_tmp)
    Path("again.toml").write_text(toml_of(settings), encoding="utf-8")
    done = sanawm("refine", "-c", "again.toml")
    assert done.code == 0, done.err
    first, second = run.folder / "refined.safetensors", Path("refined.safetensors")
    assert torch.equal(refined(first), refined(second))
    np.testing.assert_array_equal(pngs(run.folder / "frames"), pngs(Path("frames")))
    np.testing.assert_array_equal(video_frames(run.video), video_frames(Path("out.mp4")))
    assert elsewhere(recipe_of(Path("out.mp4")), run.folder) == elsewhere(
        recipe_of(run.video), run.folder
    )


def test_the_metadata_of_odd_runs_reproduces_them_too(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths, a ragged clip, a prompt with quotes, fractions and seeds."""
    save_latents(in_tmp / "z.safetensors", make_latents(6, *LATENTS[1:]))
    Path("p.txt").write_text('a "red" tower\\ \u00e9 \U0001f5fc\nat noon', encoding="utf-8")
    done = sanawm(
        "refine", "--latents", "z.safetensors", "--prompt-file", "p.txt", "-o", "o.mp4",
        "--fps", "24000/1001", "--output-fps", 12, "--seed", 9, "--refiner-seed", 4,
        "--sink-size", 2, "--sigmas", "0.8,0.4,0", "--keep-first-frame", "--frames-dir", "f",
        "--set", "input.action=",
    )  # fmt: skip
    assert done.code == 0, done.err
    place = in_tmp / "elsewhere"
    place.mkdir()
    settings = elsewhere(recipe_of(Path("o.mp4")), place)
    (place / "again.toml").write_text(toml_of(settings), encoding="utf-8")
    monkeypatch.chdir(place)
    assert sanawm("refine", "-c", "again.toml").code == 0
    np.testing.assert_array_equal(pngs(place / "f"), pngs(in_tmp / "f"))
    np.testing.assert_array_equal(video_frames(place / "o.mp4"), video_frames(in_tmp / "o.mp4"))


def test_the_second_job_of_a_process_equals_a_fresh_process(
    in_tmp: Path, latents: Path, run: Run
) -> None:
    """`run`, and whatever ran before in this process, must not leave a trace."""
    first = ("refine", "--latents", latents, "--prompt", "something else", "--seed", 1)
    assert sanawm(*first, "--sink-size", 2, "-o", "other.mp4").code == 0
    job = (
        "refine", "--latents", latents, "--prompt", "a red tower", "-o", "{}.mp4",
        "--save-latents", "{}.safetensors", "--frames-dir", "{}", "--threads", 1,
    )  # fmt: skip
    assert sanawm(*(str(a).format("second") for a in job)).code == 0
    assert finish(start(*(str(a).format("fresh") for a in job))).code == 0
    second, fresh = refined(Path("second.safetensors")), refined(Path("fresh.safetensors"))
    assert torch.equal(second, fresh)
    assert torch.equal(second, refined(run.folder / "refined.safetensors"))
    np.testing.assert_array_equal(pngs(Path("second")), pngs(Path("fresh")))
    np.testing.assert_array_equal(video_frames(Path("second.mp4")), video_frames(Path("fresh.mp4")))


def test_the_first_blocks_of_a_long_run_equal_a_short_run(in_tmp: Path) -> None:
    z = save_latents(in_tmp / "z.safetensors", make_latents(22, *LATENTS[1:]))
    args = ("refine", "--latents", z)

    def go(name: str, *options: object) -> torch.Tensor:
        outputs = ("-o", f"{name}.mp4", "--save-latents", f"{name}.safetensors")
        assert sanawm(*args, *outputs, "--frames-dir", name, *options).code == 0
        return refined(Path(f"{name}.safetensors"))

    long, frames = go("long"), pngs_after("long")
    for blocks in (1, 2, 5):
        short = go(f"short{blocks}", "--num-frames", blocks * STRIDE + 1)
        assert short.shape[2] == 3 * blocks + 1
        assert torch.equal(short, long[:, :, : short.shape[2]])
        np.testing.assert_array_equal(pngs(Path(f"short{blocks}")), frames[: blocks * STRIDE])
        np.testing.assert_array_equal(
            video_frames(Path(f"short{blocks}.mp4")),
            video_frames(Path("long.mp4"))[: blocks * STRIDE],
        )


def pngs_after(name: str) -> np.ndarray:
    """Return the PNG frames that a run has just written."""
    return pngs(Path(name))


def test_two_schedules_give_the_same_bits(in_tmp: Path, latents: Path, run: Run) -> None:
    args = ("--latents", latents, "--prompt", "a red tower", "--schedule", "overlap")
    outputs = ("-o", "o.mp4", "--save-latents", "r.safetensors")
    assert sanawm("refine", *args, *outputs).code == 0
    assert torch.equal(refined(Path("r.safetensors")), refined(run.folder / "refined.safetensors"))
    np.testing.assert_array_equal(video_frames(Path("o.mp4")), video_frames(run.video))


def test_the_prompt_store_changes_nothing(in_tmp: Path, latents: Path, run: Run) -> None:
    args = ("--latents", latents, "--prompt", "a red tower", "--no-prompt-store", "--no-video")
    done = sanawm("refine", *args, "--save-latents", "r.safetensors")
    assert done.code == 0
    assert "taken from the store" not in done.err
    assert torch.equal(refined(Path("r.safetensors")), refined(run.folder / "refined.safetensors"))
