"""Load one half of the VAE from a folder with `config.json` and safetensors weights."""

from __future__ import annotations

from pathlib import Path

import torch

from sanawm.checkpoint import load_weights
from sanawm.errors import CheckpointError
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles

from .config import VAEConfig
from .decoder import VAEDecoder
from .encoder import VAEEncoder

#: Statistics of the latents, kept in float32 whatever the dtype of the weights.
STATISTICS = ("latents_mean", "latents_std")
#: Name of an unsharded weight file in the diffusers layout.
WEIGHT_FILE = "diffusion_pytorch_model.safetensors"


def load_decoder(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype, notes: Notes | None = None
) -> VAEDecoder:
    """Return the decoder of `folder` with its weights in `dtype` on `device`.

    Only the decoder's tensors are read. Raises `MissingFile` or `CheckpointError`, which names
    every setting or tensor that does not fit.
    """
    notes = notes or Notes()
    config = VAEConfig.from_json(folder / "config.json", notes=notes)
    if not config.decoder_causal:
        notes.warn(
            f"{folder}: decoder_causal is false: this decoder was trained to see later frames. It "
            "runs causally here, expect artifacts; the streaming release has a causal decoder"
        )
    with torch.device("meta"):
        decoder = VAEDecoder(config)
    _fill(decoder, folder, other="encoder.*", device=device, dtype=dtype, notes=notes)
    return decoder


def load_encoder(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype, notes: Notes | None = None
) -> VAEEncoder:
    """Return the encoder of `folder`; see `load_decoder`."""
    notes = notes or Notes()
    config = VAEConfig.from_json(folder / "config.json", notes=notes)
    if not config.encoder_causal:
        notes.warn(
            f"{folder}: encoder_causal is false: this encoder was trained to see later frames. It "
            "runs causally here, expect latents that differ from its own"
        )
    with torch.device("meta"):
        encoder = VAEEncoder(config)
    _fill(encoder, folder, other="decoder.*", device=device, dtype=dtype, notes=notes)
    return encoder


def _fill(
    half: VAEDecoder | VAEEncoder,
    folder: Path,
    *,
    other: str,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
) -> None:
    load_weights(
        half,
        TensorFiles(_weights_of(folder)),
        device=device,
        dtype=dtype,
        ignore=(other,),
        keep_float32=lambda name: name in STATISTICS,
        label=str(folder),
        note=notes.info,
    )
    # Channels last, like what they meet: 4 to 16 % of a wide convolution on a small picture.
    for weight in half.parameters():
        if weight.ndim == 5:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last_3d)
    if not bool((half.latents_std > 0).all()):
        raise CheckpointError(f"{folder}: latents_std holds values that are not above 0")


def _weights_of(folder: Path) -> Path:
    """Return the usual weight file if it is in `folder`, else the folder (shards, one file)."""
    file = folder / WEIGHT_FILE
    return file if file.is_file() else folder
