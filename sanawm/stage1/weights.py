"""Read the weights of a stage-1 model: the release's training pickle, or safetensors.

The pickle (`sana_dit/model.pt`) is opened memory-mapped by torch's weights-only loader; of its
entries only `generator` is read. The names of diffusers' conversion are accepted too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanawm.checkpoint import load_weights, read_pt
from sanawm.errors import CheckpointError
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles, TensorInfo

from .config import Stage1Config
from .model import Stage1Model

if TYPE_CHECKING:
    import torch

#: Tensors of every release that no forward pass reads.
UNUSED = (
    "pos_embed",  # placeholder; positions are rotary
    "y_embedder.y_embedding",  # null caption, for dropout in training
    "blocks.*.attn.recall_gate",  # kept for old checkpoints
)
#: Parts of the recurrent gates that softmax blocks carry without using them.
UNUSED_IN_SOFTMAX = ("A_log", "dt_bias", "beta_proj.*", "gate_proj.*")
#: Read only when the model has no Plücker residual, which this code does not compute.
UNUSED_WITH_PLUCKER = ("raymap_embedder.proj.*",)
#: Entries of a training pickle that may hold the weights, in order.
CONTAINERS = ("generator", "state_dict")
#: Names of diffusers' conversion, and those used here.
RENAMED = {"t_embedder.linear_1.": "t_embedder.mlp.0.", "t_embedder.linear_2.": "t_embedder.mlp.2."}
#: Parameters held in float32 whatever the dtype: the decay is computed in it.
FLOAT32 = ("A_log", "dt_bias")


def load_stage1(
    path: Path,
    *,
    config: Stage1Config,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
) -> Stage1Model:
    """Build the model of `config` with the weights at `path`, held in `dtype` on `device`.

    path: a `.pt` or `.safetensors` file, or a folder holding `model.pt` or safetensors.
    Raises `MissingFile`, or `CheckpointError` naming missing, misshapen and unexpected tensors.
    """
    import torch

    file = weights_file(path)
    with torch.device("meta"):
        model = Stage1Model(config)
    load_weights(
        model,
        open_stage1(file),
        device=device,
        dtype=dtype,
        ignore=ignored(config),
        keep_float32=lambda name: name.endswith(FLOAT32),
        label=f"stage 1 ({file})",
        note=notes.info,
    )
    model.prepare()
    return model


def open_stage1(file: Path) -> TensorFiles | dict[str, torch.Tensor]:
    """Return the stage-1 tensors of what `weights_file` names, under the names used here.

    A `.pt` is memory-mapped, of safetensors the headers are read. Raises as `load_stage1`.
    """
    return read_generator(file) if file.suffix == ".pt" else _open_safetensors(file)


def weights_file(path: Path) -> Path:
    """Return what to open at `path`: a folder's `model.pt` if it holds no safetensors, else `path`.

    Safetensors come first, so that a folder with a converted copy never touches the pickle.
    """
    inside = path / "model.pt"
    only_pickle = path.is_dir() and inside.is_file() and not any(path.glob("*.safetensors"))
    return inside if only_pickle else path


def ignored(config: Stage1Config) -> list[str]:
    """Return the patterns of tensors that a checkpoint of `config` holds and nothing reads."""
    softmax = [i for i in range(config.depth) if config.is_softmax(i)]
    patterns = [
        *UNUSED,
        *(f"blocks.{i}.attn.{name}" for i in softmax for name in UNUSED_IN_SOFTMAX),
    ]
    return patterns + list(UNUSED_WITH_PLUCKER if config.plucker_channels else ())


def read_generator(path: Path) -> dict[str, torch.Tensor]:
    """Return the stage-1 tensors of a training pickle under the names used here.

    Takes the entry `generator` if there is one, else `state_dict`, else the pickle itself, and
    strips one leading `model.` from every name.
    """
    import torch

    found: Any = read_pt(path)
    for name in CONTAINERS:
        if isinstance(found, Mapping) and name in found:
            found = found[name]
            break
    if not isinstance(found, Mapping) or not found:
        raise CheckpointError(
            f"{path}: no state dict found",
            fix=f"expected tensors by name, or an entry {' or '.join(CONTAINERS)}",
        )
    odd = [str(k) for k, v in found.items() if not isinstance(v, torch.Tensor)]
    if odd:
        raise CheckpointError(f"{path}: entry {odd[0]} is no tensor, so this is no state dict")
    return {plain_name(str(name)): tensor for name, tensor in found.items()}


def plain_name(name: str) -> str:
    """Return a checkpoint's tensor name as this package spells it."""
    name = name.removeprefix("model.")
    for old, new in RENAMED.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def _open_safetensors(path: Path) -> TensorFiles:
    files = TensorFiles(path)
    renamed = any(old in name for name in files for old in RENAMED)
    return _RenamedFiles(files) if renamed else files


class _RenamedFiles(TensorFiles):
    """Opened safetensors whose tensors go by the names used here; nothing is read for it."""

    def __init__(self, files: TensorFiles) -> None:
        self.path, self.metadata = files.path, files.metadata
        self._files = files
        self._stored = {plain_name(name): name for name in files}
        self.infos: dict[str, TensorInfo] = {
            name: files.infos[stored] for name, stored in self._stored.items()
        }

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor in its stored dtype on the CPU."""
        return self._files.read(self._stored[name])

    def close(self) -> None:
        """Drop the file mappings."""
        self._files.close()
