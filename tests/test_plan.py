"""Plans: what a run will do, from headers alone; and lines about options that do nothing."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from sanawm.config import Resolved, resolve
from sanawm.errors import UsageError
from sanawm.notes import Notes
from sanawm.plan import Plan, make_plan
from sanawm.sources import cap_frames
from sanawm.unused import NEEDS, warn_unused

CHANNELS, TIME, SPACE = 16, 4, 8
STRIDE = 3 * TIME


@pytest.fixture
def plan_of(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return the plan (and its lines) of a run over latents of `frames` with some settings."""

    def plan(frames: int, *sets: str) -> tuple[Plan, Notes]:
        path = tmp_path / f"z{frames}.safetensors"
        save_file({"latents": torch.zeros(1, CHANNELS, frames, 4, 6)}, path)
        flags = {
            "input.latents": ("--latents", str(path)),
            "output.output": ("--output", str(tmp_path / "o.mp4")),
        }
        notes = Notes()
        settings = resolve(["tiny"], sets=["input.action=", *sets], flags=flags)
        return make_plan(settings, notes=notes, download=False), notes

    return plan


def test_sizes_and_blocks_come_from_the_header(plan_of) -> None:  # type: ignore[no-untyped-def]
    plan, notes = plan_of(10)
    assert plan.shape == (1, CHANNELS, 10, 4, 6)
    assert plan.pixels == (TIME * 9 + 1, 4 * SPACE, 6 * SPACE)
    assert [(b.start, b.stop) for b in plan.blocks] == [(1, 4), (4, 7), (7, 10)]
    assert [plan.chunk_frames(b) for b in plan.blocks] == [STRIDE] * 3
    assert (plan.frames.asked, plan.frames.decoded, plan.frames.written) == (None, 37, 36)
    assert plan.fps == plan.output_fps == 16
    assert plan.seconds == 36 / 16
    assert not notes.changes
    assert not notes.warnings


@pytest.mark.parametrize(
    ("sets", "dropped"),
    [
        ((), 1),
        (("video.keep_first_frame=true",), 0),
        (("refiner.sink_size=0",), 0),
        (("refiner.sink_size=2",), 1),  # the sink picture is one frame, whatever the sink
    ],
)
def test_the_sink_picture_alone_is_dropped(plan_of, sets, dropped) -> None:  # type: ignore[no-untyped-def]
    assert plan_of(7, *sets)[0].frames.dropped == dropped


def test_rates_are_exact(plan_of) -> None:  # type: ignore[no-untyped-def]
    plan, _ = plan_of(7, "video.fps='24000/1001'")
    assert plan.fps == plan.output_fps == Fraction(24000, 1001)
    plan, _ = plan_of(7, "video.output_fps=29.97")
    assert (plan.fps, plan.output_fps) == (16, Fraction(30000, 1001))


def test_values_that_the_file_fixes_have_it_as_origin(plan_of) -> None:  # type: ignore[no-untyped-def]
    plan, _ = plan_of(7)
    for key, value in {"video.num_frames": 25, "video.height": 32, "video.width": 48}.items():
        assert plan.settings.get(key) == value
        assert str(plan.settings.origin(key)).startswith("latents ")


@given(
    available=st.integers(1, 400),
    asked=st.none() | st.integers(1, 500),
    ratio=st.integers(1, 8),
    block=st.integers(1, 4),
)
def test_capped_frames_are_whole_blocks_and_never_changed_in_silence(
    available: int, asked: int | None, ratio: int, block: int
) -> None:
    stride, notes = ratio * block, Notes()
    wanted = available if asked is None else min(asked, available)
    nearest = min(range(1, available + 1, stride), key=lambda n: (abs(n - wanted), -n))
    if nearest == 1:  # no block
        with pytest.raises(UsageError, match=rf"{wanted} frames .* {stride + 1}"):
            cap_frames(available, asked, stride=stride, what="clip", notes=notes)
        return
    used = cap_frames(available, asked, stride=stride, what="clip", notes=notes)
    assert used == nearest
    expected = available if asked is None else asked
    assert len(notes.changes) == (used != expected)
    for line in notes.changes:
        assert str(expected) in line
        assert str(used) in line


# Options that do nothing


def unused(flags: dict[str, object], sets: list[str] | None = None) -> list[str]:
    """Return the warnings about flags of a run over latents."""
    named = {key: (f"--{key.partition('.')[2]}", value) for key, value in flags.items()}
    latents = {"input.latents": ("--latents", "z.safetensors")}
    settings: Resolved = resolve(
        ["tiny"], sets=["input.action=", *(sets or [])], flags=latents | named
    )
    notes = Notes()
    warn_unused(settings, notes=notes)
    return notes.warnings


@pytest.mark.parametrize(
    ("key", "value", "needs"),
    [
        ("video.sampling", "resample", "--video"),
        ("camera.format", "npy", "--camera"),
        ("camera.hold_last", True, "--camera or --action"),
        ("camera.translation_speed", 1.0, "--action"),
        ("input.fov_x", 80.0, "--image"),
        ("stage1.noise", "reference", "--image"),
    ],
)
def test_a_flag_that_does_nothing_is_named(key: str, value: object, needs: str) -> None:
    (line,) = unused({key: value})
    assert line == f"--{key.partition('.')[2]} changes nothing: it goes with {needs}"


def test_no_line_when_it_does_something() -> None:
    assert unused({"camera.format": "npy", "input.camera": "c.npy"}) == []
    assert unused({"camera.hold_last": True, "input.action": "w-3"}) == []
    assert unused({"camera.hold_last": False}) == []


def test_modes_without_a_video_or_a_window() -> None:
    assert unused({"video.crf": 20, "output.video": False}) == [
        "--crf changes nothing: no video is made"
    ]
    single = {"refiner.mode": "single-shot", "refiner.kv_max_frames": 9, "refiner.sink_size": 1}
    assert unused(single) == ["--kv_max_frames changes nothing: single-shot mode has no window"]


def test_files_may_hold_what_a_run_does_not_use(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[camera]\nformat = "npy"\n[video]\nsampling = "resample"\n')
    notes = Notes()
    warn_unused(resolve(["tiny", str(path)], sets=["input.latents='z'"]), notes=notes)
    assert notes.warnings == []


def test_every_need_names_settings_that_exist() -> None:
    keys = resolve(["tiny"]).origins
    for start, needs in NEEDS:
        assert any(key.startswith(start) for key in keys)
        assert set(needs) <= set(keys)
