"""`sanawm doctor`: what it finds here, and what makes it fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sanawm.diagnosis import codecs, machine, refiner
from sanawm.downloads import RELEASED
from sanawm.io.encoder import ENCODERS
from sanawm.refiner.model import RefinerModel
from sanawm.tensorfile import read_header
from tests.cli.command import sanawm

NAMES = [
    "versions", "devices", "codecs", "memory", "output", "cache", "hub cache", "presets",
    "settings", "models", "refiner",
]  # fmt: skip


def checks(*arguments: object, code: int = 0) -> dict[str, dict[str, Any]]:
    """Return the checks of `sanawm doctor` by name."""
    done = sanawm("doctor", "--json", *arguments)
    assert done.code == code, done.err
    found = {check["name"]: check for check in done.json["checks"]}
    assert list(found) == NAMES
    assert done.json["status"] == ("failed" if code else "passed")
    return found


def test_this_machine_passes() -> None:
    found = checks("-c", "tiny")
    assert {c["status"] for c in found.values()} <= {"ok", "note"}
    assert (
        found["versions"]["versions"]["torch"] == torch.__version__.split("+")[0]
        or "+" in (found["versions"]["versions"]["torch"])
    )
    assert found["devices"]["chosen"] in ("cpu", "cuda")
    assert found["codecs"]["encoders"]["libx264"]["works"] is True
    assert set(found["codecs"]["encoders"]) == set(ENCODERS)
    assert found["memory"]["total_bytes"] > found["memory"]["free_bytes"] > 0
    assert found["cache"]["free_bytes"] > 0
    assert found["presets"]["presets"]["tiny"].endswith("tiny.toml")


def test_the_tiny_refiner_agrees_with_diffusers() -> None:
    """The stored latents belong to the packaged weights: remake them when this fails."""
    found = refiner.check_refiner()
    assert found.status == "ok", f"{found.found}; run {refiner.REMAKE}"
    assert found.data["max_error"] <= 1e-4
    assert "diffusers" in found.data["made_by"]


@pytest.mark.oracle
def test_the_stored_latents_are_those_of_diffusers_now(tmp_path: Path) -> None:
    from configs.tiny.make.doctor_reference import main

    main(tmp_path / "again.safetensors")
    again, stored = load_file(tmp_path / "again.safetensors"), load_file(refiner.reference_path())
    for name in ("clean", "eps", "prompt_embeds", "prompt_mask"):
        assert torch.equal(again[name], stored[name]), name
    assert (again["refined"] - stored["refined"]).abs().max() < 1e-5
    moved = (stored["refined"] - stored["clean"])[:, :, 1:].abs().max()
    assert moved > 0.5  # something happened


def test_latents_of_other_weights_are_named_and_do_not_fail(tmp_path: Path) -> None:
    stored = refiner.reference_path()
    _, metadata = read_header(stored)
    other = tmp_path / "other.safetensors"
    save_file(load_file(stored), other, metadata=metadata | {"refiner": "0" * 64})
    found = refiner.check_refiner(other)
    assert found.status == "note"
    assert "belong to other weights" in found.found
    assert refiner.REMAKE in (found.fix or "")


def test_other_numbers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = RefinerModel.forward

    def wrong(self: RefinerModel, *arguments: Any, **more: Any) -> torch.Tensor:
        return forward(self, *arguments, **more) * 1.001

    monkeypatch.setattr(RefinerModel, "forward", wrong)
    found = refiner.check_refiner()
    assert found.status == "FAIL"
    assert found.data["max_error"] > 1e-4
    done = sanawm("doctor", "-c", "tiny")
    assert done.code == 1
    assert "1 of 11 checks failed: refiner" in done.error


def test_a_damaged_file_of_latents_fails(tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(refiner.reference_path().read_bytes()[:-10])
    assert refiner.check_refiner(cut).status == "FAIL"
    assert refiner.check_refiner(tmp_path / "missing").status == "FAIL"


def test_every_setting_names_who_set_it(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[video]\ncrf = 21\n", encoding="utf-8")
    found = checks("-c", "tiny", "-c", own, "--set", "refiner.kv_max_frames=8")["settings"]
    table = found["settings"]
    assert table["refiner.kv_max_frames"] == {"value": 8, "origin": "--set refiner.kv_max_frames"}
    assert table["video.crf"] == {"value": 21, "origin": str(own)}
    assert table["video.height"] == {"value": 64, "origin": "preset tiny"}
    assert table["refiner.mode"] == {"value": "chunked", "origin": "built-in default"}
    assert found["configs"][1] == str(own)
    text = sanawm("doctor", "-c", "tiny", "-c", own).out
    assert f"video.crf = 21   ({own})" in text
    assert "refiner.mode" not in text  # a default


BAD_SETTINGS = {
    "models": "model.vae=/nowhere/at/all",
    "codecs": "video.encoder=libtheora",
    "output": "output.output_dir=/proc/nowhere",
}


def test_settings_that_cannot_run_here_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [word for value in BAD_SETTINGS.values() for word in ("--set", value)]
    if not torch.cuda.is_available():
        sets += ["--set", "runtime.device=cuda"]
    found = checks("-c", "tiny", *sets, code=1)
    failed = {name for name, check in found.items() if check["status"] == "FAIL"}
    assert failed >= {"models", "codecs"}
    assert found["models"]["models"]["vae"]["state"] == "missing"
    assert found["codecs"]["fix"] == "use --encoder libx264"
    if not torch.cuda.is_available():
        assert found["devices"]["status"] == "FAIL"


def test_models_of_the_hub_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "capacity_bytes", lambda device: 10**12)
    monkeypatch.setattr(machine, "memory_bytes", lambda: (10**12, 10**12))
    monkeypatch.setattr(machine, "free_space", lambda folder: 10**12)
    found = checks("-c", "streaming-720p")
    assert found["memory"]["status"] == found["hub cache"]["status"] == "ok"
    assert found["memory"]["needed_bytes"] > 100 * 10**9
    assert found["hub cache"]["fetched_bytes"] == sum(RELEASED.values())
    assert found["models"]["status"] == "note"
    assert {m["state"] for m in found["models"]["models"].values()} == {"hub"}


def test_a_machine_too_small_for_the_config_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "capacity_bytes", lambda device: 60 * 10**9)
    monkeypatch.setattr(machine, "memory_bytes", lambda: (50 * 10**9, 60 * 10**9))
    monkeypatch.setattr(machine, "free_space", lambda folder: 80 * 10**9)
    found = checks("-c", "streaming-720p", "--set", "runtime.device=cpu", code=1)
    assert {n for n, c in found.items() if c["status"] == "FAIL"} == {"memory", "hub cache"}
    assert "; a run takes about " in found["memory"]["found"]
    assert "--precision bf16" in found["memory"]["fix"]
    assert "the first run fetches about 107 GB into it" in found["hub cache"]["found"]
    monkeypatch.setattr(machine, "memory_bytes", lambda: (1 << 28, 60 * 10**9))
    tiny = checks("-c", "tiny", "--set", "runtime.device=cpu")
    assert tiny["memory"]["status"] == "note"
    assert tiny["hub cache"]["status"] == "ok"


def test_one_thread_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert ", 1 thread;" in machine.check_devices("cpu").found
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert ", 2 threads;" in machine.check_devices("cpu").found


def test_an_encoder_that_gives_other_frames_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "ENCODERS", {"libx264": ENCODERS["libx264"]})
    frames = codecs.VideoReader.frames
    monkeypatch.setattr(codecs.VideoReader, "frames", lambda self: (255 - f for f in frames(self)))
    found = codecs.check_codecs("libx264")
    assert found.status == "FAIL"
    assert "came back changed" in found.found
    monkeypatch.setattr(codecs.VideoReader, "frames", lambda self: list(frames(self))[:-1])
    assert "23 of 24 frames came back" in codecs.check_codecs("libx264").found


def test_the_pattern_moves_and_has_edges() -> None:
    frames = codecs.moving_pattern().astype(int)
    assert np.abs(np.diff(frames, axis=0)).mean() > 1
    assert np.abs(np.diff(frames, axis=2)).max() > 100


def test_missing_packages_and_little_room_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needed = ["numpy>=99", "nosuchpackage>=1", 'ray>=2; extra == "ray"', "torch>=2"]
    monkeypatch.setattr(machine.metadata, "requires", lambda name: needed)
    found = machine.check_versions()
    assert found.status == "FAIL"
    assert "numpy" in found.found
    assert "nosuchpackage is missing" in found.found
    assert "ray" not in found.found
    monkeypatch.setattr(machine, "memory_bytes", lambda: (1 << 20, 8 << 30))
    assert machine.check_memory().status == "FAIL"
    monkeypatch.setattr(machine, "memory_bytes", lambda: (0, 0))
    assert machine.check_memory().status == "note"
    usage = shutil.disk_usage(tmp_path)
    assert machine.check_disk("cache", tmp_path / "new" / "folder").data["free_bytes"] <= usage.free
    monkeypatch.setattr(machine, "free_space", lambda folder: 1000)
    assert machine.check_disk("cache", tmp_path).status == "FAIL"
    file = tmp_path / "file"
    file.touch()
    assert "cannot be written" in machine.check_disk("cache", file).found


def test_a_broken_config_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[video]\ncrff = 3\n", encoding="utf-8")
    done = sanawm("doctor", "-c", path)
    assert done.code == 2
    assert "video.crff" in done.error
