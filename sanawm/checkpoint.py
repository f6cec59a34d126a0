"""Give a model its weights, strictly, and read weights-only `.pt` files.

Nothing here runs code from a file. Only wanted tensors are read, and every missing, misshapen or
unknown tensor is named.

A model is built on torch's meta device, then `load_weights` gives every parameter its storage,
one tensor at a time, so that no second copy of the model is ever in memory.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, MissingFile
from .tensorfile import TensorFiles, list_some, short

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Prefixes that training wrappers put in front of every name; one of them is stripped with a line.
WRAPPER_PREFIXES = ("module.", "model.diffusion_model.", "model.")

#: Suffixes of files that torch wrote.
PT_SUFFIXES = (".pt", ".pth")


def load_weights(
    module: nn.Module,
    source: TensorFiles | Mapping[str, torch.Tensor],
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    ignore: Iterable[str] = (),
    keep_float32: Callable[[str], bool] = lambda name: False,
    label: str = "checkpoint",
    note: Callable[[str], None] = lambda line: None,
) -> None:
    """Give every parameter and persistent buffer of `module` (on meta) its tensor from `source`.

    `dtype` is the dtype to hold them in, float32 for names for which `keep_float32` is true.
    Tensors of `source` that `module` does not have are an error unless they match one of the
    `ignore` patterns (see `is_ignored`). One wrapper prefix common to all names is stripped, with a
    line through `note`; `_orig_mod.` is removed anywhere.

    Raises `CheckpointError` naming up to five missing, misshapen and unexpected tensors each.
    """
    import torch

    targets = module.state_dict(keep_vars=True)
    stored = match_names(module, source, ignore=ignore, label=label, note=note)
    for name, raw in stored.items():
        tensor = source.read(raw) if isinstance(source, TensorFiles) else source[raw]
        target = torch.float32 if keep_float32(name) else dtype
        if not targets[name].is_floating_point():
            target = targets[name].dtype
        elif not tensor.is_floating_point():
            raise CheckpointError(
                f"{label}: tensor {name} is stored as {tensor.dtype}, expected floating point",
                fix="use weights that are not quantised",
            )
        value = tensor.to(device=device, dtype=target, copy=True)
        if not torch.isfinite(value).all():
            raise CheckpointError(
                f"{label}: tensor {name} holds NaN or infinity as {target}",
                fix="fetch the file again, or load it in another precision",
            )
        _assign(module, name, value)
    if isinstance(source, TensorFiles):
        source.close()
    module.requires_grad_(False)
    module.eval()


def match_names(
    module: nn.Module,
    source: TensorFiles | Mapping[str, torch.Tensor],
    *,
    ignore: Iterable[str] = (),
    label: str = "checkpoint",
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Return the name in `source` of every parameter and persistent buffer of `module`.

    Reads names and shapes, no tensor. Arguments and errors are those of `load_weights`.
    """
    wanted = {k: tuple(v.shape) for k, v in module.state_dict(keep_vars=True).items()}
    stored = _strip_prefix(list(source), wanted, label, note)
    shapes = {
        name: source.infos[raw].shape
        if isinstance(source, TensorFiles)
        else tuple(source[raw].shape)
        for name, raw in stored.items()
    }
    check_names(wanted, shapes, ignore=ignore, label=label)
    return {name: stored[name] for name in wanted}


def _assign(module: nn.Module, name: str, value: torch.Tensor) -> None:
    from torch import nn

    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        owner._buffers[leaf] = value


def _strip_prefix(
    names: list[str], wanted: Mapping[str, object], label: str, note: Callable[[str], None]
) -> dict[str, str]:
    """Map module names to stored names, removing one common wrapper prefix where it helps."""
    clean = {n.replace("_orig_mod.", ""): n for n in names}
    twice = sorted(set(names) - set(clean.values()))
    if twice:
        raise CheckpointError(f"{label}: {list_some(twice)} stored with and without `_orig_mod.`")
    if any("_orig_mod." in n for n in names):
        note("stripped `_orig_mod.` from the checkpoint's names")
    if any(n in wanted for n in clean):
        return clean
    for prefix in WRAPPER_PREFIXES:
        stripped = {n[len(prefix) :]: raw for n, raw in clean.items() if n.startswith(prefix)}
        if len(stripped) == len(clean) and any(n in wanted for n in stripped):
            note(f"stripped the prefix `{prefix}` from the checkpoint's names")
            return stripped
    return clean


def check_names(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    *,
    ignore: Iterable[str],
    label: str,
) -> None:
    """Raise `CheckpointError` when names or shapes in `found` are not those `wanted`."""
    patterns = tuple(ignore)
    missing = [n for n in wanted if n not in found]
    misshapen = [
        f"{n} is {_dims(found[n])}, expected {_dims(s)}"
        for n, s in wanted.items()
        if n in found and tuple(found[n]) != tuple(s)
    ]
    extra = [n for n in found if n not in wanted and not is_ignored(n, patterns)]
    parts = [
        f"{len(names)} {kind}: {list_some(names)}"
        for kind, names in (
            ("missing", missing),
            ("of another shape", misshapen),
            ("unexpected", extra),
        )
        if names
    ]
    if parts:
        raise CheckpointError(
            f"{label}: weights do not fit the model; " + "; ".join(parts),
            fix="check that its config and its weights belong to the same release",
        )


def is_ignored(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a tensor's name matches one of `patterns`.

    A pattern is matched part by part: `*` stands for one part between dots, and only at the end of
    the pattern for everything below (`blocks.*.audio_*`: whatever a block holds by that name).
    """
    for pattern in patterns:
        wanted = pattern.split(".")
        parts = name.split(".", len(wanted) - 1)
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            return True
    return False


def _dims(shape: Iterable[int]) -> str:
    return "x".join(str(n) for n in shape) or "scalar"


def read_pt(path: Path) -> Any:
    """Return the content of a `.pt` file through torch's weights-only loader, memory-mapped.

    Raises `CheckpointError` when the file holds anything but tensors and plain containers; there
    is no way to load such a file.
    """
    import pickle

    import torch

    if path.suffix not in PT_SUFFIXES:
        raise CheckpointError(
            f"{path}: suffix {path.suffix or '(none)'} is not supported; "
            f"expected {' or '.join(PT_SUFFIXES)}",
            fix="give a torch file of plain tensors, or convert it to safetensors",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of pickle protocols: it reads or raises
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except pickle.UnpicklingError as e:
        raise CheckpointError(
            f"{path}: refused, it holds more than tensors ({_refused_type(str(e))})",
            fix="ask its author for a safetensors file, or for a .pt of plain tensors",
        ) from None
    except (
        RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError,
        AssertionError, OverflowError, struct.error,
    ) as e:  # fmt: skip  # what torch's unpickler raises for damaged bytes
        raise CheckpointError(
            f"{path}: not a readable .pt file ({short(e)})",
            fix="fetch the file again, or convert it to safetensors",
        ) from None


def _refused_type(message: str) -> str:
    """Pick the refused type out of torch's message, without its advice to load unsafely."""
    for line in message.splitlines():
        for mark in ("GLOBAL ", "class "):
            if mark in line:
                return line.split(mark, 1)[1].split(" ")[0].strip(".,'\"`")
    return "an unknown type"
