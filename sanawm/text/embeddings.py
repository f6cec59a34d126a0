"""Prompt embeddings and their file, which passes between runs.

The file is safetensors: `prompt_embeds` `(B, L, E)` after the connectors and `prompt_mask`
`(B, L)` int64, 0 or 1; optionally stage 1's `stage1_caption` `(1, 1, L1, E1)` and `stage1_mask`
`(1, L1)`. With such a file a run needs no text encoder. The store of prompt embeddings keeps the
two halves in files of their own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sanawm.errors import CheckpointError, InputError, MissingFile, OutputError
from sanawm.tensorfile import TensorFiles, list_some

EMBEDS, MASK = "prompt_embeds", "prompt_mask"
STAGE1_CAPTION, STAGE1_MASK = "stage1_caption", "stage1_mask"
_KNOWN = (EMBEDS, MASK, STAGE1_CAPTION, STAGE1_MASK)


class PromptEmbeds(NamedTuple):
    """What the refiner attends to: `embeds` `(B, L, E)` and `mask` `(B, L)` int64.

    `mask` is None when all rows count, which is what the connectors give: attention then runs
    without a bias, with the same result.
    """

    embeds: Tensor
    mask: Tensor | None

    def to(self, device: torch.device | str, dtype: torch.dtype) -> PromptEmbeds:
        """Return the embeddings on `device` in `dtype`, the mask on `device`."""
        mask = None if self.mask is None else self.mask.to(device)
        return PromptEmbeds(self.embeds.to(device=device, dtype=dtype), mask)


class Stage1Caption(NamedTuple):
    """What stage 1 attends to: `caption` `(1, 1, L1, E1)` and `mask` `(1, L1)` int64."""

    caption: Tensor
    mask: Tensor

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Stage1Caption:
        """Return the caption on `device` in `dtype`, the mask on `device`."""
        return Stage1Caption(self.caption.to(device=device, dtype=dtype), self.mask.to(device))


class PromptFile(NamedTuple):
    """Content of a prompt embeddings file."""

    prompt: PromptEmbeds
    stage1: Stage1Caption | None
    metadata: dict[str, str]


class CaptionFile(NamedTuple):
    """Stage 1's half of a prompt embeddings file."""

    caption: Stage1Caption
    metadata: dict[str, str]


def load_prompt_embeds(path: Path) -> PromptFile:
    """Return the content of a prompt embeddings file, on the CPU in its stored dtypes.

    Raises `MissingFile`, or `InputError` for a broken file, a missing or unknown tensor, a wrong
    rank or shape, values that are not finite, and masks other than 0 and 1.
    """
    tensors, metadata = _read(path, wanted=(EMBEDS, MASK))
    embeds = _checked_embeds(tensors[EMBEDS], EMBEDS, rank=3, path=path)
    mask = _checked_mask(tensors[MASK], MASK, shape=embeds.shape[:2], path=path)
    prompt = PromptEmbeds(embeds, None if bool(mask.all()) else mask)
    return PromptFile(prompt, _stage1(tensors, path), metadata)


def load_caption(path: Path) -> CaptionFile:
    """Return stage 1's half of a prompt embeddings file, which needs no other half.

    Raises as `load_prompt_embeds`.
    """
    tensors, metadata = _read(path, wanted=(STAGE1_CAPTION, STAGE1_MASK))
    caption = _stage1(tensors, path)
    assert caption is not None
    return CaptionFile(caption, metadata)


