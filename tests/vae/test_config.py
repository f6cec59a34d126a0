"""Reading `config.json`: both spellings, defaults, and a clear error for what cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sanawm.errors import CheckpointError, MissingFile
from sanawm.notes import Notes
from sanawm.shapes import VAERatios
from sanawm.vae import VAEConfig

from . import cases

TINY = {
    "latent_channels": 8,
    "block_out_channels": [16, 32],
    "layers_per_block": [1, 1, 1],
    "downsample_type": ["temporal", "spatiotemporal"],
    "decoder_block_out_channels": [16, 16],
    "decoder_layers_per_block": [1, 1, 1],
    "upsample_factor": [1, 1],
    "upsample_residual": False,
    "upsample_type": ["spatiotemporal", "temporal"],
}


def read(folder: Path, values: dict[str, Any], notes: Notes | None = None) -> VAEConfig:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return VAEConfig.from_json(path, notes=notes)


def test_an_empty_file_is_the_release(tmp_path: Path) -> None:
    config = read(tmp_path, {})
    assert config == VAEConfig.released()
    assert config.decoder_causal
    assert config.ratios == VAERatios(time=8, space=32)
    assert config.upsample_type == ("spatiotemporal",) * 3


def test_the_golden_files_read(tmp_path: Path) -> None:
    configs = {n: VAEConfig.from_json(cases.folder(n) / "config.json") for n in cases.NAMES}
    assert [configs[n].ratios.space for n in cases.NAMES] == [32, 8, 8, 8]
    assert {c.ratios.time for c in configs.values()} == {8}
    b = configs["b_ltx23_p1"]
    assert b.upsample_type == ("spatiotemporal", "spatiotemporal", "temporal", "spatial")
    assert b.scaling_factor == 0.75
    assert b.encoder_spatial_padding_mode == b.decoder_spatial_padding_mode == "zeros"


def test_tiny_layout_with_other_ratios(tmp_path: Path) -> None:
    config = read(tmp_path, TINY)
    assert config.ratios == VAERatios(time=4, space=8)
    assert [(b.width, b.out) for b in config.down_blocks] == [(8, 16), (16, 32)]
    assert [(b.width, b.inner, b.out) for b in config.up_blocks] == [(16, 16, 16), (16, 16, 16)]


def test_bare_booleans_stand_for_lists(tmp_path: Path) -> None:
    bare = {
        "spatio_temporal_scaling": True,
        "decoder_spatio_temporal_scaling": True,
        "upsample_residual": True,
        "decoder_inject_noise": False,
    }
    lists = {
        "spatio_temporal_scaling": [True] * 4,
        "decoder_spatio_temporal_scaling": [True] * 3,
        "upsample_residual": [True] * 3,
        "decoder_inject_noise": [False] * 4,
    }
    assert read(tmp_path, bare) == read(tmp_path, lists) == VAEConfig.released()


def test_both_spellings_of_the_upsamplers(tmp_path: Path) -> None:
    inner_to_outer = ["spatiotemporal", "temporal"]
    outer_to_inner = ["temporal", "spatiotemporal"]
    base = {k: v for k, v in TINY.items() if k != "upsample_type"}
    config = read(tmp_path, TINY)
    assert read(tmp_path, base | {"decoder_upsample_type": outer_to_inner}) == config
    assert read(tmp_path, TINY | {"decoder_upsample_type": outer_to_inner}) == config
    assert read(tmp_path, TINY | {"decoder_upsample_type": None}) == config
    with pytest.raises(
        CheckpointError, match=r"decoder_upsample_type is .*spatiotemporal'.*expected"
    ):
        read(tmp_path, TINY | {"decoder_upsample_type": inner_to_outer})


def test_blocks_without_scaling(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        {
            "latent_channels": 8,
            "block_out_channels": [8, 16],
            "layers_per_block": [1, 1, 1],
            "spatio_temporal_scaling": [False, True],
            "downsample_type": ["spatial", "spatial"],
            "decoder_block_out_channels": [16, 8],
            "decoder_layers_per_block": [1, 1, 1],
            "decoder_spatio_temporal_scaling": [False, True],
            "upsample_factor": [1, 1],
            "upsample_type": ["spatial", "temporal"],
        },
    )
    assert config.ratios == VAERatios(time=1, space=8)
    assert [b.stride for b in config.down_blocks] == [None, (1, 2, 2)]
    assert [b.stride for b in config.up_blocks] == [(1, 2, 2), None]
    assert [(b.width, b.inner) for b in config.up_blocks] == [(8, 8), (8, 16)]


def test_stated_ratios_must_agree(tmp_path: Path) -> None:
    good = {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8}
    assert read(tmp_path, good) == read(tmp_path, dict.fromkeys(good)) == VAEConfig.released()
    with pytest.raises(CheckpointError, match="spatial_compression_ratio is 64, expected 32"):
        read(tmp_path, {"spatial_compression_ratio": 64})
    with pytest.raises(CheckpointError, match="temporal_compression_ratio is 16, expected 8"):
        read(tmp_path, {"temporal_compression_ratio": 16})


def test_private_and_unknown_keys(tmp_path: Path) -> None:
    notes = Notes()
    private = {"_diffusers_version": "0.0", "_name_or_path": "x", "gradient_checkpointing": True}
    assert read(tmp_path, private, notes) == VAEConfig.released()
    assert not notes.warnings
    read(tmp_path, {"attention": True}, notes)
    assert notes.warnings == [f"{tmp_path}/config.json: ignored unknown settings: attention"]


@pytest.mark.parametrize("name", ["AutoencoderKLCausalLTX2Video", "AutoencoderKLLTX2Video"])
def test_both_class_names(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, {"_class_name": name}) == VAEConfig.released()


REFUSED = [
    ({"_class_name": "AutoencoderKLWan"}, "_class_name is 'AutoencoderKLWan', expected Auto"),
    ({"timestep_conditioning": True}, "timestep_conditioning is true, expected false"),
    ({"decoder_inject_noise": [False, True, False, False]}, "decoder_inject_noise is .*all false"),
    ({"decoder_inject_noise": True}, "decoder_inject_noise is"),
    ({"decoder_inject_noise": [False]}, "decoder_inject_noise has 1 entries, expected 4"),
    ({"patch_size_t": 2}, "patch_size_t is 2, expected 1"),
    ({"patch_size": 0}, "patch_size holds 0, expected 1 or more"),
    ({"patch_size": 4.0}, "patch_size is 4.0, expected an integer"),
    ({"patch_size": True}, "patch_size is True, expected an integer"),
    ({"latent_channels": "128"}, "latent_channels is '128', expected an integer"),
    ({"scaling_factor": 0}, "scaling_factor is 0.0, expected a number above 0"),
    ({"scaling_factor": None}, "scaling_factor is None, expected a number"),
    ({"resnet_norm_eps": float("nan")}, "resnet_norm_eps is nan, expected a number above 0"),
    ({"resnet_norm_eps": 10**400}, "resnet_norm_eps is 10+, expected a number"),
    ({"encoder_causal": 1}, "encoder_causal is 1, expected true or false"),
    ({"decoder_causal": "yes"}, "decoder_causal is 'yes', expected true or false"),
    ({"down_block_types": ["Other"] * 4}, "down_block_types is .* expected 4 times LTX2VideoDown"),
    ({"down_block_types": ["LTX2VideoDownBlock3D"] * 3}, "expected 4 times"),
    ({"downsample_type": ["conv"] * 4}, "downsample_type holds 'conv', expected one of spatial,"),
    ({"downsample_type": "spatial"}, "downsample_type is 'spatial', expected a list"),
    ({"upsample_type": ["conv"] * 3}, "upsample_type holds 'conv', expected one of"),
    ({"upsample_type": ["spatial"] * 2}, "upsample_type has 2 entries, expected 3"),
    ({"upsample_type": ["spatiotemporal", "spatial", "temporal"]}, "upsample_type .* \\(4, 16\\)"),
    ({"layers_per_block": [4, 6, 6, 2]}, "layers_per_block has 4 entries, expected 5"),
    ({"layers_per_block": [4, 6, 6, 2, -1]}, "layers_per_block holds -1, expected 0 or more"),
    ({"spatio_temporal_scaling": [True]}, "spatio_temporal_scaling has 1 entries, expected 4"),
    ({"spatio_temporal_scaling": [1] * 4}, "spatio_temporal_scaling is .* true or false"),
    ({"upsample_factor": [2, 2]}, "upsample_factor has 2 entries, expected 3"),
    ({"upsample_factor": [2, 2, 0]}, "upsample_factor holds 0, expected 1 or more"),
    ({"upsample_factor": [2, 2, 3]}, "upsample_factor\\[2\\] is 3, expected a divisor"),
    ({"upsample_residual": [True] * 2}, "upsample_residual has 2 entries, expected 3"),
    ({"encoder_spatial_padding_mode": "same"}, "encoder_spatial_padding_mode holds 'same'"),
    ({"decoder_spatial_padding_mode": 0}, "decoder_spatial_padding_mode is 0, expected a text"),
    ({"block_out_channels": []}, "block_out_channels has 0 entries"),
    ({"block_out_channels": [256, 512, 1024, 2047]}, "block_out_channels\\[3\\] is 2047, expected"),
    ({"block_out_channels": [256, 768, 1024, 2048]}, "block_out_channels\\[1\\] is 768, expected"),
    (
        {"spatio_temporal_scaling": [False, True, True, True]},
        "block_out_channels\\[0\\] is 256, expected 128: encoder block 0 has no downsampler",
    ),
    (
        {"decoder_block_out_channels": [256, 512, 2048]},
        "decoder_block_out_channels\\[1\\] is 512, expected 1024",
    ),
    (
        {"decoder_spatio_temporal_scaling": [True, True, False]},
        "upsample_factor\\[2\\] is 2, expected 1: this block has no upsampler",
    ),
    (
        {"decoder_block_out_channels": [3, 6, 12]},
        "upsample_residual\\[2\\] is true, which needs decoder_block_out_channels\\[2\\] \\(12\\)",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[next(iter(r[0])) for r in REFUSED])
def test_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        read(tmp_path, values)
    assert str(error.value).startswith(f"{tmp_path}/config.json: ")
    assert error.value.fix
    assert error.value.exit_code == 3


def test_checks_hold_without_a_file() -> None:
    with pytest.raises(CheckpointError, match="decoder_layers_per_block has 2 entries, expected 4"):
        replace(VAEConfig.released(), decoder_layers_per_block=(5, 5))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"config\.json: no such file"):
        VAEConfig.from_json(tmp_path / "config.json")


def test_reading_settings_imports_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from sanawm.vae import VAEConfig; "
        f"VAEConfig.from_json(Path({str(cases.folder('a_ltx20_p4') / 'config.json')!r})); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
