"""Load the refiner transformer from `transformer/`: only the tensors the video pass needs."""

from __future__ import annotations

from pathlib import Path

import torch

from sanawm.checkpoint import load_weights
from sanawm.errors import MissingFile
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles

from .config import RefinerConfig
from .model import RefinerModel

#: Tensors of the audio half, which the video pass never reads.
IGNORED = (
    "audio_*",
    "av_cross_attn_*",
    "keyframes_abs_pos_embedding",
    "transformer_blocks.*.audio_*",
    "transformer_blocks.*.video_to_audio_*",
    "transformer_blocks.*.video_a2v_cross_attn_scale_shift_table",
)


def transformer_folder(root: Path) -> Path:
    """Return the folder of the transformer inside a refiner root, or `root` if it is one."""
    folder = root / "transformer" if (root / "transformer").is_dir() else root
    if not (folder / "config.json").is_file():
        raise MissingFile(
            f"{root}: no refiner here; expected transformer/config.json",
            fix="point model.refiner at the folder that holds transformer/ and connectors/",
        )
    return folder


def load_refiner(
    root: Path, *, device: torch.device | str, dtype: torch.dtype, notes: Notes | None = None
) -> RefinerModel:
    """Return the refiner of `root` (holding `transformer/`) in `dtype` on `device`.

    Raises `MissingFile` or `CheckpointError`; every missing, misshapen or unknown tensor is named.
    """
    folder = transformer_folder(root)
    config = RefinerConfig.from_json(folder / "config.json")
    files = TensorFiles(folder)
    with torch.device("meta"):
        model = RefinerModel(config)
    load_weights(
        model,
        files,
        device=device,
        dtype=dtype,
        ignore=IGNORED,
        label=str(folder),
        note=(notes or Notes()).info,
    )
    return model
