"""Loading the refiner: one file or shards, the audio half left unread, everything else named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.errors import CheckpointError, MissingFile
from sanawm.notes import Notes
from sanawm.refiner.model import RefinerModel
from sanawm.refiner.weights import load_refiner
from sanawm.tensorfile import TensorFiles

from .golden_cases import CASES, FOLDER

FILE = "diffusion_pytorch_model.safetensors"
Tensors = dict[str, Tensor]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A refiner root with a copy of the small split model."""
    folder = tmp_path / "transformer"
    folder.mkdir()
    for file in (FOLDER / "model_split").iterdir():
        shutil.copyfile(file, folder / file.name)
    return tmp_path


def load(root: Path, notes: Notes | None = None) -> RefinerModel:
    return load_refiner(root, device="cpu", dtype=torch.float32, notes=notes)


def change(root: Path, edit: Callable[[Tensors], Tensors | None]) -> None:
    path = root / "transformer" / FILE
    tensors = load_file(path)
    save_file(edit(tensors) or tensors, path)


def change_config(root: Path, **values: Any) -> None:
    path = root / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def shard(root: Path, count: int) -> Path:
    """Cut the weights into shards with an index and return the index."""
    folder = root / "transformer"
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    names = sorted(tensors)
    weight_map = {}
    for i in range(count):
        name = f"diffusion_pytorch_model-{i + 1:05}-of-{count:05}.safetensors"
        part = names[i::count]
        save_file({n: tensors[n] for n in part}, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = folder / f"{FILE}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def assert_equal_weights(model: RefinerModel, expected: Tensors) -> None:
    found = model.state_dict()
    assert found
    assert found.keys() <= expected.keys()
    assert all(torch.equal(t, expected[n]) for n, t in found.items())


def test_single_file_and_shards_load_equally(root: Path) -> None:
    expected = load_file(root / "transformer" / FILE)
    single = load(root)
    assert_equal_weights(single, expected)
    assert not any(p.requires_grad for p in single.parameters())
    assert not single.training
    shard(root, 3)
    assert_equal_weights(load(root), expected)
    assert_equal_weights(load(root / "transformer"), expected)  # the folder itself


def test_weights_are_held_in_the_asked_dtype(root: Path) -> None:
    model = load_refiner(root, device="cpu", dtype=torch.bfloat16)
    expected = load_file(root / "transformer" / FILE)
    assert {t.dtype for t in model.state_dict().values()} == {torch.bfloat16}
    assert torch.equal(model.proj_in.weight, expected["proj_in.weight"].bfloat16())


def test_audio_tensors_are_present_and_never_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = TensorFiles.read

    def spy(self: TensorFiles, name: str) -> Tensor:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(TensorFiles, "read", spy)
    model = load(root)
    stored = set(load_file(root / "transformer" / FILE))
    audio = {n for n in stored if "audio" in n or n.startswith("av_cross") or "a2v" in n}
    assert len(audio) > 100
    assert sorted(read) == sorted(model.state_dict())  # each once
    assert set(read) == stored - audio


@pytest.mark.parametrize(
    "name",
    [
        "transformer_blocks.0.attn1.to_q.lora_A.weight",
        "transformer_blocks.2.attn1.to_q.weight",
        "proj_in.weight_scale",
        "prompt_adaln.linear.weight",
    ],
)
def test_any_other_extra_tensor_is_an_error(root: Path, name: str) -> None:
    change(root, lambda t: t | {name: torch.zeros(2)})
    with pytest.raises(CheckpointError, match=f"1 unexpected: {name}") as caught:
        load(root)
    assert str(root / "transformer") in caught.value.message
    assert caught.value.exit_code == 3


def test_missing_and_misshapen_tensors_are_counted_and_named(root: Path) -> None:
    def edit(t: Tensors) -> None:
        for name in [n for n in t if n.startswith("transformer_blocks.0.attn1.")]:
            del t[name]
        t["proj_in.weight"] = torch.zeros(32, 9)
        t["proj_out.bias"] = torch.zeros(())
        t["new.tensor"] = torch.zeros(1)

    change(root, edit)
    with pytest.raises(CheckpointError) as caught:
        load(root)
    message = caught.value.message
    missing, misshapen, extra = message.split("; ")[1:]
    assert missing.startswith("10 missing: transformer_blocks.0.attn1.")
    assert missing.count("attn1") == 5
    assert missing.endswith("… (5 more)")
    assert misshapen.startswith("2 of another shape: ")
    assert "proj_in.weight is 32x9, expected 32x8" in misshapen
    assert "proj_out.bias is scalar, expected 8" in misshapen
    assert extra == "1 unexpected: new.tensor"


@pytest.mark.parametrize("prefix", ["module.", "model.", "model.diffusion_model."])
def test_a_common_prefix_is_stripped_with_a_line(root: Path, prefix: str) -> None:
    expected = load_file(root / "transformer" / FILE)
    change(root, lambda t: {prefix + n: v for n, v in t.items()})
    notes = Notes()
    assert_equal_weights(load(root, notes), expected)
    assert notes.infos == [f"stripped the prefix `{prefix}` from the checkpoint's names"]


def test_compiled_names_are_cleaned_with_a_line(root: Path) -> None:
    expected = load_file(root / "transformer" / FILE)

    def edit(t: Tensors) -> Tensors:
        return {
            n.replace("transformer_blocks.1.", "transformer_blocks.1._orig_mod."): v
            for n, v in t.items()
        }

    change(root, edit)
    notes = Notes()
    assert_equal_weights(load(root, notes), expected)
    assert notes.infos == ["stripped `_orig_mod.` from the checkpoint's names"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["transformer_blocks.1.ff.net.2.bias", "scale_shift_table"])
def test_nan_weight_is_named(root: Path, name: str, value: float) -> None:
    def edit(t: Tensors) -> None:
        t[name].view(-1)[3] = value

    change(root, edit)
    with pytest.raises(CheckpointError, match=f"tensor {name} holds NaN or infinity"):
        load(root)


def test_nan_in_an_ignored_tensor_does_no_harm(root: Path) -> None:
    def edit(t: Tensors) -> None:
        t["audio_proj_in.weight"].fill_(float("nan"))

    expected = load_file(root / "transformer" / FILE)
    change(root, edit)
    assert_equal_weights(load(root), expected)


def test_quantised_weights_are_refused(root: Path) -> None:
    def edit(t: Tensors) -> None:
        t["proj_in.weight"] = torch.ones(32, 8, dtype=torch.int8)

    change(root, edit)
    with pytest.raises(CheckpointError, match=r"proj_in\.weight is stored as torch\.int8"):
        load(root)


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/evil.safetensors", "..", "a/b", ""])
def test_a_shard_outside_its_folder_is_refused(root: Path, name: str) -> None:
    index = shard(root, 2)
    shutil.copyfile(FOLDER / "model_split" / FILE, root / "evil.safetensors")
    data = json.loads(index.read_text())
    data["weight_map"]["proj_in.bias"] = name
    index.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"shard name '.*' points outside the folder"):
        load(root)


def test_no_refiner_here(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"no refiner here; expected transformer/config\.json"):
        load(tmp_path)


def test_ltx23_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"cross_attn_mod is True, an LTX-2\.3 option"):
        load(FOLDER / "model_ltx23")


@pytest.mark.parametrize("name", list(CASES["models"]))
def test_golden_models_keep_their_architecture(name: str) -> None:
    config = load(FOLDER / CASES["models"][name]).config
    expected = json.loads((FOLDER / CASES["models"][name] / "config.json").read_text())
    for key in ("num_layers", "rope_type", "gated_attn", "norm_elementwise_affine", "ff_bias"):
        assert getattr(config, key) == expected[key]
