"""Write latents to safetensors while they are made, with flat memory; and write small files whole.

The file has its final size and header from the start; each slice is written in place with plain
`pwrite`, so nothing is held. It grows as `FILE.part.safetensors`. Its metadata counts the frames
that are complete, so an unfinished file is never taken for a whole one.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sanawm.errors import NumericsError, OutputError, SanawmError, UsageError
from sanawm.notes import Notes
from sanawm.shapes import LatentShape
from sanawm.tensorfile import DTYPE_BYTES, read_header

from .files import atomic_write, check_output, write_error
from .latents import LATENTS_KEY, WRITTEN_KEY
from .part import PartFile

if TYPE_CHECKING:
    import torch

#: Accepted dtypes by their safetensors name.
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
_DIGITS = 10  # width of the frame count in the header, so that it can be rewritten in place


class LatentsWriter:
    """Write `(B, C, T, H, W)` latents slice by slice along T, in any order.

    `dtype` is torch's float32, bfloat16, float16 or float64; slices are converted to it. The tensor
    is stored as `key`. `keep_frames` continues a stopped run: its first frames are taken over and
    the rest is written again. `continued` says that a part which is emptied is not worth a line.

    As a context manager it closes on success and keeps the part file on an exception. Raises
    `UsageError` for another dtype or metadata that is no text, and `OutputError` when the file
    cannot be written, exists (without `overwrite`), or the disk has no room for all of it.
    """

    def __init__(
        self,
        path: Path,
        shape: LatentShape,
        dtype: torch.dtype,
        metadata: Mapping[str, str],
        *,
        key: str = LATENTS_KEY,
        overwrite: bool = False,
        keep_frames: int = 0,
        continued: bool = False,
        notes: Notes | None = None,
    ) -> None:
        code = {f"torch.{name}": code for code, name in DTYPES.items()}.get(str(dtype))
        if code is None:
            raise UsageError(
                f"latents cannot be saved as {dtype}: expected {', '.join(DTYPES.values())}",
                fix="use --precision fp32, bf16 or fp16",
            )
        check_output(path, overwrite=overwrite, suffixes=(".safetensors",))
        self.path = path
        self.shape = LatentShape(*shape)
        self._dtype = dtype
        self._item = DTYPE_BYTES[code]
        self._overwrite = overwrite
        self._done = bytearray(self.shape.frames)
        self._head, self._count_at = _header(self.shape, code, metadata, keep_frames, key)
        self._part = PartFile(
            path,
            keep=keep_frames > 0,
            known=continued,
            overwrite=overwrite,
            notes=notes if notes is not None else Notes(),
        )
        try:
            if keep_frames:
                _check_kept(self._part, self.shape, code, metadata, keep_frames, key)
                self._done[:keep_frames] = b"\x01" * keep_frames
            self._write_at(0, self._head)
            self._reserve()
        except BaseException:
            if keep_frames:
                self._part.release()
            else:
                self._part.discard()
            raise

    def _reserve(self) -> None:
        """Claim the disk space of the whole file now, where the file system can."""
        size = len(self._head) + self._frame_bytes * self.shape.frames * self._planes
        try:
            os.posix_fallocate(self._part.fd, 0, size)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV):
                return  # this file system cannot; `write` will tell when it is full
            raise write_error(
                self._part.path, error, keep=f"{size} bytes are needed for all latents"
            ) from None

    @property
    def part_path(self) -> Path:
        """The file that grows."""
        return self._part.path

    @property
    def frames_written(self) -> int:
        """Latent frames that are complete without a gap from the first on."""
        first_gap = self._done.find(0)
        return self.shape.frames if first_gap < 0 else first_gap

    @property
    def _frame_bytes(self) -> int:
        return self.shape.tokens_per_frame * self._item

    @property
    def _planes(self) -> int:
        return self.shape.batch * self.shape.channels

    def write(self, start: int, tensor: torch.Tensor) -> None:
        """Write latent frames `start ..` from `tensor` `(B, C, t, H, W)`, on any device.

        Raises `UsageError` when they do not fit the clip, `NumericsError` for values that are not
        finite in the file's dtype, `OutputError` when the disk fails.
        """
        stop = start + tensor.shape[2] if tensor.ndim == 5 else -1
        wanted = self.shape._replace(frames=stop - start)
        if tuple(tensor.shape) != tuple(wanted) or not 0 <= start < stop <= self.shape.frames:
            raise UsageError(
                f"latents of shape {tuple(tensor.shape)} at frame {start} do not fit a clip of "
                f"shape {tuple(self.shape)}"
            )
        if self._part.fd < 0:
            raise UsageError(f"{self.path}: the latents file is closed")
        values = tensor.detach().to(device="cpu", dtype=self._dtype).contiguous()
        bad = ~values.isfinite()
        if bad.any():
            _, c, t, _, _ = (int(i) for i in bad.nonzero()[0])
            raise NumericsError(
                f"latents hold NaN or infinity as {self._dtype} in frame {start + t}, channel {c}"
            )
        rows = values.flatten(0, 1).flatten(1)  # (B*C, t*H*W): each row is contiguous in the file
        for plane, row in enumerate(_as_bytes(rows)):
            offset = (plane * self.shape.frames + start) * self._frame_bytes
            self._write_at(len(self._head) + offset, row)
        self._done[start:stop] = b"\x01" * (stop - start)
        self._write_at(self._count_at, f"{self.frames_written:0{_DIGITS}}".encode())

    def close(self) -> Path:
        """Check that every frame was written and give the file its name; return its path."""
        if self._part.fd < 0:
            return self.path
        missing = self._done.count(0)
        if missing:
            self._part.release()
            raise OutputError(
                f"{self.path}: {missing} of {self.shape.frames} latent frames were not written, "
                f"the first is {self._done.find(0)}; the rest is kept as {self._part.path}",
                fix="write every frame before closing",
            )
        self._part.commit(overwrite=self._overwrite)
        return self.path

    def abort(self) -> Path:
        """Keep what is written as the part file; return its path."""
        self._part.release()
        return self._part.path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _write_at(self, offset: int, data: bytes | memoryview) -> None:
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += os.pwrite(self._part.fd, view[done:], offset + done)
        except OSError as error:
            frames = self.frames_written
            raise write_error(
                self._part.path, error, done=f"{frames} of {self.shape.frames} latent frames"
            ) from None


def _as_bytes(rows: torch.Tensor) -> list[memoryview]:
    import torch

    return [memoryview(row.view(torch.uint8).numpy()) for row in rows]


def _header(
    shape: LatentShape, code: str, metadata: Mapping[str, str], written: int, key: str
) -> tuple[bytes, int]:
    """Return the file's head and the position of the frame count in it.

    The head is padded with spaces so that the data starts at a multiple of 8 bytes.
    """
    _check_metadata(metadata)
    size = DTYPE_BYTES[code]
    for n in shape:
        size *= n
    count = f"{written:0{_DIGITS}}"
    entry = {"dtype": code, "shape": list(shape), "data_offsets": [0, size]}
    header = {"__metadata__": {WRITTEN_KEY: count, **metadata}, key: entry}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    marker = f'"{WRITTEN_KEY}":"'.encode()
    return len(text).to_bytes(8, "little") + text, 8 + text.index(marker) + len(marker)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"metadata {key!r} is {type(value).__name__}, expected text")
        if key == WRITTEN_KEY:
            raise UsageError(f"metadata key {key!r} is taken by the writer itself")


def _check_kept(
    part: PartFile,
    shape: LatentShape,
    code: str,
    metadata: Mapping[str, str],
    frames: int,
    key: str,
) -> None:
    """Raise `OutputError` unless `part` holds at least `frames` frames of just this clip."""
    fix = "run again without --resume"
    try:
        infos, found = read_header(part.path)
    except SanawmError as error:
        raise OutputError(f"cannot continue {part.target}: {error.message}", fix=fix) from None
    info = infos.get(key)
    written = int(found.pop(WRITTEN_KEY, "0"))
    if info is None or (info.shape, info.dtype) != (tuple(shape), code) or found != dict(metadata):
        raise OutputError(
            f"cannot continue {part.target}: {part.path} is of another clip or other settings",
            fix=fix,
        )
    if written < frames:
        raise OutputError(
            f"cannot continue {part.target}: {part.path} holds {written} latent frames, "
            f"expected at least {frames}",
            fix=fix,
        )


def save_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write a small safetensors file whole: prompt embeddings. Return its path.

    Raises `UsageError` for metadata that is no text and `OutputError` when it cannot be written.
    """
    from safetensors.torch import save

    _check_metadata(metadata)
    check_output(path, overwrite=overwrite, suffixes=(".safetensors",))
    plain = {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(plain, metadata=dict(metadata)))
    return path
