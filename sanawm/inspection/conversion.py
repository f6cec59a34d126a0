"""Write a weights-only `.pt` of stage 1 as safetensors, so that no pickle is read again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sanawm.checkpoint import PT_SUFFIXES
from sanawm.errors import UsageError
from sanawm.io.files import check_output
from sanawm.io.tensor_writer import write_tensors
from sanawm.stage1.weights import read_generator


class Converted(NamedTuple):
    """What was written: its path, tensors and size in bytes."""

    path: Path
    tensors: int
    bytes: int


def convert_pt(source: Path, target: Path, *, overwrite: bool = False) -> Converted:
    """Write the tensors of `source` to the safetensors file `target`, bit for bit.

    source: a `.pt` file, or a folder with `model.pt`. Of a training checkpoint the entry
    `generator` is taken and `model.` is stripped from its names, as loading it does, so a run from
    the new file equals one from the old. Raises `CheckpointError` for a file that is broken or
    holds more than tensors, `OutputError` when `target` exists (without `overwrite`).
    """
    file = source / "model.pt" if source.is_dir() else source
    if file.exists() and file.suffix not in PT_SUFFIXES:
        raise UsageError(
            f"{file}: only .pt files are converted to safetensors", fix="leave --convert out"
        )
    check_output(target, overwrite=overwrite, inputs=[file], suffixes=(".safetensors",))
    tensors = read_generator(file)
    size = write_tensors(target, tensors, {"format": "pt"}, overwrite=overwrite)
    return Converted(target, len(tensors), size)
