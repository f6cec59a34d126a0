"""Read latents and noise from files, a few frames at a time.

Tensors are `(B, C, T, H, W)`. Only the header is read on opening; `frames` reads one slice along T
and checks it for NaN and infinity. Nothing here runs code from a file.

| file | tensor | reading a slice costs |
|---|---|---|
| `.safetensors` | `latents` (noise: `eps`) | the slice |
| `.npy` | the array | the slice |
| `.npz` | the only array, or `latents` | the whole array, read once |
| `.pt`, `.pth` | a tensor, or `latents` in a dictionary | the slice |
"""

from __future__ import annotations

import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from sanawm.checkpoint import read_pt
from sanawm.errors import CheckpointError, InputError, MissingFile
from sanawm.shapes import LatentShape
from sanawm.tensorfile import list_some, read_header, short

if TYPE_CHECKING:
    import torch

LATENTS_KEY = "latents"
NOISE_KEY = "eps"
#: Metadata key of files that grow: latent frames written so far (see `latent_writer`).
WRITTEN_KEY = "frames_written"
AXES = "(batch, channels, latent frames, height, width)"

#: What the readers of NumPy, zip and torch raise for damaged bytes.
_BROKEN = (
    OSError, ValueError, EOFError, KeyError, TypeError, SyntaxError, OverflowError, RuntimeError,
    tokenize.TokenError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
#: Largest array that is unpacked, bytes: an .npz is read whole, and a small one may hold a lot.
MAX_UNPACKED = 4 << 30
#: Latent frames that `check` reads at a time.
_FEW = 8
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth")


@contextmanager
def _python_2_is_welcome() -> Iterator[None]:
    """Keep NumPy from printing that a header is old: it is read all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class Header(NamedTuple):
    """What is known of a tensor before its data is read."""

    shape: tuple[int, ...]
    dtype: str
    metadata: dict[str, str]


class _Slices(Protocol):
    """One tensor in a file; `read` returns latent frames `start .. stop - 1`."""

    header: Header

    def read(self, start: int, stop: int) -> torch.Tensor: ...


class _Safetensors:
    def __init__(self, path: Path, key: str) -> None:
        infos, metadata = read_header(path)
        if key not in infos:
            raise InputError(
                f"{path}: no tensor `{key}` in this file; it holds "
                f"{list_some([f'`{n}`' for n in infos]) or 'nothing'}",
                fix=f"store the tensor under the name `{key}`",
            )
        self._path, self._key = path, key
        dtype = _FLOATS.get(infos[key].dtype, infos[key].dtype)
        self.header = Header(infos[key].shape, dtype, metadata)

    def read(self, start: int, stop: int) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        # Opened for each slice: pages of a mapping that stays open add up over a long clip.
        try:
            with safe_open(str(self._path), framework="pt") as file:
                tensor: torch.Tensor = file.get_slice(self._key)[:, :, start:stop]
        except SafetensorError as error:
            raise ValueError(short(error)) from None
        return tensor


class _Npy:
    def __init__(self, path: Path) -> None:
        self._path = path
        array = self._map()
        self.header = Header(array.shape, _dtype_name(array.dtype), {})

    def _map(self) -> np.ndarray:
        with _python_2_is_welcome():
            array = np.load(self._path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            array.close()
            raise InputError(f"{self._path}: an .npz file under the name .npy", fix="rename it")
        return array

    def read(self, start: int, stop: int) -> torch.Tensor:
        return _to_tensor(self._map()[:, :, start:stop])


class _Npz:
    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._array: np.ndarray | None = None
        with zipfile.ZipFile(path) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
            if key not in names and len(names) != 1:
                raise InputError(
                    f"{path}: {len(names)} arrays and none named `{key}`: {list_some(names)}",
                    fix=f"store the array alone or under the name `{key}`",
                )
            self._name = key if key in names else names[0]
            size = archive.getinfo(f"{self._name}.npy").file_size
            if size > MAX_UNPACKED:
                raise InputError(
                    f"{path}: {size} bytes when unpacked, "
                    f"at most {MAX_UNPACKED} are read from .npz",
                    fix="store it as .safetensors or .npy, which are read slice by slice",
                )
            with archive.open(f"{self._name}.npy") as file:
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                with _python_2_is_welcome():
                    shape, _, dtype = read(file)
        if math.prod(shape) * dtype.itemsize > size:
            raise ValueError(f"cut short: shape {shape} of {dtype}, {size} bytes")
        self.header = Header(shape, _dtype_name(dtype), {})

    def read(self, start: int, stop: int) -> torch.Tensor:
        if self._array is None:
            with _python_2_is_welcome(), np.load(self._path, allow_pickle=False) as archive:
                self._array = archive[self._name]
        return _to_tensor(self._array[:, :, start:stop])


class _Pt:
    def __init__(self, path: Path, key: str) -> None:
        import torch

        content = read_pt(path)
        if isinstance(content, dict):
            if key not in content:
                names = [f"`{n}`" for n in content]
                raise InputError(
                    f"{path}: no `{key}` in this dictionary; it holds "
                    f"{list_some(names) or 'nothing'}",
                    fix=f"store a tensor, or a dictionary with `{key}`",
                )
            content = content[key]
        if not isinstance(content, torch.Tensor) or content.is_sparse or content.is_quantized:
            raise InputError(
                f"{path}: holds {type(content).__name__}, expected a dense tensor",
                fix=f"store a tensor, or a dictionary with `{key}`",
            )
        self._tensor = content.detach()
        dtype = str(content.dtype).removeprefix("torch.")
        self.header = Header(tuple(content.shape), dtype, {})

    def read(self, start: int, stop: int) -> torch.Tensor:
        return self._tensor[:, :, start:stop].clone()


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("=").name


def _to_tensor(array: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _open(path: Path, key: str) -> _Slices:
    """Open a tensor file by its ending; every fault of the file is an `InputError` or worse."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise MissingFile(f"{path}: a folder, expected a file", fix="name the file in it")
    if not path.exists():
        raise MissingFile(f"{path}: no such file")
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{path}: files ending in {suffix or 'nothing'!r} are not read, "
            f"expected {', '.join(_SUFFIXES)}",
            fix="convert it to .safetensors",
        )
    if suffix in (".pt", ".pth"):
        return _Pt(path, key)
    try:
        if suffix == ".safetensors":
            return _Safetensors(path, key)
        return _Npy(path) if suffix == ".npy" else _Npz(path, key)
    except CheckpointError as error:
        raise InputError(error.message, fix=error.fix) from None
    except PermissionError as error:
        raise MissingFile(f"{path}: cannot be read ({error.strerror})") from None
    except InputError:
        raise
    except _BROKEN as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in text.lower():
            text = "it holds Python objects, which are never loaded"
        raise InputError(
            f"{path}: not a readable {suffix} file ({text})", fix="fetch or write the file again"
        ) from None


