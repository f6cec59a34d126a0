"""Loading one half of the VAE: strict names, warnings, shards, dtypes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import sanawm.vae
from sanawm.errors import CheckpointError, MissingFile
from sanawm.notes import Notes
from sanawm.vae import DecoderState, load_decoder, load_encoder

from . import cases
from .cases import DECODE_ATOL, worst

NAME = "d_convin_p1"
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a golden VAE that a test may change."""
    for name in ("config.json", WEIGHTS):
        shutil.copyfile(cases.folder(NAME) / name, tmp_path / name)
    return tmp_path


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_weights(folder: Path, **tensors: Tensor | None) -> None:
    stored = {**load_file(folder / WEIGHTS), **tensors}
    save_file({n: t for n, t in stored.items() if t is not None}, folder / WEIGHTS)


def decodes(vae: sanawm.vae.VAEDecoder) -> bool:
    latents, pixels = cases.decode_case(NAME)
    return worst(vae.decode(latents, DecoderState()), pixels) < DECODE_ATOL


def test_each_half_reads_its_own_tensors(folder: Path) -> None:
    notes = Notes()
    decoder = load_decoder(folder, device="cpu", dtype=torch.float32, notes=notes)
    encoder = load_encoder(folder, device="cpu", dtype=torch.float32, notes=notes)
    names = set(load_file(folder / WEIGHTS))
    assert decoder.state_dict().keys() | encoder.state_dict().keys() == names
    assert decoder.state_dict().keys() & encoder.state_dict().keys() == {
        "latents_mean",
        "latents_std",
    }
    assert not any(p.requires_grad for p in decoder.parameters())
    assert not decoder.training
    assert not notes.warnings
    assert decodes(decoder)


def test_statistics_stay_in_float32(folder: Path) -> None:
    decoder = load_decoder(folder, device="cpu", dtype=torch.bfloat16)
    assert decoder.latents_mean.dtype == decoder.latents_std.dtype == torch.float32
    assert {p.dtype for p in decoder.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("half", ["decoder", "encoder"])
def test_a_half_that_is_not_causal_runs_with_a_warning(folder: Path, half: str) -> None:
    change_config(folder, **{f"{half}_causal": False})
    notes = Notes()
    load_encoder(folder, device="cpu", dtype=torch.float32, notes=notes)
    decoder = load_decoder(folder, device="cpu", dtype=torch.float32, notes=notes)
    assert len(notes.warnings) == 1
    assert f"{half}_causal is false" in notes.warnings[0]
    assert decodes(decoder)


def test_shards(folder: Path) -> None:
    stored = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(stored)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"diffusion_pytorch_model-{i + 1:05d}-of-00002.safetensors"
        save_file({n: stored[n] for n in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert decodes(load_decoder(folder, device="cpu", dtype=torch.float32))


def test_missing_statistics_and_tensors(folder: Path) -> None:
    change_weights(folder, latents_mean=None, **{"decoder.conv_out.conv.bias": None})
    with pytest.raises(
        CheckpointError, match=r"2 missing: .*decoder\.conv_out\.conv\.bias"
    ) as error:
        load_decoder(folder, device="cpu", dtype=torch.float32)
    assert "latents_mean" in str(error.value)


def test_unexpected_tensors(folder: Path) -> None:
    change_weights(folder, **{"decoder.scale_shift_table": torch.zeros(2, 3)})
    with pytest.raises(CheckpointError, match=r"1 unexpected: decoder\.scale_shift_table"):
        load_decoder(folder, device="cpu", dtype=torch.float32)
    load_encoder(folder, device="cpu", dtype=torch.float32)


def test_weights_of_another_layout(folder: Path) -> None:
    shutil.copyfile(cases.folder("c_ltx20_p1") / WEIGHTS, folder / WEIGHTS)
    with pytest.raises(
        CheckpointError,
        match=r"27 of another shape: .*decoder\.conv_in\.conv\.weight is 32x6x3x3x3",
    ):
        load_decoder(folder, device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_impossible_statistics(folder: Path, value: float) -> None:
    change_weights(folder, latents_std=torch.tensor([1.0, 1.0, value, 1.0]))
    with pytest.raises(CheckpointError, match="latents_std holds values that are not above 0"):
        load_encoder(folder, device="cpu", dtype=torch.float32)


def test_missing_files(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(MissingFile, match=r"no \.safetensors file"):
        load_decoder(folder, device="cpu", dtype=torch.float32)
    with pytest.raises(MissingFile, match=r"config\.json"):
        load_decoder(folder / "absent", device="cpu", dtype=torch.float32)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(sanawm.vae, name) for name in sanawm.vae.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Absent'"):
        sanawm.vae.Absent  # noqa: B018
