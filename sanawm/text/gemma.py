"""Gemma-3 as prompt encoder: its text backbone, built by transformers and loaded by us.

| quantity | dtype |
|---|---|
| weights, hidden states | the dtype asked for (the release stores bfloat16) |
| RoPE frequencies of the backbone | float32 |
| embedding scale sqrt(E) | rounded to the weight dtype before the product (transformers) |

The released folder is a `Gemma3ForConditionalGeneration`. Only its text backbone is built: no
vision tower, and no logits (`L` times 262,208 numbers that nobody reads).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sanawm.checkpoint import load_weights
from sanawm.errors import CheckpointError, MachineError
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles, read_json

from .library import cannot, import_transformers, transformers_version
from .tokenizer import Tokens

#: Where the backbone sits in the tensor names, by age of the transformers that wrote the file;
#: the last two are a text-only model and a bare backbone.
PREFIXES = ("language_model.model.", "model.language_model.", "model.", "")
#: Tensors that text needs not: picture half and output head.
IGNORED = (
    "vision_tower.*",
    "model.vision_tower.*",
    "multi_modal_projector.*",
    "model.multi_modal_projector.*",
    "lm_head.*",
    "language_model.lm_head.*",
)


class GemmaInfo(NamedTuple):
    """What `config.json` of a text encoder says: text settings, text width E, decoder layers."""

    settings: dict[str, Any]
    width: int
    layers: int

    @property
    def states(self) -> int:
        """Hidden states that the backbone gives: the embeddings and one per layer."""
        return self.layers + 1


def read_gemma_config(folder: Path) -> GemmaInfo:
    """Return the text settings of the Gemma-3 in `folder`. Needs no transformers.

    Raises `MissingFile` or `CheckpointError` (another kind of model, unusable values).
    """
    path = folder / "config.json"
    data = read_json(path)
    kind = data.get("model_type")
    if kind not in ("gemma3", "gemma3_text"):
        raise CheckpointError(
            f"{path}: model_type is {kind!r}, expected 'gemma3' or 'gemma3_text'",
            fix="point to the Gemma-3 released with the refiner (gemma3_12b)",
        )
    settings = data.get("text_config") if kind == "gemma3" else data
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path}: no text_config in this configuration")
    width, layers = settings.get("hidden_size"), settings.get("num_hidden_layers")
    if not isinstance(width, int) or not isinstance(layers, int):
        raise CheckpointError(f"{path}: hidden_size and num_hidden_layers must be whole numbers")
    return GemmaInfo(settings, width, layers)


def load_gemma(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype, notes: Notes
) -> nn.Module:
    """Return the text backbone in `folder` with its weights, on `device`.

    Reads local files only, and only the backbone's tensors. Raises `MissingFile`,
    `CheckpointError`, or `MachineError` when transformers cannot build the model.
    """
    info = read_gemma_config(folder)
    files = TensorFiles(folder)
    prefix = next((p for p in PREFIXES if f"{p}embed_tokens.weight" in files), PREFIXES[0])
    backbone = _build(info, folder)
    load_weights(
        _nest(backbone, prefix),
        files,
        device=device,
        dtype=dtype,
        ignore=IGNORED,
        label=str(folder),
        note=notes.change,
    )
    _restore_buffers(backbone, info, device=device)
    return backbone


def _build(info: GemmaInfo, folder: Path) -> nn.Module:
    """Return the backbone on the meta device."""
    from huggingface_hub.errors import StrictDataclassError

    transformers = import_transformers()
    try:
        config = transformers.Gemma3TextConfig.from_dict(info.settings)
        with torch.device("meta"):
            return transformers.Gemma3TextModel(config)
    except (
        ImportError, AttributeError, KeyError, TypeError, ValueError, RuntimeError,
        StrictDataclassError,
    ) as e:  # fmt: skip
        raise cannot(f"build the text encoder of {folder}", e) from None


def _nest(backbone: nn.Module, prefix: str) -> nn.Module:
    """Return `backbone` wrapped so that its parameter names start with `prefix`."""
    nested = backbone
    for part in reversed(prefix.split(".")[:-1]):
        nested = nn.ModuleDict({part: nested})
    return nested


def _restore_buffers(backbone: nn.Module, info: GemmaInfo, *, device: torch.device | str) -> None:
    """Compute the buffers that no checkpoint holds; the meta device left them without values."""
    try:
        backbone.rotary_emb = type(backbone.rotary_emb)(backbone.config).to(device)
        embedding = backbone.get_submodule("embed_tokens")
        embedding.register_buffer(
            "embed_scale", torch.tensor(info.width**0.5, device=device), persistent=False
        )
    except (AttributeError, TypeError) as e:
        raise cannot("compute the position frequencies of Gemma-3", e) from None
    tensors = [*backbone.named_parameters(), *backbone.named_buffers()]
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise MachineError(
            f"transformers {transformers_version()} builds a Gemma-3 with unknown buffers: "
            + ", ".join(empty[:5])
        )


def prompt_states(backbone: nn.Module, tokens: Tokens) -> tuple[Tensor, ...]:
    """Return the hidden states of the prompt, one `(1, L, E)` for each of layers + 1.

    Entry 0: token embeddings times sqrt(E); entry i: output of decoder layer i; the last: output
    of the last layer after the final norm (its raw output is not among them). Positions count
    padding. Raises `MachineError` when transformers gives no state per layer.
    """
    device = next(backbone.parameters()).device
    with torch.no_grad():
        result = backbone(
            input_ids=tokens.ids.to(device),
            attention_mask=tokens.mask.to(device),
            use_cache=False,
            output_hidden_states=True,
        )
    states: tuple[Tensor, ...] | None = getattr(result, "hidden_states", None)
    if not states:
        raise MachineError(
            f"the text encoder gave no per-layer hidden states (transformers "
            f"{transformers_version()}); the connectors need one per layer"
        )
    return tuple(states)


def check_states(*, count: int, width: int, want_count: int, want_width: int, where: Path) -> None:
    """Raise `CheckpointError` unless the encoder gives what the connectors were trained on."""
    fix = "use the text encoder and the connectors of the same release"
    if width != want_width:
        raise CheckpointError(
            f"{where}: the text encoder's hidden size is {width}, the connectors expect "
            f"{want_width} (caption_channels)",
            fix=fix,
        )
    if count != want_count:
        raise CheckpointError(
            f"{where}: the text encoder gives {count} hidden states (layers + 1), the connectors "
            f"expect {want_count} (text_proj_in_factor)",
            fix=fix,
        )
