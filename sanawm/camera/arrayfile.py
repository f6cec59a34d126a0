"""Read `.npy` and `.npz` files without pickle, with the reason when one is broken."""

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
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sanawm.errors import InputError, MissingFile

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
#: What numpy's and Python's parsers raise for a damaged header.
BAD_HEADER = (ValueError, EOFError, TypeError, KeyError, SyntaxError, tokenize.TokenError)
#: What zipfile raises for a damaged archive or member.
BAD_MEMBER = (
    zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, OSError,
    UnicodeDecodeError,
)  # fmt: skip
#: Largest array that is read, bytes: more than a day of poses, one a frame.
MAX_ARRAY_BYTES = 1 << 28


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes; raise `MissingFile` when it is not there or not readable."""
    try:
        stream = path.open("rb")
    except FileNotFoundError as error:
        raise MissingFile(f"{path}: no such file", fix="check the path") from error
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else (error.strerror or str(error))
        raise MissingFile(
            f"{path}: cannot be read: {reason}", fix="give a file that can be read"
        ) from error
    with stream:
        yield stream


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of a `.npy` file in whatever numeric dtype it was saved.

    Raises `MissingFile` when it cannot be opened, `InputError` when it is cut short, no `.npy` file
    or holds Python objects.
    """
    with open_file(path) as stream:
        return _read_array(stream, path.stat().st_size, str(path))


def npy_shape(path: Path) -> tuple[int, ...]:
    """Return the shape that the header of a `.npy` file announces, or () when it is unreadable."""
    with open_file(path) as stream:
        try:
            return _read_npy_header(stream).shape
        except BAD_HEADER:
            return ()


class NpzArchive:
    """An open `.npz` file: `names` of its arrays, `read(name)` for one of them."""

    def __init__(self, archive: zipfile.ZipFile, source: str) -> None:
        self._archive = archive
        self._source = source
        self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in the file's order."""
        return tuple(self._members)

    def read(self, name: str) -> NDArray[Any]:
        """Return one array; raise `InputError` when it is broken."""
        info, source = self._members[name], f"{self._source} [{name}]"
        try:
            with self._archive.open(info) as stream:
                return _read_array(stream, info.file_size, source)
        except BAD_MEMBER as error:
            raise InputError(
                f"{source}: cannot be unpacked: {error}", fix="save it again with numpy.savez"
            ) from error


@contextmanager
def read_npz(path: Path) -> Iterator[NpzArchive]:
    """Open a `.npz` file; raise `MissingFile` or `InputError` when it is none."""
    with open_file(path) as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except (*BAD_MEMBER, ValueError) as error:
            raise InputError(
                f"{path}: no whole .npz archive: {error}", fix="save it again with numpy.savez"
            ) from error
        with archive:
            yield NpzArchive(archive, str(path))


class _NpyHeader(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def _read_npy_header(stream: IO[bytes]) -> _NpyHeader:
    """Read magic and header, leave the stream at the data; raise one of `BAD_HEADER`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files written by Python 2 are welcome
        if np.lib.format.read_magic(stream) == (1, 0):
            return _NpyHeader(*np.lib.format.read_array_header_1_0(stream))
        return _NpyHeader(*np.lib.format.read_array_header_2_0(stream))


def _read_array(stream: IO[bytes], size: int, source: str) -> NDArray[Any]:
    """Read one array of a stream of `size` bytes."""
    if size > MAX_ARRAY_BYTES:
        raise InputError(
            f"{source}: {size} bytes are too many for a camera file (at most {MAX_ARRAY_BYTES})",
            fix="give the file that holds poses or intrinsics",
        )
    try:
        shape, fortran_order, dtype = _read_npy_header(stream)
    except BAD_HEADER as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        found = "an empty file" if size == 0 else f"no NumPy array ({reason[:80]})"
        raise InputError(f"{source}: {found}", fix="save it again with numpy.save") from error
    if dtype.hasobject:
        raise InputError(
            f"{source}: dtype {dtype} holds Python objects, which are never loaded; expected "
            "float or integer numbers",
            fix="save the array as float32",
        )
    expected = math.prod(shape) * dtype.itemsize
    data = stream.read()
    if len(data) < expected or min(shape, default=0) < 0:
        raise InputError(
            f"{source}: the file is cut short: shape {shape} of {dtype} needs {expected} bytes of "
            f"data, {len(data)} are there",
            fix="copy or save the file again",
        )
    return np.ndarray(shape, dtype, buffer=data, order="F" if fortran_order else "C")
