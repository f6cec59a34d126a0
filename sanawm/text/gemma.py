"""Gemma as prompt encoder: its text backbone, built by transformers and loaded by us.

Gemma-3 serves the refiner (one state per layer), Gemma-2 serves stage 1 (the last state).

| quantity | dtype |
|---|---|
| weights, hidden states | the dtype asked for (the releases store bfloat16) |
| RoPE frequencies of the backbone | float32 |
| embedding scale sqrt(E) | rounded to the weight dtype before the product (transformers) |
| attention of Gemma-2 | transformers' eager form: softmax in float32, logits softly capped |

Only the text backbone is built: no vision tower (the released Gemma-3 has one), and no logits
(`L` times 262,208 numbers that nobody reads).
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


class GemmaFamily(NamedTuple):
    """What differs between generations of Gemma.

    `kinds`: their `model_type` values. The classes are those of transformers. `prefixes`: where the
    backbone may sit in the tensor names. `ignored`: tensors that text needs not. `fix`: what to do
    when a folder holds another model.
    """

    name: str
    kinds: tuple[str, ...]
    config_class: str
    model_class: str
    prefixes: tuple[str, ...]
    ignored: tuple[str, ...]
    fix: str


#: A `Gemma3ForConditionalGeneration`. Prefixes by age of the transformers that wrote the file; the
#: last two are a text-only model and a bare backbone.
GEMMA3 = GemmaFamily(
    name="Gemma-3",
    kinds=("gemma3", "gemma3_text"),
    config_class="Gemma3TextConfig",
    model_class="Gemma3TextModel",
    prefixes=("language_model.model.", "model.language_model.", "model.", ""),
    ignored=(
        "vision_tower.*",
        "model.vision_tower.*",
        "multi_modal_projector.*",
        "model.multi_modal_projector.*",
        "lm_head.*",
        "language_model.lm_head.*",
    ),
    fix="point to the Gemma-3 released with the refiner (gemma3_12b)",
)
#: A `Gemma2ForCausalLM`, or its bare backbone.
GEMMA2 = GemmaFamily(
    name="Gemma-2",
    kinds=("gemma2",),
    config_class="Gemma2Config",
    model_class="Gemma2Model",
    prefixes=("model.", ""),
    ignored=("lm_head.*",),
    fix="point to the Gemma-2 that stage 1 was trained with (gemma-2-2b-it)",
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


def read_gemma_config(folder: Path, *, family: GemmaFamily = GEMMA3) -> GemmaInfo:
    """Return the text settings of the Gemma in `folder`. Needs no transformers.

    Raises `MissingFile` or `CheckpointError` (another kind of model, unusable values).
    """
    path = folder / "config.json"
    data = read_json(path)
    kind = data.get("model_type")
    if kind not in family.kinds:
        expected = " or ".join(map(repr, family.kinds))
        raise CheckpointError(
            f"{path}: model_type is {kind!r}, expected {expected}", fix=family.fix
        )
    settings = data.get("text_config") if kind == "gemma3" else data
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path}: no text_config in this configuration")
    width, layers = settings.get("hidden_size"), settings.get("num_hidden_layers")
    if not isinstance(width, int) or not isinstance(layers, int):
        raise CheckpointError(f"{path}: hidden_size and num_hidden_layers must be whole numbers")
    return GemmaInfo(settings, width, layers)


def load_gemma(
    folder: Path,
    *,
    family: GemmaFamily = GEMMA3,
    device: torch.device | str,
    dtype: torch.dtype,
    notes: Notes,
) -> nn.Module:
    """Return the text backbone in `folder` with its weights, on `device`.

    Reads local files only, and only the backbone's tensors. Raises `MissingFile`,
    `CheckpointError`, or `MachineError` when transformers cannot build the model.
    """
    info = read_gemma_config(folder, family=family)
    files = TensorFiles(folder)
    prefix = next(
        (p for p in family.prefixes if f"{p}embed_tokens.weight" in files), family.prefixes[0]
    )
    backbone = _build(info, family, folder)
    load_weights(
        _nest(backbone, prefix),
        files,
        device=device,
        dtype=dtype,
        ignore=family.ignored,
        label=str(folder),
        note=notes.change,
    )
    _restore_buffers(backbone, info, family, device=device)
    return backbone


def _build(info: GemmaInfo, family: GemmaFamily, folder: Path) -> nn.Module:
    """Return the backbone on the meta device."""
    from huggingface_hub.errors import StrictDataclassError

    transformers = import_transformers()
    try:
        config = getattr(transformers, family.config_class).from_dict(info.settings)
        with torch.device("meta"):
            backbone: nn.Module = getattr(transformers, family.model_class)(config)
    except (
        ImportError, AttributeError, KeyError, TypeError, ValueError, RuntimeError,
        StrictDataclassError,
    ) as e:  # fmt: skip
        raise cannot(f"build the text encoder of {folder}", e) from None
    return backbone


def _nest(backbone: nn.Module, prefix: str) -> nn.Module:
    """Return `backbone` wrapped so that its parameter names start with `prefix`."""
    nested = backbone
    for part in reversed(prefix.split(".")[:-1]):
        nested = nn.ModuleDict({part: nested})
    return nested


def _restore_buffers(
    backbone: nn.Module, info: GemmaInfo, family: GemmaFamily, *, device: torch.device | str
) -> None:
    """Compute the buffers that no checkpoint holds; the meta device left them without values."""
    try:
        backbone.rotary_emb = type(backbone.rotary_emb)(backbone.config).to(device)
        embedding = backbone.get_submodule("embed_tokens")
        embedding.register_buffer(
            "embed_scale", torch.tensor(info.width**0.5, device=device), persistent=False
        )
    except (AttributeError, TypeError) as e:
        raise cannot(f"compute the position frequencies of {family.name}", e) from None
    tensors = [*backbone.named_parameters(), *backbone.named_buffers()]
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise MachineError(
            f"transformers {transformers_version()} builds a {family.name} with unknown buffers: "
            + ", ".join(empty[:5])
        )


def prompt_states(backbone: nn.Module, tokens: Tokens) -> tuple[Tensor, ...]:
    """Return the hidden states of the prompt, one `(1, L, E)` for each of layers + 1.

    Entry 0: token embeddings times sqrt(E); entry i: output of decoder layer i; the last: output
    of the last layer after the final norm (its raw output is not among them). Positions count
    padding. Raises `MachineError` when transformers gives no state per layer.
    """
    result = _forward(backbone, tokens, every_layer=True)
    states: tuple[Tensor, ...] | None = getattr(result, "hidden_states", None)
    if not states:
        raise MachineError(
            f"the text encoder gave no per-layer hidden states (transformers "
            f"{transformers_version()}); the connectors need one per layer"
        )
    return tuple(states)


def last_state(backbone: nn.Module, tokens: Tokens) -> Tensor:
    """Return the last hidden state of the prompt, after the final norm, `(1, L, E)`.

    The same as the last of `prompt_states`, without keeping the others in memory.
    """
    state: Tensor = _forward(backbone, tokens, every_layer=False).last_hidden_state
    return state


def _forward(backbone: nn.Module, tokens: Tokens, *, every_layer: bool) -> Any:
    """Return what transformers' forward gives for `tokens`."""
    device = next(backbone.parameters()).device
    with torch.no_grad():
        return backbone(
            input_ids=tokens.ids.to(device),
            attention_mask=tokens.mask.to(device),
            use_cache=False,
            output_hidden_states=every_layer,
        )


def check_ids(backbone: nn.Module, tokens: Tokens, *, where: Path) -> None:
    """Raise `CheckpointError` when the tokenizer knows ids that the embedding has no row for."""
    rows = backbone.get_submodule("embed_tokens").get_parameter("weight").shape[0]
    highest = int(tokens.ids.max())
    if highest >= rows:
        raise CheckpointError(
            f"{where}: the tokenizer gives id {highest}, the text encoder has {rows} embeddings",
            fix="fetch tokenizer and weights of the same model",
        )


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
