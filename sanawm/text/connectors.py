"""Text connectors: packed Gemma states become the embeddings that the refiner attends to.

| step | dtype |
|---|---|
| `text_proj_in`, attention and feed-forward linears, residual sums, gates | model dtype |
| statistics of all norms, weights of the query/key norms | float32, rounded once |
| RoPE frequencies | float64 (or float32 by config), then float32 |
| RoPE tables and rotation | float32, rounded back |

Parameter names are those of the checkpoint (class `LTX2TextConnectors`). The audio connector has
the same input and an unused result: it is neither built nor read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError
from torch import Tensor, nn

from sanawm.checkpoint import check_names, load_weights
from sanawm.errors import CheckpointError, UsageError
from sanawm.notes import Notes
from sanawm.ops.attention import attention, merge_heads, split_heads
from sanawm.ops.norm import rms_norm
from sanawm.ops.rope import RopeTable, apply_rope, frequencies, table_from_fractions
from sanawm.tensorfile import TensorFiles, read_json

#: Tensors of the checkpoint that the video path does not use.
IGNORED = ("audio_connector.*",)
#: Epsilon of every norm here.
EPS = 1e-6


class ConnectorsConfig(BaseModel):
    """Settings in `connectors/config.json`, under the names and defaults of diffusers' class.

    `caption_channels` is the text width E, `text_proj_in_factor` the number of hidden states M.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    caption_channels: PositiveInt = 3840
    text_proj_in_factor: PositiveInt = 49
    video_connector_num_attention_heads: PositiveInt = 30
    video_connector_attention_head_dim: PositiveInt = 128
    video_connector_num_layers: PositiveInt = 2
    video_connector_num_learnable_registers: PositiveInt | None = 128
    video_gated_attn: bool = False
    connector_rope_base_seq_len: PositiveInt = 4096
    rope_theta: PositiveFloat = 10000.0
    rope_double_precision: bool = True
    rope_type: Literal["split", "interleaved"] = "interleaved"
    proj_bias: bool = False
    per_modality_projections: bool = False

    @property
    def width(self) -> int:
        """Width of the connector's rows: heads times head size."""
        return self.video_connector_num_attention_heads * self.video_connector_attention_head_dim

    def check_length(self, max_length: int) -> None:
        """Raise `UsageError` unless prompts of `max_length` tokens fit the registers."""
        count = self.video_connector_num_learnable_registers or 1
        if max_length < 1 or max_length % count:
            raise UsageError(
                f"text max_length {max_length} is not a multiple of the {count} registers of the "
                "text connectors",
                fix=f"use max_length {max(1, round(max_length / count)) * count}",
            )


def read_connectors_config(folder: Path) -> ConnectorsConfig:
    """Return the settings in `folder/config.json`.

    Raises `MissingFile` or `CheckpointError`, the latter also for LTX-2.3 connectors, which
    normalise and project in another way (`per_modality_projections`).
    """
    path = folder / "config.json"
    try:
        config = ConnectorsConfig.model_validate(read_json(path))
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"{path}: {key} is {first['input']!r}, expected {_expected(first)}",
            fix="fetch the file again: it is no config of the text connectors",
        ) from None
    if config.per_modality_projections:
        raise CheckpointError(
            f"{path}: per_modality_projections is true: these are LTX-2.3 connectors, which "
            "sanawm does not support",
            fix="use the connectors released with the refiner (SANA-WM_streaming)",
        )
    if config.width != config.caption_channels:
        raise CheckpointError(
            f"{path}: {config.video_connector_num_attention_heads} heads of "
            f"{config.video_connector_attention_head_dim} make a width of {config.width}, "
            f"but caption_channels is {config.caption_channels}"
        )
    if config.video_connector_attention_head_dim % 2:
        raise CheckpointError(
            f"{path}: video_connector_attention_head_dim "
            f"{config.video_connector_attention_head_dim} is odd, RoPE needs an even head size"
        )
    return config


def _expected(fault: Any) -> str:
    """Return what pydantic says that a value should have been, in our words."""
    rule, kind = fault.get("ctx", {}), str(fault["type"])
    if "gt" in rule or "expected" in rule:
        return f"more than {rule['gt']:g}" if "gt" in rule else str(rule["expected"])
    names = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    return names.get(kind.partition("_")[0], "another value")


class HeadsNorm(nn.Module):
    """Weight of an RMS norm over the whole width, across heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x / rms(x) * weight` over the last axis."""
        return rms_norm(x, eps=EPS, weight=self.weight)


class ConnectorAttention(nn.Module):
    """Self-attention with normalised, rotated queries and keys and optional gates on the heads."""

    def __init__(self, config: ConnectorsConfig) -> None:
        super().__init__()
        D = config.width
        self.heads = config.video_connector_num_attention_heads
        self.rope_type = config.rope_type
        self.norm_q, self.norm_k = HeadsNorm(D), HeadsNorm(D)
        self.to_q, self.to_k, self.to_v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.to_out = nn.ModuleList([nn.Linear(D, D)])
        self.to_gate_logits = nn.Linear(D, self.heads) if config.video_gated_attn else None

    def forward(self, x: Tensor, *, rope: RopeTable, bias: Tensor | None) -> Tensor:
        """Return the attention update `(B, L, D)` of the normalised rows `x` `(B, L, D)`."""
        q = split_heads(self.norm_q(self.to_q(x)), self.heads)  # (B, N, L, K)
        k = split_heads(self.norm_k(self.to_k(x)), self.heads)
        v = split_heads(self.to_v(x), self.heads)
        q, k = apply_rope(q, rope, self.rope_type), apply_rope(k, rope, self.rope_type)
        y = attention(q, k, v, bias=bias)  # (B, N, L, K)
        if self.to_gate_logits is not None:
            gates = 2 * torch.sigmoid(self.to_gate_logits(x))  # (B, L, N)
            y = y * gates.transpose(1, 2).unsqueeze(-1)
        return self.to_out[0](merge_heads(y))


