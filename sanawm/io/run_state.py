"""The state of an interrupted run: one safetensors file, replaced atomically after a block.

Tensors are stored as they are, numbers and texts as JSON in the metadata. A checksum of every
tensor is kept, so a file that was cut or changed is refused instead of giving other pictures.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanawm.errors import CheckpointError, InputError, MissingFile
from sanawm.tensorfile import read_header, short

from .tensor_writer import write_tensors

if TYPE_CHECKING:
    import torch

#: Version of the layout; another one is refused.
SCHEMA = 1
#: Metadata key that holds the JSON.
KEY = "sanawm_state"
#: Metadata key of the checksum of that JSON.
CHECK = "sanawm_state_crc"
#: Joins the keys of nested tables in tensor names.
SEPARATOR = "/"
_BAD = "delete it and start the run again without --resume"


def save_state(path: Path, state: Mapping[str, Any]) -> int:
    """Write a nested dict of tensors and JSON-able values to `path`; return its size in bytes.

    The file is written beside `path`, flushed to the disk and renamed, so that `path` always holds
    one whole state. Raises `OutputError`.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain = _split(state, "", tensors)
    stored = {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}
    text = json.dumps({"schema": SCHEMA, "values": plain, "checksums": _checksums(stored)})
    metadata = {KEY: text, CHECK: str(zlib.crc32(text.encode()))}
    return write_tensors(path, stored, metadata, overwrite=True, suffixes=())


def load_state(path: Path) -> dict[str, Any]:
    """Return what `save_state` wrote.

    Raises `MissingFile`, or `InputError` when the file is cut short, changed, or no run state.
    """
    from safetensors import SafetensorError, safe_open

    try:
        infos, metadata = read_header(path)
    except CheckpointError as e:
        raise InputError(f"run state {e.message}", fix=_BAD) from None
    head = _head(path, metadata)
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in infos}
    except (SafetensorError, OSError, ValueError, KeyError) as e:
        raise InputError(f"run state {path}: it cannot be read ({short(e)})", fix=_BAD) from None
    found = _checksums(tensors)
    for name, expected in head["checksums"].items():
        if found.get(name) != expected:
            raise InputError(f"run state {path}: tensor {name} was changed or lost", fix=_BAD)
    if set(found) != set(head["checksums"]):
        raise InputError(f"run state {path}: it holds tensors that were not saved", fix=_BAD)
    state: dict[str, Any] = dict(head["values"])
    for name, tensor in tensors.items():
        *outer, leaf = name.split(SEPARATOR)
        table = state
        for key in outer:
            table = table.setdefault(key, {})
        table[leaf] = tensor
    return state


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the JSON values of a run state without its tensors."""
    try:
        _, metadata = read_header(path)
    except CheckpointError as e:
        raise InputError(f"run state {e.message}", fix=_BAD) from None
    return dict(_head(path, metadata)["values"])


def is_state(path: Path) -> bool:
    """Tell whether a file is a run state, by its header."""
    try:
        return KEY in read_header(path)[1]
    except (CheckpointError, MissingFile):
        return False


def looks_like_state(path: Path) -> bool:
    """Tell whether a file was begun as a run state, whole or not."""
    with path.open("rb") as file:
        return f'"{KEY}"'.encode() in file.read(1 << 16)


def _head(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if KEY not in metadata:
        raise InputError(f"{path}: not a run state of sanawm", fix="name the file FILE.state")
    try:
        if str(zlib.crc32(metadata[KEY].encode())) != metadata.get(CHECK):
            raise ValueError("changed")
        head = json.loads(metadata[KEY])
        if not isinstance(head["values"], dict) or not isinstance(head["checksums"], dict):
            raise TypeError("tables expected")
        schema = head["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"run state {path}: its header is damaged", fix=_BAD) from None
    if schema != SCHEMA:
        raise InputError(
            f"run state {path}: written in layout {schema}, this version reads {SCHEMA}", fix=_BAD
        )
    return dict(head)


def _split(table: Mapping[str, Any], prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Move the tensors of a nested dict into `tensors`; return the rest."""
    import torch

    plain: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, Mapping):
            plain[key] = _split(value, f"{name}{SEPARATOR}", tensors)
        else:
            plain[key] = value
    return plain


def _checksums(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return a checksum of dtype, shape and bytes of every tensor."""
    import torch

    def checksum(t: torch.Tensor) -> int:
        start = zlib.crc32(f"{t.dtype} {tuple(t.shape)}".encode())
        data = t.contiguous().flatten().view(torch.uint8).numpy()
        return zlib.crc32(data.data, start) if t.numel() else start

    return {name: checksum(t) for name, t in tensors.items()}
