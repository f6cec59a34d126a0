"""Architecture of the refiner, read from `transformer/config.json`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sanawm.errors import CheckpointError
from sanawm.tensorfile import read_json

#: Keys that must hold exactly this value: everything else would be another forward pass.
REQUIRED: dict[str, object] = {
    "patch_size": 1,
    "patch_size_t": 1,
    "activation_fn": "gelu-approximate",
    "qk_norm": "rms_norm_across_heads",
    "cross_attn_mod": False,
    "use_prompt_embeddings": True,
}
#: Keys that may hold a fraction though their default is whole.
FLOAT_KEYS = ("pos_embed_max_pos", "base_height", "base_width", "timestep_scale_multiplier")
LTX23_KEYS = ("cross_attn_mod", "use_prompt_embeddings")
CLASS_NAMES = ("LTX2VideoTransformer3DModel", "SanaWMLTX2RefinerTransformer3DModel")


@dataclass(frozen=True)
class RefinerConfig:
    """The keys of `config.json` that influence the video pass.

    Defaults are the class defaults of the public format, which a missing key takes; the released
    values are `RefinerConfig.released()`. Source: the public LTX-2 transformer config.
    """

    in_channels: int = 128
    out_channels: int = 128
    num_attention_heads: int = 32
    attention_head_dim: int = 128
    cross_attention_dim: int = 4096
    num_layers: int = 48
    caption_channels: int = 3840
    vae_scale_factors: tuple[int, int, int] = (8, 32, 32)
    pos_embed_max_pos: float = 20
    base_height: float = 2048
    base_width: float = 2048
    causal_offset: int = 1
    rope_theta: float = 10000.0
    rope_double_precision: bool = True
    rope_type: str = "interleaved"
    timestep_scale_multiplier: float = 1000
    norm_elementwise_affine: bool = False
    norm_eps: float = 1e-6
    gated_attn: bool = False
    attention_bias: bool = True
    attention_out_bias: bool = True
    ff_bias: bool = True

    @property
    def width(self) -> int:
        """Model width D = heads x head size."""
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def released(cls) -> RefinerConfig:
        """Return the architecture of the SANA-WM_streaming refiner."""
        return cls(rope_type="split")

    @classmethod
    def from_json(cls, path: Path) -> RefinerConfig:
        """Read `config.json`; unknown keys are ignored, missing ones take the class default.

        Raises `CheckpointError` for values that this implementation does not compute.
        """
        return cls.from_dict(read_json(path), where=str(path))

    @classmethod
    def from_dict(cls, data: dict[str, Any], *, where: str) -> RefinerConfig:
        """Build from the keys of a config file; `where` names it in errors."""
        _check_required(data, where)
        known = {
            f.name: _typed(f.name, f.default, data[f.name], where)
            for f in fields(cls)
            if data.get(f.name) is not None
        }
        known.setdefault("out_channels", known.get("in_channels", cls.in_channels))
        config = cls(**known)
        config._check(where)
        return config

    def _check(self, where: str) -> None:
        if self.rope_type not in ("split", "interleaved"):
            raise CheckpointError(
                f"{where}: rope_type is {self.rope_type!r}; expected 'split' or 'interleaved'"
            )
        if self.cross_attention_dim != self.width:
            raise CheckpointError(
                f"{where}: cross_attention_dim is {self.cross_attention_dim}; "
                f"expected heads x head size = {self.width}"
            )
        if self.in_channels != self.out_channels:
            raise CheckpointError(
                f"{where}: out_channels {self.out_channels} differ from "
                f"in_channels {self.in_channels}; a refiner returns what it takes"
            )
        if self.attention_head_dim % 2:
            raise CheckpointError(
                f"{where}: attention_head_dim is {self.attention_head_dim}; RoPE needs an even one"
            )


def _typed(name: str, default: object, found: Any, where: str) -> Any:
    """Return `found` with the type of the class default; numbers must be positive and finite.

    `causal_offset` may also be 0. JSON writes whole floats as integers, so those are accepted.
    """
    lowest = 0 if name == "causal_offset" else 1
    if isinstance(default, bool):
        good, kind = isinstance(found, bool), "true or false"
    elif isinstance(default, str):
        good, kind = isinstance(found, str), "a text"
    elif isinstance(default, tuple):
        kind = f"{len(default)} whole numbers from 1"
        good = isinstance(found, list | tuple) and len(found) == len(default)
        good = good and all(_is_number(v) and v == int(v) and v >= 1 for v in found)
        found = tuple(int(v) for v in found) if good else found
    elif isinstance(default, int) and name not in FLOAT_KEYS:
        good, kind = type(found) is int and found >= lowest, f"a whole number from {lowest}"
    else:
        good, kind = _is_number(found) and found > 0, "a positive number"
    if not good:
        raise CheckpointError(f"{where}: {name} is {found!r}; expected {kind}")
    return found


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e30 < value < 1e30  # no bool, no NaN


def _check_required(data: dict[str, Any], where: str) -> None:
    name = data.get("_class_name", CLASS_NAMES[0])
    if name not in CLASS_NAMES:
        raise CheckpointError(
            f"{where}: this is a {name}; expected {' or '.join(CLASS_NAMES)}",
            fix="point model.refiner at the folder that holds transformer/ and connectors/",
        )
    for key, value in REQUIRED.items():
        found = data.get(key, value)
        if found != value:
            kind = "an LTX-2.3 option" if key in LTX23_KEYS else "not supported"
            raise CheckpointError(
                f"{where}: {key} is {found!r}, {kind}; sanawm computes only {key} = {value!r}",
                fix="use a checkpoint of the SANA-WM_streaming layout (LTX-2.0 transformer)",
            )
