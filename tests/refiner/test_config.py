"""`transformer/config.json`: defaults, what is refused, and how it is said."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sanawm.errors import CheckpointError, MissingFile
from sanawm.refiner.config import RefinerConfig

from .golden_cases import FOLDER


def parse(**values: Any) -> RefinerConfig:
    return RefinerConfig.from_dict(values, where="config.json")


def test_missing_keys_take_the_class_default() -> None:
    assert parse() == RefinerConfig()
    assert parse(rope_type="split") == RefinerConfig.released()
    assert RefinerConfig.released().width == 4096
    # The class default is not the release's value.
    assert parse().rope_type == "interleaved"


@pytest.mark.oracle
def test_defaults_are_those_of_the_public_class() -> None:
    diffusers = pytest.importorskip("diffusers")
    import inspect

    public = inspect.signature(diffusers.SanaWMLTX2RefinerTransformer3DModel.__init__).parameters
    for field in fields(RefinerConfig):
        assert field.default == public[field.name].default, field.name


def test_unknown_and_private_keys_are_ignored() -> None:
    assert parse(audio_in_channels=4, _private=1, brand_new="x") == RefinerConfig()


def test_out_channels_follow_in_channels() -> None:
    config = parse(in_channels=64, out_channels=None)
    assert (config.in_channels, config.out_channels) == (64, 64)


@pytest.mark.parametrize(
    "name", ["LTX2VideoTransformer3DModel", "SanaWMLTX2RefinerTransformer3DModel"]
)
def test_both_class_names_are_read(name: str) -> None:
    assert parse(_class_name=name) == RefinerConfig()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"_class_name": "AutoencoderKLLTX2Video"}, "this is a AutoencoderKLLTX2Video; expected"),
        ({"_class_name": 3}, "this is a 3; expected LTX2VideoTransformer3DModel or"),
        ({"patch_size": 2}, "patch_size is 2, not supported"),
        ({"patch_size_t": 2}, "patch_size_t is 2, not supported"),
        ({"cross_attn_mod": True}, r"cross_attn_mod is True, an LTX-2\.3 option"),
        ({"use_prompt_embeddings": False}, r"use_prompt_embeddings is False, an LTX-2\.3 option"),
        ({"activation_fn": "silu"}, "activation_fn is 'silu', not supported"),
        ({"qk_norm": "rms_norm"}, "qk_norm is 'rms_norm', not supported"),
        ({"rope_type": "axial"}, "rope_type is 'axial'; expected 'split' or 'interleaved'"),
        ({"cross_attention_dim": 2048}, "cross_attention_dim is 2048; .* = 4096"),
        ({"out_channels": 64}, "out_channels 64 differ from in_channels 128"),
        ({"attention_head_dim": 127, "cross_attention_dim": 4064}, "head_dim is 127; .* even"),
        ({"num_layers": 0}, "num_layers is 0; expected a whole number from 1"),
        ({"num_layers": "48"}, "num_layers is '48'; expected a whole number"),
        ({"num_layers": 2.5}, r"num_layers is 2\.5; expected a whole number"),
        ({"num_layers": True}, "num_layers is True; expected a whole number"),
        ({"gated_attn": "no"}, "gated_attn is 'no'; expected true or false"),
        ({"norm_eps": -1e-6}, "norm_eps is -1e-06; expected a positive number"),
        ({"rope_theta": float("nan")}, "rope_theta is nan; expected a positive number"),
        ({"base_height": 10**400}, "base_height is 10.*; expected a positive number"),
        ({"rope_type": 1}, "rope_type is 1; expected a text"),
        ({"vae_scale_factors": [8, 32]}, r"vae_scale_factors is \[8, 32\]; expected 3 whole"),
        ({"vae_scale_factors": "888"}, "vae_scale_factors is '888'; expected 3 whole"),
        ({"vae_scale_factors": [8, 32, 0]}, "expected 3 whole numbers from 1"),
        ({"causal_offset": -1}, "causal_offset is -1; expected a whole number from 0"),
    ],
)
def test_values_that_are_not_computed_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{words}") as caught:
        parse(**values)
    assert isinstance(caught.value, ValueError)
    assert caught.value.exit_code == 3


def test_fractions_are_read_where_they_make_sense() -> None:
    config = parse(pos_embed_max_pos=12.5, base_height=192, rope_theta=20, causal_offset=0)
    assert (config.pos_embed_max_pos, config.base_height, config.rope_theta) == (12.5, 192, 20)
    assert config.causal_offset == 0


def test_golden_config_file() -> None:
    config = RefinerConfig.from_json(FOLDER / "model_split_gated48" / "config.json")
    assert (config.width, config.num_layers, config.norm_elementwise_affine) == (48, 2, True)
    assert config.vae_scale_factors == (8, 32, 32)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "expected a JSON object, found list"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_broken_config_file(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        RefinerConfig.from_json(path)
    assert str(path) in caught.value.message
    assert len(str(caught.value).splitlines()) <= 3


def test_config_with_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"rope_type": "split"}).encode())
    assert RefinerConfig.from_json(path) == RefinerConfig.released()


def test_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"config\.json: no such file"):
        RefinerConfig.from_json(tmp_path / "config.json")
