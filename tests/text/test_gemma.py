"""The Gemma backbone that we build and load, against transformers' own `from_pretrained`."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sanawm.errors import CheckpointError, MachineError, MissingFile
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles
from sanawm.text.gemma import check_states, load_gemma, prompt_states, read_gemma_config
from sanawm.text.tokenizer import Tokens, load_tokenizer, tokenize
from tests.text.tiny_gemma import make_tiny_gemma, write_json

PROMPT = "a red tower on green ground under a blue sky, with the lake in the distance"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    return load_gemma(folder, device="cpu", dtype=dtype, notes=Notes())


def tokens(folder: Path, *, max_length: int = 48) -> Tokens:
    return tokenize(load_tokenizer(folder), PROMPT, max_length=max_length, notes=Notes())


def reference(folder: Path, dtype: torch.dtype) -> nn.Module:
    """Return the whole model as transformers loads it, vision tower included."""
    from transformers import Gemma3ForConditionalGeneration

    return Gemma3ForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, local_files_only=True
    ).eval()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_equal_those_of_transformers(gemma_folder: Path, dtype: torch.dtype) -> None:
    batch = tokens(gemma_folder)
    assert 16 < int(batch.mask.sum()) < 48  # longer than the sliding window, and padded
    states = prompt_states(load(gemma_folder, dtype), batch)
    with torch.no_grad():
        expected = reference(gemma_folder, dtype)(
            input_ids=batch.ids, attention_mask=batch.mask, output_hidden_states=True
        ).hidden_states
    assert len(states) == len(expected) == 4
    valid = batch.mask.bool()
    for ours, theirs in zip(states, expected, strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours[valid], theirs[valid])


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_equal_those_of_transformers(gemma_folder: Path, dtype: torch.dtype) -> None:
    ours = dict(load(gemma_folder, dtype).named_buffers())
    theirs = dict(reference(gemma_folder, dtype).model.language_model.named_buffers())
    assert sorted(ours) == sorted(theirs)
    assert len(ours) == 5  # two frequency tables, each twice, and the embedding scale
    for name, value in ours.items():
        assert torch.equal(value.to(theirs[name].dtype), theirs[name]), name


def test_states_are_embeddings_layer_outputs_and_the_final_norm(gemma_folder: Path) -> None:
    """Recompute the definition from the parts: hooks see what the layers really gave."""
    backbone = load(gemma_folder)
    outputs: list[Tensor] = []
    for layer in backbone.layers:
        layer.register_forward_hook(lambda _m, _i, out: outputs.append(out))
    batch = tokens(gemma_folder)
    states = prompt_states(backbone, batch)
    weights = {n: TensorFiles(gemma_folder).read(n).float() for n in TensorFiles(gemma_folder)}
    table = weights["language_model.model.embed_tokens.weight"]
    torch.testing.assert_close(states[0], table[batch.ids] * 32**0.5)
    assert torch.equal(states[1], outputs[0])
    assert torch.equal(states[2], outputs[1])
    last = outputs[2] * torch.rsqrt(outputs[2].square().mean(-1, keepdim=True) + 1e-6)
    last = last * (1 + weights["language_model.model.norm.weight"])
    torch.testing.assert_close(states[3], last)
    assert (states[3] - outputs[2]).abs().max() > 0.1


def test_padding_shifts_positions_but_is_not_attended(gemma_folder: Path) -> None:
    backbone = load(gemma_folder)
    short, long = tokens(gemma_folder, max_length=40), tokens(gemma_folder, max_length=48)
    n = int(short.mask.sum())
    poisoned = long._replace(ids=torch.where(long.mask.bool(), long.ids, 77))
    clean = prompt_states(backbone, long)[-1][0, -n:]
    assert torch.equal(prompt_states(backbone, poisoned)[-1][0, -n:], clean)
    # rotary attention sees differences of positions only, so the shift is not visible
    torch.testing.assert_close(prompt_states(backbone, short)[-1][0, -n:], clean)


def test_only_the_backbone_is_read(gemma_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = TensorFiles.read

    def spy(self: TensorFiles, name: str) -> Tensor:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(TensorFiles, "read", spy)
    load(gemma_folder)
    assert read
    assert all(name.startswith("language_model.model.") for name in read)
    stored = list(TensorFiles(gemma_folder))
    assert any(name.startswith("vision_tower.") for name in stored)
    assert any(name.startswith("multi_modal_projector.") for name in stored)


def rewritten(source: Path, target: Path, rename: dict[str, str]) -> Path:
    """Copy a text encoder folder with other tensor name prefixes, as one file without index."""
    target.mkdir()
    for file in source.iterdir():
        if not file.name.startswith("model"):
            shutil.copy(file, target)
    files = TensorFiles(source)
    weights = {}
    for name in files:
        for old, new in rename.items():
            if name.startswith(old):
                weights[new + name.removeprefix(old)] = files.read(name).clone()
    save_file(weights, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    "rename",
    [
        {"language_model.model.": "model.language_model.", "vision_tower.": "model.vision_tower."},
        {"language_model.model.": "model."},
        {"language_model.model.": ""},
    ],
)
def test_other_name_prefixes(gemma_folder: Path, tmp_path: Path, rename: dict[str, str]) -> None:
    folder = rewritten(gemma_folder, tmp_path / "other", rename)
    for ours, theirs in zip(
        load(folder).state_dict().values(), load(gemma_folder).state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_text_only_folder(gemma_folder: Path, tmp_path: Path) -> None:
    """`Gemma3ForCausalLM` as transformers writes it: settings at top level, prefix `model.`."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = json.loads((gemma_folder / "config.json").read_text())["text_config"]
    torch.manual_seed(5)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**config)).eval()
    model.save_pretrained(tmp_path)
    batch = tokens(gemma_folder)
    with torch.no_grad():
        expected = model.model(
            input_ids=batch.ids, attention_mask=batch.mask, output_hidden_states=True
        ).hidden_states
    states = prompt_states(load(tmp_path), batch)
    valid = batch.mask.bool()
    assert all(torch.equal(a[valid], b[valid]) for a, b in zip(states, expected, strict=True))