class TensorSource:
    """A `(B, C, T, H, W)` tensor in a file, read in slices along T."""

    what = "tensor"

    def __init__(self, path: Path, slices: _Slices, shape: LatentShape) -> None:
        self.path = path
        self.shape = shape
        self._slices = slices

    @property
    def dtype(self) -> str:
        """Name of the stored dtype, such as `float32`."""
        return self._slices.header.dtype

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata (safetensors only)."""
        found = self._slices.header.metadata
        return {k: v for k, v in found.items() if k != WRITTEN_KEY}

    def unchecked(self, start: int, stop: int) -> torch.Tensor:
        """Return latent frames `start .. stop - 1` as `frames` does, NaN and infinity included."""
        return self._slices.read(start, stop)

    def frames(self, start: int, stop: int) -> torch.Tensor:
        """Return latent frames `start .. stop - 1`, `(B, C, stop - start, H, W)`, in their dtype.

        Raises `InputError` for frames that are not there, and for NaN or infinity, naming the first
        bad frame and channel.
        """
        if not 0 <= start < stop <= self.shape.frames:
            raise InputError(
                f"{self.path}: no latent frames {start} to {stop - 1}: "
                f"it holds frames 0 to {self.shape.frames - 1}"
            )
        try:
            tensor = self._slices.read(start, stop)
        except _BROKEN as error:
            raise InputError(
                f"{self.path}: latent frames {start} to {stop - 1} cannot be read ({short(error)})",
                fix="the file is damaged, or changed while it was read",
            ) from None
        bad = ~tensor.isfinite()
        if bad.any():
            b, c, t, y, x = (int(i) for i in bad.nonzero()[0])
            value = "NaN" if tensor[b, c, t, y, x].isnan() else "infinity"
            count = int(bad.sum())
            raise InputError(
                f"{self.path}: {value} in the {self.what}, frame {start + t}, channel {c} "
                f"(row {y}, column {x}); {count} bad value{'' if count == 1 else 's'} in "
                f"frames {start} to {stop - 1}",
                fix="make the file again with finite values",
            )
        return tensor

    def check(self, frames: int) -> None:
        """Read the first `frames` once, a few at a time; raise `InputError` as `frames` does.

        A run calls it before it loads a model, so that a bad value is not found an hour later.
        """
        for start in range(0, frames, _FEW):
            self.frames(start, min(frames, start + _FEW))


class LatentsSource(TensorSource):
    """Latents in a file: normalised VAE latents, frame 0 is the sink."""

    what = "latents"

    @classmethod
    def open(cls, path: Path | str, *, channels: int | None = None) -> LatentsSource:
        """Open a latents file and check its header; `channels` are those that the VAE has.

        Raises `MissingFile`, `CheckpointError` (a `.pt` that is not safe to load) or `InputError`
        for a broken file, a wrong rank, axis order or dtype, and for a file whose writer did not
        finish.
        """
        path = Path(path)
        slices = _open(path, LATENTS_KEY)
        shape = _check_shape(path, slices.header, channels, what="latents")
        _check_finished(path, slices.header, shape)
        return cls(path, slices, shape)


class NoiseSource(TensorSource):
    """Noise in a file. Frame numbers are those of the clip; the first `first` have no noise."""

    what = "noise"

    def __init__(self, path: Path, slices: _Slices, shape: LatentShape, first: int) -> None:
        super().__init__(path, slices, shape)
        self.first = first

    @classmethod
    def open(
        cls, path: Path | str, *, shape: LatentShape, first: int, key: str = NOISE_KEY
    ) -> NoiseSource:
        """Open a noise file for a clip of latents of `shape`.

        `first` is the clip's first frame with noise: the sink size for the refiner's `eps`
        `(B, C, T - sink, H, W)`, 0 for `stage1_noise`. Raises as `LatentsSource.open` does, also
        when the shape is not that of the clip.
        """
        path = Path(path)
        slices = _open(path, key)
        found = _check_shape(path, slices.header, shape.channels, what="noise")
        _check_finished(path, slices.header, found)
        wanted = shape._replace(frames=shape.frames - first)
        if found != wanted:
            raise InputError(
                f"{path}: noise has shape {tuple(found)}, expected {tuple(wanted)} for a clip of "
                f"{shape.frames} latent frames of which the first {first} have no noise",
                fix="make the noise for this clip, or choose the clip's size to match",
            )
        return cls(path, slices, found, first)

    def block(self, start: int, stop: int) -> torch.Tensor:
        """Return the noise of the clip's latent frames `start .. stop - 1`, `(B, C, t, H, W)`."""
        return self.frames(start - self.first, stop - self.first)


