"""`sanawm inspect` knows every file that the tool reads or writes, and broken ones as such."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sanawm.inspection import KINDS
from sanawm.io.run_state import save_state
from sanawm.tensorfile import TensorFiles
from tests.cli.command import TINY, Done, sanawm

CASES = Path(__file__).parents[1] / "cases"


def look(*arguments: object) -> dict[str, Any]:
    """Return the one finding of `sanawm inspect`."""
    done = sanawm("inspect", *arguments, "--json")
    assert done.code == 0, done.err
    (found,) = done.json["files"]
    assert found["kind"] in KINDS
    return found


PACKAGED = {
    "refiner_diffusers": ("checkpoint", "refiner: transformer, connectors"),
    "refiner_diffusers/transformer": (
        "checkpoint",
        "refiner transformer, 5 layers x 128, complete",
    ),
    "refiner_diffusers/connectors": ("checkpoint", "text connectors of the refiner"),
    "ltx2_causal_vae": ("checkpoint", "VAE, 16 latent channels, causal, complete"),
    "gemma3_12b": ("checkpoint", "Gemma-3 text encoder for the refiner"),
    "gemma2": ("checkpoint", "Gemma-2 text encoder for stage 1"),
    "sana_dit": ("checkpoint", "stage 1 weights, complete for config.yaml"),
    "sana_dit/model.pt": ("weights", "torch checkpoint, stage 1"),
    "sana_dit/config.yaml": ("config", "release settings of a streaming stage 1"),
    "ltx2_causal_vae/diffusion_pytorch_model.safetensors": ("weights", "weights, VAE"),
    "gemma2/model.safetensors.index.json": ("json", "index of"),
    "gemma2/config.json": ("json", "settings of a model: gemma2"),
    "latents.safetensors": ("latents", "latents, 25 latent frames of 12x8"),
    "camera.npy": ("trajectory", "camera path, 97 poses (npy)"),
    "first.png": ("image", "picture, 96x64"),
    "../tiny.toml": ("config", "config that sets"),
}


@pytest.mark.parametrize("name", PACKAGED)
def test_the_files_of_the_preset_are_known(name: str) -> None:
    kind, title = PACKAGED[name]
    found = look(TINY / name)
    assert found["kind"] == kind
    assert title in found["title"]


def test_a_folder_of_models_names_its_parts() -> None:
    found = look(TINY)
    assert (
        found["title"] == "models: gemma2, gemma3_12b, ltx2_causal_vae, refiner_diffusers, sana_dit"
    )
    assert found["problems"] == []
    hashes = [part.get("header_sha256") for part in found["components"]]
    assert len({h for h in hashes if h}) >= 3


OUTPUTS = {
    "refined.safetensors": ("latents", "7 latent frames of 12x8, 16 frames per second"),
    "noise.safetensors": ("noise", "the refiner (1x16x6x8x12)"),
    "embeds.safetensors": ("prompt-embeds", "the refiner (1x64x48) and stage 1 (1x1x48x48)"),
    "camera.npy": ("trajectory", "25 poses"),
    "frames": ("frames", "24 frames of 96x64"),
    "sheet.png": ("image", "picture"),
    "out.json": ("report", "report of a run (done, sanawm 0.1.0)"),
    "out.mp4": ("video", "video made by sanawm 0.1.0"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_outputs_of_a_run_are_known(run: Path, name: str) -> None:
    kind, title = OUTPUTS[name]
    found = look(run / name)
    assert found["kind"] == kind
    assert title in found["title"]


def test_our_video_tells_how_it_was_made(run: Path) -> None:
    found = look(run / "out.mp4")
    report = json.loads((run / "out.json").read_text(encoding="utf-8"))
    recipe = found["metadata"]
    assert recipe["version"] == "0.1.0"
    assert recipe["prompt"] == "a red tower"
    assert recipe["blocks"] == [12, 12]
    assert [w["header_sha256"] for w in recipe["weights"]] == [
        w["header_sha256"] for w in report["weights"]
    ]
    assert [i["sha256"] for i in recipe["inputs"]] == [i["sha256"] for i in report["inputs"]]
    changed = found["changed_settings"]
    assert changed["refiner.kv_max_frames"] == 8
    assert changed["input.fov_x"] == 80
    assert "refiner.block_size" not in changed  # 3, as in the release
    assert (found["frames"], found["width"], found["height"], found["fps"]) == (24, 96, 64, "16")
    text = sanawm("inspect", run / "out.mp4").out
    assert "prompt   a red tower" in text
    assert "    refiner.kv_max_frames = 8\n" in text
    assert "refiner.block_size" not in text


def test_a_part_file_is_called_unfinished(run: Path, tmp_path: Path) -> None:
    part = tmp_path / "x.part.mp4"
    part.write_bytes((run / "out.mp4").read_bytes())
    found = look(part)
    assert found["title"].endswith(", unfinished")
    assert found["unfinished"] is True
    assert look(run / "out.mp4")["unfinished"] is False


def test_other_videos_and_texts_are_known(run: Path, tmp_path: Path) -> None:
    from tests.io.clips import moving_clip
    from tests.tools.clips import write_lossless

    found = look(write_lossless(tmp_path / "x.mkv", moving_clip(5)))
    assert (found["kind"], found["frames"], found["codec"]) == ("video", 5, "ffv1")
    (tmp_path / "p.txt").write_text("a house by the sea\n", encoding="utf-8")
    assert look(tmp_path / "p.txt")["kind"] == "text"
    assert look(CASES / "C07_realestate10k_txt/clip.txt")["kind"] == "trajectory"
    assert look(CASES / "C08_nerfstudio_transforms/transforms.json")["format"] == "nerfstudio"
    assert look(CASES / "C09_colmap_text")["format"] == "colmap"
    assert look(CASES / "C10_intrinsics/vec4.npy")["kind"] == "intrinsics"
    shutil.copy(run / "out.mp4", tmp_path / "no_ending")
    assert look(tmp_path / "no_ending")["title"] == "video made by sanawm 0.1.0"


def test_a_config_tells_what_it_sets_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "tiny"\n[model]\nvae = "gone"\n[video]\ncrf = 20\n', encoding="utf-8"
    )
    found = look(path)
    assert found["extends"] == "tiny"
    assert found["settings"] == {"model.vae": str(tmp_path / "gone"), "video.crf": 20}
    assert found["resolved"]["video.height"] == {"value": 64, "origin": "preset tiny"}
    assert found["missing"] == [f"model.vae {tmp_path / 'gone'}"]


def state_file(path: Path) -> Path:
    recipe = {
        "latent shape": [1, 16, 25, 8, 12],
        "refiner.block_size": 3,
        "refiner.sink_size": 1,
        "refiner.kv_max_frames": 8,
        "sanawm": "0.1.0",
    }
    stages = {"refine": {"cache": torch.arange(6.0)}}
    save_state(path, {"block": 4, "recipe": recipe, "stages": stages})
    return path


def test_a_run_state_tells_how_far_it_is(tmp_path: Path) -> None:
    found = look(state_file(tmp_path / "out.state"))
    assert found["kind"] == "state"
    assert found["title"] == "run state after block 5 of 8"
    assert found["settings"] == {"refiner.kv_max_frames": 8}


def test_values_are_those_of_the_tensor(tmp_path: Path) -> None:
    tensor = torch.randn(1, 16, 3, 6, 8, generator=torch.Generator().manual_seed(0)) * 3 + 100
    tensor[0, 2, 1, 3, 4] = torch.nan
    tensor[0, 2, 1, 3, 5] = torch.inf
    good = tensor[tensor.isfinite()].double()
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        save_file({"latents": tensor.to(dtype)}, tmp_path / "z.safetensors")
        (row,) = look(tmp_path / "z.safetensors", "--stats")["tensors"]
        assert (row["nan"], row["infinite"]) == (1, 1)
        assert row["mean"] == pytest.approx(good.mean().item(), rel=tolerance)
        assert row["std"] == pytest.approx(good.std(correction=0).item(), rel=tolerance)
        assert row["min"] == pytest.approx(good.min().item(), rel=tolerance)
        assert row["max"] == pytest.approx(good.max().item(), rel=tolerance)


def test_values_merge_over_pieces() -> None:
    from sanawm.inspection.statistics import statistics_of

    numbers = np.random.default_rng(0).normal(1e6, 1e-3, 10_001)
    found = statistics_of(np.array_split(numbers, 13))
    assert found.mean == pytest.approx(numbers.mean(), rel=1e-12)
    assert found.std == pytest.approx(numbers.std(), rel=1e-6)
    assert found.numbers == 10_001
    assert statistics_of([np.full(3, np.nan)]).nan == 3


def test_pictures_and_videos_have_values_too(run: Path) -> None:
    from tests.cli.command import pngs

    frames = pngs(run / "frames")
    (row,) = look(run / "frames", "--stats")["tensors"]
    assert row["shape"] == [24, 64, 96, 3]
    assert (row["min"], row["max"]) == (frames.min(), frames.max())
    assert row["mean"] == pytest.approx(frames.mean())
    (row,) = look(run / "out.mp4", "--stats")["tensors"]
    assert row["mean"] == pytest.approx(frames.mean(), abs=2)


def test_keys_choose_tensors_and_long_lists_are_short_without(run: Path) -> None:
    folder = TINY / "refiner_diffusers/transformer"
    assert look(folder)["tensors"] == []
    rows = look(folder, "--keys", "transformer_blocks.0.attn1.*.weight")["tensors"]
    names = sorted(r["name"].rpartition("attn1.")[2] for r in rows)
    assert names == [
        "norm_k.weight", "norm_q.weight", "to_k.weight", "to_out.0.weight", "to_q.weight",
        "to_v.weight",
    ]  # fmt: skip
    assert rows[0]["dtype"] == "BF16"
    assert "min" not in rows[0]
    (row,) = look(TINY / "sana_dit/model.pt", "--keys", "blocks.0.attn.A_log", "--stats")["tensors"]
    assert row["nan"] == 0


def test_without_stats_no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: TensorFiles, name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(TensorFiles, "read", read)
    assert look(TINY / "refiner_diffusers")["kind"] == "checkpoint"
    assert look(TINY / "ltx2_causal_vae")["kind"] == "checkpoint"


def broken_files(folder: Path) -> dict[str, tuple[Path, int]]:
    """Return files that are broken, and the exit code that `refine` has for each."""
    whole = (TINY / "latents.safetensors").read_bytes()
    state = state_file(folder / "out.state")
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    made = {
        "latents.safetensors": whole[:-40],
        "prompt.txt": b"\0\0\0",
        "config.toml": b"[video]\ncrff = 3\n",
        "report.json": b'{"tool": "sanawm',
        "no_video.mp4": b"no video at all",
        "empty.mp4": b"",
        "half.state": bytes(data[:100]),
        "other.xyz": b"\1\2\3",
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    np.save(folder / "latents4.npy", np.zeros((1, 2, 3, 4, 0), np.float32))
    save_file({"prompt_embeds": torch.zeros(1, 4, 48)}, folder / "no_mask.safetensors")
    save_file({"eps": torch.zeros(4, 4)}, folder / "noise.safetensors")
    codes = {
        name: 2 for name in (*made, "latents4.npy", "no_mask.safetensors", "noise.safetensors")
    }
    files = {name: (folder / name, code) for name, code in codes.items()}
    files |= {
        "camera": (CASES / "C01_camera_nan/nan.npy", 2),
        "camera columns": (CASES / "C07_realestate10k_txt/bad_columns.txt", 2),
        "intrinsics": (CASES / "C10_intrinsics/nan.npy", 2),
        "picture": (CASES / "C19_first_frame_images/truncated.jpg", 2),
        "text as picture": (CASES / "C19_first_frame_images/text_renamed.png", 2),
        "pickle": (CASES / "C17_pickle_checkpoint/raw_pickle.pkl", 2),
        "unsafe pt": (CASES / "C17_pickle_checkpoint/marker_exec.pt", 3),
        "odd pt": (CASES / "C17_pickle_checkpoint/has_namespace.pt", 3),
        "missing": (folder / "nothing.mp4", 3),
        "empty folder": (CASES.parent / "tools" / "nowhere", 3),
    }
    weights = CASES / "C14_safetensors_broken"
    for path in weights.glob("*.safetensors"):
        files[path.stem] = (path, 0 if path.stem == "ok_reference" else 3)
    return files


def test_broken_files_exit_as_refine_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (path, code) in broken_files(tmp_path).items():
        done = sanawm("inspect", path)
        assert done.code == code, (name, done.err)
        if code:
            assert str(path) in done.error
            assert len(done.error.splitlines()) <= 3
            assert done.out == ""
    assert not (tmp_path / "PWNED_MARKER").exists()


def test_no_file_of_the_cases_is_a_bug() -> None:
    """Whatever a file holds, it is described or refused in words."""
    for path in sorted(p for p in CASES.rglob("*") if p.is_file()):
        done = sanawm("inspect", path)
        assert done.code in (0, 2, 3), (path, done.err)


@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": 1}], ids=str)
def test_an_odd_report_is_no_bug(value: object, tmp_path: Path) -> None:
    keys = ("frames", "output", "error", "blocks", "changes", "settings", "total_seconds")
    text = json.dumps({"tool": "sanawm 9", **dict.fromkeys(keys, value)})
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    assert look(tmp_path / "r.json")["kind"] == "report"


AS_INPUT = {
    "latents.safetensors": "--latents",
    "prompt.txt": "--prompt-file",
    "config.toml": "-c",
    "no_video.mp4": "--video",
    "camera": "--camera",
    "picture": "--image",
    "unsafe pt": "--latents",
    "no_mask.safetensors": "--prompt-embeds",
    "missing": "--video",
}


def test_these_codes_are_those_of_refine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = broken_files(tmp_path)
    for name, flag in AS_INPUT.items():
        path, code = files[name]
        more = () if flag in ("-c", "--latents", "--video", "--image") else ("-c", "tiny")
        done = sanawm("refine", flag, path, *more, "-o", tmp_path / "x.mp4", "--dry-run")
        assert done.code == code, (name, done.err)


def test_a_checkpoint_without_a_tensor_is_broken(tmp_path: Path) -> None:
    source = TINY / "refiner_diffusers/transformer"
    shutil.copytree(source, tmp_path / "transformer")
    file = tmp_path / "transformer/diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["proj_in.weight"]
    save_file(tensors, file)
    done = sanawm("inspect", tmp_path / "transformer")
    assert done.code == 3
    assert "1 missing: proj_in.weight" in done.error


def test_one_broken_file_of_several_fails_at_the_end(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    done = sanawm("inspect", broken, TINY / "first.png", "--json")
    assert done.code == 2
    assert [f["kind"] for f in done.json["files"]] == [None, "image"]
    assert done.json["files"][0]["error"]["exit_code"] == 2
    assert done.json["status"] == "failed"


def test_json_comes_with_the_log_format_too() -> None:
    done: Done = sanawm("--log-format", "json", "inspect", TINY / "first.png")
    assert done.json["files"][0]["width"] == 96
    assert len(done.out.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [(), ("a", "--keys"), ("a", "--overwrite"), ("a", "--nosuch")], ids=str
)
def test_wrong_use_is_said(arguments: tuple[str, ...]) -> None:
    assert sanawm("inspect", *arguments).code == 2