class GeluLinear(nn.Module):
    """Linear followed by GELU (tanh approximation)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Return `gelu(proj(x))`."""
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    """Two linears, 4 times as wide in the middle; the checkpoint numbers them 0 and 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            GeluLinear(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward update of `x` `(B, L, D)`."""
        return self.net(x)


class ConnectorBlock(nn.Module):
    """Attention and feed-forward, each on RMS-normalised rows (no weights) and added back."""

    def __init__(self, config: ConnectorsConfig) -> None:
        super().__init__()
        self.attn1 = ConnectorAttention(config)
        self.ff = FeedForward(config.width)

    def forward(self, x: Tensor, *, rope: RopeTable, bias: Tensor | None) -> Tensor:
        """Return the rows `(B, L, D)` after this block."""
        x = x + self.attn1(rms_norm(x, eps=EPS), rope=rope, bias=bias)
        return x + self.ff(rms_norm(x, eps=EPS))


class VideoConnector(nn.Module):
    """A small 1-D transformer over text tokens, with registers in the place of padding."""

    def __init__(self, config: ConnectorsConfig) -> None:
        super().__init__()
        self.config = config
        count = config.video_connector_num_learnable_registers
        self.learnable_registers = (
            None if count is None else nn.Parameter(torch.zeros(count, config.width))
        )
        self.transformer_blocks = nn.ModuleList(
            ConnectorBlock(config) for _ in range(config.video_connector_num_layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the rows `(B, L, D)` for projected tokens `x` and their 0/1 `mask` `(B, L)`."""
        bias = None
        if self.learnable_registers is None:
            bias = padding_bias(mask, x.dtype)
        else:
            x = place_registers(x, mask, self.learnable_registers)
        rope = self.rope_table(x.shape[1]).to(x.device)
        for block in self.transformer_blocks:
            x = block(x, rope=rope, bias=bias)
        return rms_norm(x, eps=EPS)

    def rope_table(self, length: int) -> RopeTable:
        """Return the table of positions `0 .. length-1`, as fractions of the trained length."""
        c = self.config
        freqs = frequencies(c.width // 2, theta=c.rope_theta, double=c.rope_double_precision)
        fractions = torch.arange(length, dtype=torch.float32) / c.connector_rope_base_seq_len
        return table_from_fractions(
            fractions.unsqueeze(1),
            freqs,
            heads=c.video_connector_num_attention_heads,
            width=c.width,
        )


def place_registers(x: Tensor, mask: Tensor, registers: Tensor) -> Tensor:
    """Return `x` `(B, L, D)` with its valid rows moved to the front and registers behind them.

    registers: `(R, D)` with L a multiple of R. Position i behind the n valid rows holds register
    `i mod R`, not `(i - n) mod R`.
    """
    L, R = x.shape[1], registers.shape[0]
    if L % R:
        raise UsageError(f"{L} text tokens are not a multiple of the {R} registers")
    placed = registers.to(x.dtype).repeat(L // R, 1).repeat(x.shape[0], 1, 1)  # (B, L, D)
    for row, item, valid in zip(placed, x, mask.bool(), strict=True):
        words = item[valid]  # (n, D)
        row[: len(words)] = words
    return placed


def padding_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive bias `(B, 1, 1, L)`: 0 at valid tokens, -max(dtype) at padding."""
    return ((mask.to(dtype) - 1) * torch.finfo(dtype).max)[:, None, None, :]


class TextConnectors(nn.Module):
    """Projection of the packed states and the video connector."""

    def __init__(self, config: ConnectorsConfig) -> None:
        super().__init__()
        self.config = config
        E, M = config.caption_channels, config.text_proj_in_factor
        self.text_proj_in = nn.Linear(E * M, E, bias=config.proj_bias)
        self.video_connector = VideoConnector(config)

    def forward(self, packed: Tensor, mask: Tensor) -> Tensor:
        """Return the prompt embeddings `(B, L, E)`, all of whose rows count.

        packed: `(B, L, E*M)` from `pack_states`, in the dtype of the weights; mask: `(B, L)` 0/1.
        """
        return self.video_connector(self.text_proj_in(packed), mask)


def check_connectors(folder: Path) -> ConnectorsConfig:
    """Return the settings of the connectors in `folder` after checking its files.

    Reads `config.json` and file headers but no tensor, so that a wrong folder is found before the
    large text encoder is loaded. Raises `MissingFile` or `CheckpointError`.
    """
    model = _on_meta(read_connectors_config(folder))
    wanted = {k: tuple(v.shape) for k, v in model.state_dict(keep_vars=True).items()}
    found = {k: info.shape for k, info in TensorFiles(folder).infos.items()}
    if any(name in wanted for name in found):  # names behind a wrapper prefix: `load_weights`
        check_names(wanted, found, ignore=IGNORED, label=str(folder))
    return model.config


def load_connectors(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype, notes: Notes
) -> TextConnectors:
    """Return the text connectors in `folder` (config.json and safetensors) with their weights.

    Reads the video half only. Raises `MissingFile` or `CheckpointError`.
    """
    model = _on_meta(read_connectors_config(folder))
    load_weights(
        model,
        TensorFiles(folder),
        device=device,
        dtype=dtype,
        ignore=IGNORED,
        label=str(folder),
        note=notes.change,
    )
    return model


def _on_meta(config: ConnectorsConfig) -> TextConnectors:
    with torch.device("meta"):
        return TextConnectors(config)
