"""Names and shapes of the release, and loading from every container."""

from __future__ import annotations

import ast
import csv
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.checkpoint import check_names
from sanawm.errors import CheckpointError, MissingFile
from sanawm.notes import Notes
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.model import Stage1Model
from sanawm.stage1.weights import ignored, load_stage1, plain_name

from . import cases
from .cases import worst

KEYS = cases.GOLDEN.parent / "keys" / "stage1_keys.tsv"


def rows() -> list[dict[str, str]]:
    with KEYS.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_names_and_shapes_of_the_release() -> None:
    with torch.device("meta"):
        model = Stage1Model(Stage1Config.released())
    found = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    used = {
        plain_name(r["checkpoint_key"]): ast.literal_eval(r["shape"])
        for r in rows()
        if r["used_by_streaming_forward"] == "yes"
    }
    assert len(used) == 818
    assert found == used


def test_the_whole_release_is_accepted_and_what_is_ignored_is_named() -> None:
    config = Stage1Config.released()
    with torch.device("meta"):
        wanted = {k: tuple(v.shape) for k, v in Stage1Model(config).state_dict().items()}
    stored = {plain_name(r["checkpoint_key"]): ast.literal_eval(r["shape"]) for r in rows()}
    assert len(stored) == 872
    check_names(wanted, stored, ignore=ignored(config), label="release")
    stored["blocks.0.attn.extra"] = (1,)
    with pytest.raises(CheckpointError, match=r"1 unexpected: blocks\.0\.attn\.extra"):
        check_names(wanted, stored, ignore=ignored(config), label="release")


def test_gates_are_ignored_in_softmax_blocks_only() -> None:
    config = Stage1Config.released()
    with torch.device("meta"):
        wanted = {k: tuple(v.shape) for k, v in Stage1Model(config).state_dict().items()}
    stored = {plain_name(r["checkpoint_key"]): ast.literal_eval(r["shape"]) for r in rows()}
    del stored["blocks.4.attn.A_log"]
    with pytest.raises(CheckpointError, match=r"1 missing: blocks\.4\.attn\.A_log"):
        check_names(wanted, stored, ignore=ignored(config), label="release")


def test_diffusers_names_are_those_used_here() -> None:
    for row in rows():
        theirs = row["diffusers_bidirectional_key"]
        if theirs != "-":
            assert plain_name(theirs) == plain_name(row["checkpoint_key"])


def raw() -> dict[str, Tensor]:
    return load_file(cases.TINY / "weights.safetensors")


def load(path: Path, config: Stage1Config | None = None) -> Stage1Model:
    return load_stage1(
        path,
        config=cases.tiny_config() if config is None else config,
        device="cpu",
        dtype=torch.float32,
        notes=Notes(),
    )


def assert_loaded(path: Path) -> None:
    want = cases.tiny_model().state_dict()
    found = load(path).state_dict()
    assert want.keys() == found.keys()
    assert all(torch.equal(found[k], v) for k, v in want.items())


@pytest.mark.parametrize("container", ["generator", "state_dict", None])
def test_pickles(container: str | None, tmp_path: Path) -> None:
    tensors = raw() | {"model.pos_embed": torch.zeros(1, 4, 64)}
    content: object = tensors
    if container:
        content = {container: tensors, "critic": {"w": torch.zeros(2)}, "step": 17}
    torch.save(content, tmp_path / "model.pt")
    assert_loaded(tmp_path)
    assert_loaded(tmp_path / "model.pt")


def test_safetensors_in_a_folder_with_diffusers_names(tmp_path: Path) -> None:
    renamed = {
        k.removeprefix("model.").replace("mlp.0.", "linear_1.").replace("mlp.2.", "linear_2."): v
        for k, v in raw().items()
        if "y_embedding" not in k
    }
    save_file(renamed, tmp_path / "diffusion_pytorch_model.safetensors")
    assert_loaded(tmp_path)


def test_decay_parameters_stay_in_float32() -> None:
    model = cases.tiny_model(dtype=torch.bfloat16)
    kept = {k for k, v in model.state_dict().items() if v.dtype == torch.float32}
    gdn = [i for i in range(5) if not model.config.is_softmax(i)]
    assert kept == {f"blocks.{i}.attn.{n}" for i in gdn for n in ("A_log", "dt_bias")}


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    tensors = raw()
    del tensors["model.blocks.1.mlp.t_conv.weight"]
    tensors["model.x_embedder.proj.bias"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert "1 missing: blocks.1.mlp.t_conv.weight" in str(caught.value)
    assert "x_embedder.proj.bias is 3, expected 64" in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_raymap_embedder_without_the_plucker_residual_is_not_ignored(tmp_path: Path) -> None:
    """Such a model adds the absolute ray map to its input, which is not computed here."""
    config = replace(cases.tiny_config(), plucker_channels=0, plucker_blocks=0)
    tensors = {k: v for k, v in raw().items() if "plucker" not in k}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"2 unexpected: raymap_embedder\.proj\.bias"):
        load(tmp_path, config)
    save_file(
        {k: v for k, v in tensors.items() if "raymap" not in k}, tmp_path / "model.safetensors"
    )
    assert load(tmp_path, config).plucker_embedder is None


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        load(tmp_path / "none.pt")
    for name, content, message in (
        ("list.pt", [torch.zeros(1)], "no state dict found"),
        ("empty.pt", {}, "no state dict found"),
        ("odd.pt", {"generator": {"w": 3}}, "entry w is no tensor"),
    ):
        torch.save(content, tmp_path / name)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / name)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("/tmp/never"),)  # type: ignore[return-value]


def test_pickles_with_code_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "model.pt").open("wb") as file:
        pickle.dump({"generator": Evil()}, file)
    with pytest.raises(CheckpointError):
        load(tmp_path)


def test_dtype_of_the_container_does_not_matter(tmp_path: Path) -> None:
    torch.save({"generator": {k: v.double() for k, v in raw().items()}}, tmp_path / "model.pt")
    a, b = load(tmp_path), cases.tiny_model()
    assert worst(a.final_layer.linear.weight, b.final_layer.linear.weight) == 0
