"""Headers of safetensors files, single or sharded. Reads no tensor and imports no torch.

Headers are checked here before any weight is loaded: whole file, no overlap, no shard outside its
folder. `TensorFiles.read` is the one place where a tensor is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, MissingFile

if TYPE_CHECKING:
    import torch

#: Largest safetensors header accepted, in bytes (the format's own limit).
MAX_HEADER = 100_000_000
DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: its file, safetensors dtype name and shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in the file, bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * DTYPE_BYTES.get(self.dtype, 0)


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file, reading its header only.

    Raises `MissingFile` when it cannot be opened and `CheckpointError` when it is not a whole
    safetensors file; the message says what the file looks like instead.
    """
    size, head, blob = _read_header_bytes(path)
    try:
        header = json.loads(blob)
        if not isinstance(header, dict):
            raise ValueError("header is no object")
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            raise ValueError("__metadata__ is no object")
        infos: dict[str, TensorInfo] = {}
        spans: list[tuple[int, int]] = []
        for name, entry in header.items():
            start, stop = (int(x) for x in entry["data_offsets"])
            info = TensorInfo(path, str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
            if min(info.shape, default=0) < 0:
                raise ValueError(f"tensor {name} has shape {info.shape}")
            if start > stop or (info.dtype in DTYPE_BYTES and info.nbytes != stop - start):
                raise ValueError(f"tensor {name} spans {stop - start} bytes, not {info.nbytes}")
            infos[name] = info
            spans.append((start, stop))
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
    ) as e:  # fmt: skip
        raise CheckpointError(
            f"{path}: the safetensors header is damaged ({short(e)})", fix="fetch the file again"
        ) from None
    _check_extent(path, size, head, spans)
    return infos, {str(k): str(v) for k, v in metadata.items()}


def _read_header_bytes(path: Path) -> tuple[int, int, bytes]:
    """Return the file size, where the data starts, and the raw header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            first = f.read(64)
            length = int.from_bytes(first[:8], "little")
            if size < 9:
                what = "the file is empty" if size == 0 else f"cut short: only {size} bytes"
                raise CheckpointError(f"{path}: {what}", fix="fetch the file again")
            if length > min(MAX_HEADER, size - 8):
                raise CheckpointError(f"{path}: {_guess(first, size, length)}", fix=_remedy(first))
            f.seek(8)
            return size, 8 + length, f.read(length)
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except OSError as e:
        raise MissingFile(f"{path}: cannot be read ({e.strerror})") from None


def _guess(first: bytes, size: int, length: int) -> str:
    """Say what a file with an impossible header length looks like."""
    text = first.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"not a safetensors file: it looks like an HTML page ({size} bytes)"
    if text.startswith(b"version https://git-lfs"):
        return f"not a safetensors file: it is a Git LFS pointer ({size} bytes)"
    if first.startswith(b"PK"):
        return f"not a safetensors file: it is a PyTorch zip file ({size} bytes)"
    if first.startswith(b"\x80"):
        return f"not a safetensors file: it looks like a pickle ({size} bytes)"
    if first[8:9] == b"{" and length > MAX_HEADER:
        return f"not a valid safetensors file: it claims a header of {length} bytes"
    if first[8:9] == b"{":
        return f"cut short: the header needs {length} bytes, the file holds {size}"
    return f"not a safetensors file: header length {length} in a file of {size} bytes"


def _remedy(first: bytes) -> str:
    if first.startswith(b"PK"):
        return "rename it to .pt (read weights-only), or convert it to safetensors"
    if first.lstrip().lower().startswith(b"version https://git-lfs"):
        return "fetch the real file (git lfs pull)"
    return "fetch the file again"


def _check_extent(path: Path, size: int, start: int, spans: list[tuple[int, int]]) -> None:
    """Check that the tensors cover the file's data exactly, without gaps or overlaps."""
    end = 0
    for a, b in sorted(spans):
        if a != end:
            raise CheckpointError(f"{path}: tensors overlap or leave a gap at byte {start + end}")
        end = b
    if start + end > size:
        raise CheckpointError(
            f"{path}: cut short: {size} bytes found, {start + end} expected",
            fix="fetch the file again",
        )
    if start + end < size:
        raise CheckpointError(
            f"{path}: size does not match header: {size} bytes found, {start + end} expected",
            fix="fetch the file again",
        )