def test_what_transformers_writes_today_is_read(gemma_folder: Path, tmp_path: Path) -> None:
    reference(gemma_folder, torch.float32).save_pretrained(tmp_path)
    expected = load(gemma_folder).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in load(tmp_path).state_dict().items())


def test_any_other_tensor_is_an_error(gemma_folder: Path, tmp_path: Path) -> None:
    folder = rewritten(gemma_folder, tmp_path / "other", {"": ""})
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"language_model.model.adapter": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"unexpected: language_model\.model\.adapter"):
        load(folder)


def test_a_missing_layer_is_an_error(gemma_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gemma_folder, tmp_path / "other"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 4
    write_json(folder / "config.json", config)
    with pytest.raises(CheckpointError, match=r"13 missing: language_model\.model\.layers\.3\."):
        load(folder)


def test_settings_without_transformers(gemma_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    info = read_gemma_config(gemma_folder)
    assert (info.width, info.layers, info.states) == (32, 3, 4)
    with pytest.raises(MachineError, match=r"needs transformers.*found 5\.\S+, tested with 5") as e:
        load(gemma_folder)
    assert e.value.exit_code == 4
    assert "--prompt-embeds" in str(e.value)


def test_a_transformers_that_cannot_build_it(
    gemma_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def fail(*_: object) -> None:
        raise AttributeError("'Gemma3TextConfig' object has no attribute 'rope_local_base_freq'")

    monkeypatch.setattr(transformers, "Gemma3TextModel", fail)
    with pytest.raises(MachineError) as e:
        load(gemma_folder)
    message = str(e.value)
    assert "rope_local_base_freq" in message
    assert f"transformers {transformers.__version__} cannot build" in message
    assert "tested with 5.24.0" in message
    assert len(message.splitlines()) == 2


def test_settings_of_a_wrong_type(gemma_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gemma_folder, tmp_path / "other"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] = "wide"
    write_json(folder / "config.json", config)
    with pytest.raises(MachineError, match="intermediate_size"):
        load(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gemma2"}, "model_type is 'gemma2', expected 'gemma3' or 'gemma3_text'"),
        ({}, "model_type is None"),
        ({"model_type": "gemma3"}, "no text_config"),
        ({"model_type": "gemma3_text"}, "hidden_size and num_hidden_layers"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write_json(tmp_path / "config.json", config)
    with pytest.raises(CheckpointError, match=message):
        read_gemma_config(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"nowhere/config\.json"):
        load(tmp_path / "nowhere")


def test_no_states_is_an_error(gemma_folder: Path) -> None:
    backbone = load(gemma_folder)

    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = backbone

        def forward(self, output_hidden_states: bool, **rest: Any) -> object:
            return self.inner(**rest)

    with pytest.raises(MachineError, match="gave no per-layer hidden states"):
        prompt_states(Silent(), tokens(gemma_folder))


def test_unfitting_parts_name_both_numbers() -> None:
    check_states(count=4, width=32, want_count=4, want_width=32, where=Path("g"))
    with pytest.raises(CheckpointError, match=r"gives 4 hidden states.*expect 49") as e:
        check_states(count=4, width=32, want_count=49, want_width=32, where=Path("g"))
    assert e.value.exit_code == 3
    with pytest.raises(CheckpointError, match="hidden size is 32, the connectors expect 3840"):
        check_states(count=49, width=32, want_count=49, want_width=3840, where=Path("g"))


def test_no_network(gemma_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("network used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    prompt_states(load(gemma_folder), tokens(gemma_folder))


def test_tiny_gemma_is_small_and_repeatable(tmp_path: Path) -> None:
    first = make_tiny_gemma(tmp_path / "a", seed=1, vocab=1024, hidden=48, heads=3, layers=4)
    second = make_tiny_gemma(tmp_path / "b", seed=1, vocab=1024, hidden=48, heads=3, layers=4)
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
    assert (first / "tokenizer.json").stat().st_size < 100_000
    assert sum(f.stat().st_size for f in first.glob("*.safetensors")) < 400_000
    other = make_tiny_gemma(tmp_path / "c", seed=2, vocab=1024, hidden=48, heads=3, layers=4)
    shard = "model-00001-of-00002.safetensors"
    assert (first / shard).read_bytes() != (other / shard).read_bytes()
