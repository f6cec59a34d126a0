"""Stages on devices of their own: what `--place` takes, and that chunks are handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sanawm.config import resolve
from sanawm.errors import MachineError, UsageError
from sanawm.pipeline import Pipeline
from sanawm.placement import choose_places, parse_places
from tests.cli.command import refined, report_of, sanawm, video_frames

CPU = torch.device("cpu")
SIZE = ("--num-frames", 37, "--height", 32, "--width", 48)


def run(folder: Path, *more: object) -> tuple[Any, Any, Any]:
    """Return frames, refined latents and report of a run with stage 1."""
    folder.mkdir()
    done = sanawm(
        "refine", "-c", "tiny", *SIZE, "-o", folder / "out.mp4",
        "--save-latents", folder / "out.safetensors", *more,
    )  # fmt: skip
    assert done.code == 0, done.err
    video = folder / "out.mp4"
    return video_frames(video), refined(folder / "out.safetensors"), report_of(video)


@pytest.mark.parametrize("more", [(), ("--schedule", "overlap"), ("--offload", "all")], ids=str)
def test_placed_stages_give_the_same_clip(more: tuple[str, ...], tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", *more)
    placed = run(tmp_path / "placed", "--place", "stage1=cpu, refiner=cpu,vae=cpu", *more)
    assert (placed[0] == plain[0]).all()
    assert torch.equal(placed[1], plain[1])
    assert placed[2]["settings"]["runtime.place"]["value"] == "stage1=cpu, refiner=cpu,vae=cpu"


def test_every_model_goes_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    place = "stage1=cuda:0,refiner=cuda:1,vae=cuda:2"
    asked: dict[str, torch.device] = {}

    def loader(name: str) -> Any:
        def load(path: Path, *, device: torch.device, **more: Any) -> str:
            asked[name] = device
            return name

        return load

    for name in ("refiner", "decoder", "encoder", "stage1"):
        monkeypatch.setattr(f"sanawm.pipeline.load_{name}", loader(name))
    sets = [f"runtime.place={place}", "runtime.device=cpu"]
    pipe = Pipeline(resolve(["tiny"], sets=sets))
    for name in ("refiner", "decoder", "encoder", "stage1"):
        assert getattr(pipe, name) == name
    assert {name: str(device) for name, device in asked.items()} == {
        "stage1": "cuda:0", "refiner": "cuda:1", "encoder": "cuda:2", "decoder": "cuda:2",
    }  # fmt: skip
    waiting = Pipeline(resolve(["tiny"], sets=[*sets, "runtime.offload=all"]))
    assert waiting.home("refiner") == CPU
    assert str(waiting.places["refiner"]) == "cuda:1"


def test_stages_that_are_not_named_stay_on_the_device() -> None:
    assert choose_places(None, CPU) == dict.fromkeys(
        ("stage1", "refiner", "encoder", "decoder"), CPU
    )
    assert parse_places("vae=cuda:1") == {"vae": "cuda:1"}
    assert parse_places(None) == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "'' is not one of stage1, refiner, vae"),
        ("text=cpu", "'text' is not one of"),
        ("vae", "vae has no device"),
        ("vae=", "vae has no device"),
        ("vae=cpu,vae=cpu", "vae is there twice"),
        ("vae=cpu,", "'' is not one of"),
    ],
)
def test_a_malformed_place_is_refused(text: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse_places(text)
    assert word in str(caught.value)
    done = sanawm("refine", "-c", "tiny", "--place", text, "-o", tmp_path / "o.mp4", "--dry-run")
    assert done.code == 2
    assert word in done.error


def test_devices_that_are_not_here_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        choose_places("vae=cuda:77", CPU)
    with pytest.raises(UsageError, match="unknown"):
        choose_places("vae=tpu", CPU)
    place = ("--place", "vae=cuda:77", "-o", tmp_path / "o.mp4")
    assert sanawm("refine", "-c", "tiny", *place, "--dry-run").code == 4
    assert sanawm("refine", "-c", "tiny", *place).code == 4
    assert list(tmp_path.iterdir()) == []


def test_a_place_without_its_stage_is_told(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from tests.cli.command import CHANNELS

    clip = torch.randn((1, CHANNELS, 7, 4, 6), generator=torch.Generator().manual_seed(1))
    save_file({"latents": clip}, tmp_path / "z.safetensors")
    done = sanawm(
        "refine", "-c", "tiny", "--latents", tmp_path / "z.safetensors", "--dry-run",
        "--place", "stage1=cpu,refiner=cpu", "-o", tmp_path / "o.mp4",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "--place stage1 changes nothing" in done.err
    assert "placed: stage1 on cpu, refiner on cpu; the rest on" in done.err