def _check_finished(path: Path, header: Header, shape: LatentShape) -> None:
    """Raise `InputError` for a file whose writer was stopped before its last frame."""
    written = header.metadata.get(WRITTEN_KEY, str(shape.frames))
    if written.isascii() and written.isdigit() and int(written) < shape.frames:
        raise InputError(
            f"{path}: unfinished: {int(written)} of {shape.frames} latent frames are written",
            fix="let the run that writes it end, or continue it with --resume",
        )


def _check_shape(path: Path, header: Header, channels: int | None, *, what: str) -> LatentShape:
    shape = header.shape
    if header.dtype not in _FLOATS.values():
        raise InputError(
            f"{path}: {what} are {header.dtype}, expected {', '.join(_FLOATS.values())}",
            fix="store floating-point values",
        )
    if len(shape) != 5:
        hint = "; add a batch axis of 1 in front" if len(shape) == 4 else ""
        raise InputError(
            f"{path}: {what} have shape {shape}, expected five axes {AXES}{hint}",
            fix=f"store them as {AXES}",
        )
    if 0 in shape:
        raise InputError(
            f"{path}: {what} have shape {shape}: one axis is empty", fix="make the file again"
        )
    if channels is not None and shape[1] != channels:
        axes = [i for i, size in enumerate(shape) if size == channels]
        guess = f"; axis {axes[0]} has {channels}: was the axis order changed?" if axes else ""
        raise InputError(
            f"{path}: {what} have shape {shape}, expected {channels} channels on axis 1 "
            f"of {AXES}{guess}",
            fix=f"store them as {AXES}" if axes else f"use latents of a VAE with {channels}",
        )
    return LatentShape(*shape)
