"""Write many tensors to one safetensors file, one after the other: no second copy of the set.

safetensors' own writer turns every tensor into bytes before it writes the first one, which takes
the memory of a whole checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sanawm.errors import InputError
from sanawm.tensorfile import DTYPE_BYTES

from .files import atomic_write, check_output

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes that are handed to the disk at once.
PIECE = 64 << 20


def dtype_code(dtype: object) -> str | None:
    """Return the safetensors name of a torch dtype (`F32`, `BF16`, `I64`), None if it has none."""
    name = str(dtype).removeprefix("torch.")
    special = {"bool": "BOOL", "bfloat16": "BF16"}
    special |= {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
    short = name.replace("float", "F").replace("uint", "U").replace("int", "I")
    code = special.get(name, short)
    return code if code in DTYPE_BYTES else None


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    overwrite: bool = False,
    suffixes: tuple[str, ...] = (".safetensors",),
) -> int:
    """Write `tensors`, bit for bit, to the safetensors file `path`; return its size in bytes.

    Each tensor is copied in pieces, so memory-mapped ones never fill the memory. The file appears
    whole or not at all; its name must end in one of `suffixes`, if there are any. Raises
    `OutputError` when it exists (without `overwrite`) or cannot be written, `InputError` for a
    dtype that safetensors does not have.
    """
    check_output(path, overwrite=overwrite, suffixes=suffixes)
    codes: dict[str, str] = {}
    for name, tensor in tensors.items():
        code = dtype_code(tensor.dtype)
        if code is None or tensor.is_sparse or tensor.is_quantized:
            raise InputError(f"tensor {name} ({tensor.dtype}) cannot be stored as safetensors")
        codes[name] = code
    # Wide dtypes first, as the format's own writer does: every tensor then starts aligned.
    order = sorted(tensors, key=lambda name: (-DTYPE_BYTES[codes[name]], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * DTYPE_BYTES[codes[name]]
        shape = list(tensors[name].shape)
        header[name] = {"dtype": codes[name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            _copy(tensors[name], file)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size


def _copy(tensor: Tensor, file: IO[bytes]) -> None:
    """Append the bytes of a tensor, row by row, to a file."""
    import torch

    flat = tensor.detach().cpu().reshape(-1)
    step = max(1, PIECE // flat.element_size())
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].contiguous().view(torch.uint8)
        file.write(piece.numpy().data)