def _read(path: Path, *, wanted: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata of a file that holds `wanted` and no unknown tensor."""
    if path.is_dir():
        raise MissingFile(f"{path}: is a folder, expected a prompt embeddings file")
    try:
        files = TensorFiles(path)
    except CheckpointError as e:
        raise InputError(e.message, fix=e.fix) from None
    if any(name not in _KNOWN for name in files) or any(name not in files for name in wanted):
        rest = " (and stage1_* for stage 1)" if EMBEDS in wanted else ""
        raise InputError(
            f"{path}: expected {' and '.join(wanted)}{rest}, found "
            + (list_some(sorted(files)) or "no tensor"),
            fix="write the file with --save-prompt-embeds",
        )
    tensors = {name: files.read(name) for name in files}
    files.close()
    return tensors, files.metadata


def _stage1(tensors: Mapping[str, Tensor], path: Path) -> Stage1Caption | None:
    present = [name for name in (STAGE1_CAPTION, STAGE1_MASK) if name in tensors]
    if not present:
        return None
    if len(present) == 1:
        raise InputError(f"{path}: {STAGE1_CAPTION} and {STAGE1_MASK} must come together")
    caption = _checked_embeds(tensors[STAGE1_CAPTION], STAGE1_CAPTION, rank=4, path=path)
    B, one, L, _ = caption.shape
    if B != 1 or one != 1:
        raise InputError(
            f"{path}: {STAGE1_CAPTION} is {_dims(caption)}, expected 1x1 x tokens x width"
        )
    mask = _checked_mask(tensors[STAGE1_MASK], STAGE1_MASK, shape=torch.Size((1, L)), path=path)
    return Stage1Caption(caption, mask)


def _checked_embeds(tensor: Tensor, name: str, *, rank: int, path: Path) -> Tensor:
    if not tensor.is_floating_point() or tensor.ndim != rank or not tensor.numel():
        raise InputError(
            f"{path}: {name} is {_dims(tensor)} {tensor.dtype}, expected {rank} axes of floating "
            "point numbers"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{path}: {name} holds NaN or infinity")
    return tensor


def _checked_mask(tensor: Tensor, name: str, *, shape: torch.Size, path: Path) -> Tensor:
    if tensor.shape != shape:
        raise InputError(f"{path}: {name} is {_dims(tensor)}, expected {'x'.join(map(str, shape))}")
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        raise InputError(f"{path}: {name} holds other values than 0 and 1")
    mask = tensor.to(torch.int64)
    if not bool(mask.any(-1).all()):
        raise InputError(f"{path}: {name} masks every token of a prompt")
    return mask


def _dims(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def save_prompt_embeds(
    path: Path,
    prompt: PromptEmbeds,
    *,
    stage1: Stage1Caption | None = None,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a prompt embeddings file; it appears whole or not at all.

    Raises `OutputError` when it exists (without `overwrite`) or cannot be written, and
    `InputError` when the tensors are not what `load_prompt_embeds` accepts.
    """
    tensors = {EMBEDS: prompt.embeds, MASK: _full_mask(prompt)}
    if stage1 is not None:
        tensors |= {STAGE1_CAPTION: stage1.caption, STAGE1_MASK: stage1.mask.to(torch.int64)}
    embeds = _checked_embeds(prompt.embeds, EMBEDS, rank=3, path=path)
    _checked_mask(tensors[MASK], MASK, shape=embeds.shape[:2], path=path)
    _stage1(tensors, path)
    _write(path, tensors, metadata=metadata, overwrite=overwrite)


def save_caption(
    path: Path,
    caption: Stage1Caption,
    *,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a file of stage 1's half alone, for `load_caption`. Raises as `save_prompt_embeds`."""
    tensors = {STAGE1_CAPTION: caption.caption, STAGE1_MASK: caption.mask.to(torch.int64)}
    _stage1(tensors, path)
    _write(path, tensors, metadata=metadata, overwrite=overwrite)


def _write(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None,
    overwrite: bool,
) -> None:
    from safetensors.torch import save

    flat = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_whole(path, save(flat, dict(metadata or {})), overwrite=overwrite)


def _full_mask(prompt: PromptEmbeds) -> Tensor:
    if prompt.mask is None:
        return torch.ones(prompt.embeds.shape[:2], dtype=torch.int64)
    return prompt.mask.to(torch.int64)


def write_whole(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Write `data` to `path` through a temporary file in the same folder.

    Without `overwrite` an existing file is refused, also one that appears meanwhile.
    Raises `OutputError`; the temporary file is removed.
    """
    temporary = path.parent / f".sanawm-{secrets.token_hex(8)}.tmp"
    try:
        if not overwrite and path.exists():
            raise FileExistsError
        with temporary.open("xb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            _link(temporary, path)
    except FileExistsError:
        raise OutputError(f"{path}: exists already", fix="use --overwrite") from None
    except OSError as e:
        raise OutputError(f"{path}: cannot be written ({e.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """Give the file its name without replacing another; not every file system knows hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError from None
        temporary.replace(path)
