"""The Gemma-2 backbone of stage 1, against transformers' own `from_pretrained`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from configs.tiny.make.tiny_gemma2 import make_tiny_gemma2, tiny_config2, write_json
from sanawm.errors import CheckpointError, MachineError
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles
from sanawm.text import gemma
from sanawm.text.gemma import (
    GEMMA2,
    check_ids,
    last_state,
    load_gemma,
    prompt_states,
    read_gemma_config,
)
from sanawm.text.tokenizer import Tokens, load_tokenizer, tokenize
from tests.text.reference_caption import load_reference

PROMPT = "a red tower on green ground under a blue sky, with the lake in the distance"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    return load_gemma(folder, family=GEMMA2, device="cpu", dtype=dtype, notes=Notes())


def tokens(folder: Path, *, max_length: int = 40) -> Tokens:
    tokenizer = load_tokenizer(folder)
    return tokenize(tokenizer, PROMPT, max_length=max_length, side="right", notes=Notes())


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_equal_those_of_transformers(gemma2_folder: Path, dtype: torch.dtype) -> None:
    batch = tokens(gemma2_folder)
    assert 16 < int(batch.mask.sum()) < 40  # longer than the sliding window, and padded
    backbone = load(gemma2_folder, dtype)
    decoder = load_reference(gemma2_folder, dtype).model.get_decoder()
    with torch.no_grad():
        expected = decoder(batch.ids, attention_mask=batch.mask, output_hidden_states=True)
    state = last_state(backbone, batch)
    assert state.dtype == dtype
    assert not state.requires_grad
    assert torch.equal(state, expected.last_hidden_state)
    states = prompt_states(backbone, batch)
    assert len(states) == 3
    for ours, theirs in zip(states, expected.hidden_states, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(states[-1], state)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_and_weights_equal_those_of_transformers(
    gemma2_folder: Path, dtype: torch.dtype
) -> None:
    backbone = load(gemma2_folder, dtype)
    reference = load_reference(gemma2_folder, dtype).model.get_decoder()
    ours, theirs = dict(backbone.named_buffers()), dict(reference.named_buffers())
    assert sorted(ours) == sorted(theirs)
    assert sorted(ours) == [
        "embed_tokens.embed_scale", "rotary_emb.inv_freq", "rotary_emb.original_inv_freq"
    ]  # fmt: skip
    for name, value in ours.items():
        assert torch.equal(value.to(theirs[name].dtype), theirs[name]), name
    weights = dict(reference.named_parameters())
    for name, value in backbone.named_parameters():
        assert torch.equal(value, weights.pop(name)), name
    assert not weights


def test_logits_are_softly_capped(gemma2_folder: Path) -> None:
    """Another attention than the eager one would lose the cap (sdpa cannot do it)."""
    backbone = load(gemma2_folder)
    assert backbone.config._attn_implementation == "eager"
    assert backbone.config.attn_logit_softcapping == 50.0
    assert [layer.self_attn.sliding_window for layer in backbone.layers] == [16, None]


def test_released_sizes(tmp_path: Path) -> None:
    """Names and shapes of gemma-2-2b: 288 tensors, counted by hand from its published sizes."""
    sizes = {
        "head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "vocab_size": 256000,
    }  # fmt: skip
    write_json(tmp_path / "config.json", tiny_config2(sizes, dtype=torch.bfloat16))
    save_file({"model.norm.weight": torch.zeros(2304)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"287 missing: model\.embed_tokens\.weight"):
        load(tmp_path)
    backbone = gemma._build(read_gemma_config(tmp_path, family=GEMMA2), GEMMA2, tmp_path)
    attention, mlp = 2304 * 2 * (8 * 256) + 2304 * 2 * (4 * 256), 3 * 2304 * 9216
    expected = 256000 * 2304 + 26 * (attention + mlp + 4 * 2304) + 2304
    assert sum(p.numel() for p in backbone.parameters()) == expected == 2_614_341_888


def test_padding_is_not_attended(gemma2_folder: Path) -> None:
    backbone = load(gemma2_folder)
    batch = tokens(gemma2_folder)
    n = int(batch.mask.sum())
    poisoned = batch._replace(ids=torch.where(batch.mask.bool(), batch.ids, 77))
    clean = last_state(backbone, batch)[0, :n]
    assert torch.equal(last_state(backbone, poisoned)[0, :n], clean)
    longer = last_state(backbone, tokens(gemma2_folder, max_length=48))[0, :n]
    torch.testing.assert_close(longer, clean)


def renamed(source: Path, target: Path, old: str, new: str) -> Path:
    """Copy a folder with another prefix of the tensor names, as one file without index."""
    target.mkdir()
    for file in source.iterdir():
        if not file.name.startswith("model"):
            shutil.copy(file, target)
    files = TensorFiles(source)
    weights = {new + name.removeprefix(old): files.read(name).clone() for name in files}
    save_file(weights, target / "model.safetensors")
    return target


def test_a_bare_backbone_and_an_output_head(gemma2_folder: Path, tmp_path: Path) -> None:
    folder = renamed(gemma2_folder, tmp_path / "bare", "model.", "")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"lm_head.weight": torch.zeros(1)}, path)
    expected = load(gemma2_folder).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in load(folder).state_dict().items())


def test_what_transformers_writes_today_is_read(gemma2_folder: Path, tmp_path: Path) -> None:
    load_reference(gemma2_folder, torch.float32).model.save_pretrained(tmp_path)
    expected = load(gemma2_folder).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in load(tmp_path).state_dict().items())


def test_any_other_tensor_is_an_error(gemma2_folder: Path, tmp_path: Path) -> None:
    folder = renamed(gemma2_folder, tmp_path / "other", "", "")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"model.adapter": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"unexpected: model\.adapter"):
        load(folder)
    weights = load_file(path)
    del weights["model.adapter"], weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"1 missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


def test_the_generations_are_not_mixed_up(gemma_folder: Path, gemma2_folder: Path) -> None:
    with pytest.raises(CheckpointError, match="is 'gemma3', expected 'gemma2'") as e:
        read_gemma_config(gemma_folder, family=GEMMA2)
    assert "gemma-2-2b-it" in str(e.value)
    with pytest.raises(CheckpointError, match="is 'gemma2', expected 'gemma3' or 'gemma3_text'"):
        read_gemma_config(gemma2_folder)
    info = read_gemma_config(gemma2_folder, family=GEMMA2)
    assert (info.width, info.layers) == (32, 2)


def test_a_transformers_that_cannot_build_it(
    gemma2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def fail(*_: object) -> None:
        raise AttributeError("'Gemma2Config' object has no attribute 'sliding_window'")

    monkeypatch.setattr(transformers, "Gemma2Model", fail)
    with pytest.raises(MachineError, match=r"transformers 5\.\S+ cannot build .*sliding_window"):
        load(gemma2_folder)


def test_a_tokenizer_of_another_model(gemma2_folder: Path) -> None:
    backbone = load(gemma2_folder)
    batch = tokens(gemma2_folder)
    check_ids(backbone, batch, where=gemma2_folder)
    larger = batch._replace(ids=batch.ids.clone().fill_(640))
    with pytest.raises(CheckpointError, match="gives id 640, the text encoder has 640 embeddings"):
        check_ids(backbone, larger, where=gemma2_folder)


def test_tiny_gemma2_is_small_and_repeatable(tmp_path: Path) -> None:
    first = make_tiny_gemma2(tmp_path / "a", seed=1, hidden=48, heads=3)
    second = make_tiny_gemma2(tmp_path / "b", seed=1, hidden=48, heads=3)
    assert sorted(f.name for f in first.iterdir()) == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
    assert sum(f.stat().st_size for f in first.iterdir()) < 250_000
    single = make_tiny_gemma2(tmp_path / "c", seed=1, hidden=48, heads=3, shards=1)
    assert [f.name for f in single.glob("model*")] == ["model.safetensors"]
    expected = load(first).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in load(single).state_dict().items())
    other = load(make_tiny_gemma2(tmp_path / "d", seed=2, hidden=48, heads=3)).state_dict()
    assert not any(torch.equal(v, expected[k]) for k, v in other.items())