class TensorFiles:
    """The tensors of one component, in one file or in shards, opened but not read.

    `path` is a `.safetensors` file, or a folder holding one safetensors file or
    `*.safetensors.index.json` with its shards. All headers are checked here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self.infos: dict[str, TensorInfo] = {}
        for file in _component_files(path):
            infos, metadata = read_header(file)
            twice = sorted(set(infos) & set(self.infos))
            if twice:
                raise CheckpointError(f"{file}: tensor {twice[0]} is in two shards")
            self.infos.update(infos)
            self.metadata.update(metadata)
        self._check_index()
        self._open: dict[Path, Any] = {}

    def _check_index(self) -> None:
        index = _index_of(self.path) if self.path.is_dir() else None
        if index is None:
            return
        missing = [n for n in _weight_map(index) if n not in self.infos]
        if missing:
            raise CheckpointError(
                f"{index}: {len(missing)} tensors listed but not in the shards: "
                f"{list_some(missing)}",
                fix="fetch the shards again",
            )

    def __contains__(self, name: str) -> bool:
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor in its stored dtype on the CPU; `CheckpointError` if that fails."""
        from safetensors import SafetensorError, safe_open

        info = self.infos[name]
        try:
            if info.file not in self._open:
                self._open[info.file] = safe_open(str(info.file), framework="pt")
            tensor: torch.Tensor = self._open[info.file].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as e:
            raise CheckpointError(
                f"{info.file}: tensor {name} ({info.dtype}) cannot be read ({short(e)})",
                fix="fetch the file again",
            ) from None
        return tensor

    def close(self) -> None:
        """Drop the file mappings."""
        self._open.clear()

    def fingerprint(self, *, component: str) -> dict[str, object]:
        """Describe the weights for a report: path, sizes, dtypes and a content hash."""
        digest = hashlib.sha256()
        dtypes: dict[str, int] = {}
        files = sorted({i.file for i in self.infos.values()})
        for file in files:
            digest.update(_header_digest(file))
        for info in self.infos.values():
            dtypes[info.dtype] = dtypes.get(info.dtype, 0) + 1
        return {
            "component": component,
            "path": str(self.path),
            "files": len(files),
            "bytes": sum(f.stat().st_size for f in files),
            "tensors": len(self.infos),
            "dtypes": dtypes,
            "header_sha256": digest.hexdigest(),
        }


#: Files up to this size are hashed whole in `fingerprint`, larger ones by header and samples.
WHOLE_HASH_BYTES = 64 << 20


def _header_digest(file: Path) -> bytes:
    """Hash a weight file: all of it when small, else its size, header and 64 samples of 64 KiB."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as f:
        if size <= WHOLE_HASH_BYTES:
            digest.update(f.read())
        else:
            length = min(int.from_bytes(f.read(8), "little"), MAX_HEADER)
            digest.update(f.read(length))
            for k in range(64):
                f.seek(size * k // 64)
                digest.update(f.read(1 << 16))
    return digest.digest()


def fingerprint_file(path: Path, *, component: str) -> dict[str, object]:
    """Describe a weight file that has no safetensors header (`.pt`), without opening it as one."""
    if not path.is_file():
        raise MissingFile(f"{path}: no such file")
    return {
        "component": component,
        "path": str(path),
        "files": 1,
        "bytes": path.stat().st_size,
        "tensors": None,
        "dtypes": None,
        "header_sha256": _header_digest(path).hex(),
    }


def _component_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise MissingFile(f"{path}: no such file or folder")
    index = _index_of(path)
    if index is not None:
        return [_inside(index, shard) for shard in sorted(set(_weight_map(index).values()))]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise MissingFile(
            f"{path}: no .safetensors file in this folder",
            fix="expected one .safetensors file, or shards with their index",
        )
    if len(found) > 1:
        raise CheckpointError(
            f"{path}: {len(found)} safetensors files and no index: "
            f"{list_some([f.name for f in found])}",
            fix="keep one file, or add the *.safetensors.index.json",
        )
    return found


def _index_of(folder: Path) -> Path | None:
    found = sorted(folder.glob("*.safetensors.index.json"))
    if len(found) > 1:
        raise CheckpointError(
            f"{folder}: {len(found)} shard indexes: {list_some([f.name for f in found])}",
            fix="keep the index of one precision",
        )
    return found[0] if found else None


def _weight_map(index: Path) -> dict[str, str]:
    data = read_json(index)
    weight_map = data.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map in this index")
    return {str(k): str(v) for k, v in weight_map.items()}


def _inside(index: Path, shard: str) -> Path:
    """Return the path of a shard, which must be a plain file name beside its index."""
    plain = shard == Path(shard).name and shard.isprintable()
    if not plain or shard in ("", ".", "..") or "\\" in shard:
        raise CheckpointError(
            f"{index}: shard name {shard!r} points outside the folder", fix="fetch the index again"
        )
    return index.parent / shard


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint (UTF-8)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except OSError as e:
        raise MissingFile(f"{path}: cannot be read ({e.strerror})") from None
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path}: not valid JSON ({short(e)})") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def short(error: BaseException) -> str:
    """Return the first line of an error's text, at most 120 characters."""
    lines = str(error).splitlines()
    return lines[0][:120] if lines else type(error).__name__


def list_some(names: list[str], limit: int = 5) -> str:
    """Return up to `limit` names joined by commas, and how many more there are."""
    more = f" … ({len(names) - limit} more)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
