"""Read a VAE's `config.json` (diffusers layout). Imports no torch.

Two classes write such files with the same tensors: diffusers' and that of the SANA authors. They
spell the upsamplers' order in opposite directions; both spellings are read. A missing key takes
its default, keys starting with `_` are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from sanawm.errors import CheckpointError
from sanawm.notes import Notes
from sanawm.tensorfile import list_some, read_json

from .config import VAEConfig

T = TypeVar("T")

CLASS_NAMES = ("AutoencoderKLCausalLTX2Video", "AutoencoderKLLTX2Video")
DOWN_BLOCK = "LTX2VideoDownBlock3D"
#: How the types of a JSON file are called in messages.
KINDS: dict[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
}
#: Keys without meaning for inference.
IGNORED = {"gradient_checkpointing"}


def read_config(path: Path, *, notes: Notes | None = None) -> VAEConfig:
    """Return the settings in the file `path`; see `VAEConfig.from_json`."""
    values = read_json(path)
    fields = _Fields(values)
    try:
        config = _config(fields)
    except CheckpointError as e:
        raise CheckpointError(
            f"{path}: {e.message}",
            fix=e.fix or "check that this is the config.json of an LTX-2 VAE",
        ) from None
    unknown = [k for k in values if not k.startswith("_") and k not in fields.seen | IGNORED]
    if unknown and notes is not None:
        notes.warn(f"{path}: ignored unknown settings: {list_some(unknown)}")
    return config


class _Fields:
    """Typed access to the values of a config file, noting which keys were asked for."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.seen: set[str] = set()

    def given(self, key: str) -> bool:
        """Return whether `key` is there and not null."""
        self.seen.add(key)
        return self.values.get(key) is not None

    def one(self, key: str, default: T) -> T:
        """Return a value of exactly the type of `default`; an integer may stand for a float."""
        self.seen.add(key)
        value, kind = self.values.get(key, default), type(default)
        if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
            value = float(value)
        if type(value) is not kind:
            raise self._wrong(key, KINDS[kind])
        return value

    def many(self, key: str, default: tuple[T, ...], *, kind: type[T]) -> tuple[T, ...]:
        """Return a list of values, each of exactly the type `kind`."""
        self.seen.add(key)
        value = self.values.get(key, list(default))
        if not isinstance(value, list) or any(type(v) is not kind for v in value):
            raise self._wrong(key, f"a list, each {KINDS[kind]}")
        return tuple(value)

    def flags(self, key: str, *, count: int, default: bool = True) -> tuple[bool, ...]:
        """Return a list of booleans; one bare boolean stands for `count` of them."""
        if isinstance(self.values.get(key, default), bool):
            return (self.one(key, default),) * count
        return self.many(key, (default,) * count, kind=bool)

    def _wrong(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{key} is {self.values[key]!r}, expected {what}")


def _config(fields: _Fields) -> VAEConfig:
    _refuse_unsupported(fields)
    base = VAEConfig()
    outs = fields.many("block_out_channels", base.block_out_channels, kind=int)
    up_outs = fields.many("decoder_block_out_channels", base.decoder_block_out_channels, kind=int)
    down, up = len(outs), len(up_outs)
    _check_block_types(fields, down)
    _refuse_noise(fields, up)
    config = VAEConfig(
        in_channels=fields.one("in_channels", base.in_channels),
        out_channels=fields.one("out_channels", base.out_channels),
        latent_channels=fields.one("latent_channels", base.latent_channels),
        block_out_channels=outs,
        layers_per_block=fields.many("layers_per_block", base.layers_per_block, kind=int),
        spatio_temporal_scaling=fields.flags("spatio_temporal_scaling", count=down),
        downsample_type=fields.many("downsample_type", base.downsample_type, kind=str),
        decoder_block_out_channels=up_outs,
        decoder_layers_per_block=fields.many(
            "decoder_layers_per_block", base.decoder_layers_per_block, kind=int
        ),
        decoder_spatio_temporal_scaling=fields.flags("decoder_spatio_temporal_scaling", count=up),
        upsample_residual=fields.flags("upsample_residual", count=up),
        upsample_factor=fields.many("upsample_factor", (2,) * up, kind=int),
        upsample_type=_upsample_type(fields, up),
        patch_size=fields.one("patch_size", base.patch_size),
        resnet_norm_eps=fields.one("resnet_norm_eps", base.resnet_norm_eps),
        scaling_factor=fields.one("scaling_factor", base.scaling_factor),
        encoder_causal=fields.one("encoder_causal", base.encoder_causal),
        decoder_causal=fields.one("decoder_causal", base.decoder_causal),
        encoder_spatial_padding_mode=fields.one(
            "encoder_spatial_padding_mode", base.encoder_spatial_padding_mode
        ),
        decoder_spatial_padding_mode=fields.one(
            "decoder_spatial_padding_mode", base.decoder_spatial_padding_mode
        ),
    )
    _check_ratios(fields, config)
    return config


def _refuse_unsupported(fields: _Fields) -> None:
    name = fields.values.get("_class_name", CLASS_NAMES[0])
    if name not in CLASS_NAMES:
        raise CheckpointError(f"_class_name is {name!r}, expected {' or '.join(CLASS_NAMES)}")
    if fields.one("timestep_conditioning", False):
        raise CheckpointError(
            "timestep_conditioning is true, expected false",
            fix="use a VAE that decodes without a timestep; no SANA-WM release has this setting on",
        )
    patch_size_t = fields.one("patch_size_t", 1)
    if patch_size_t != 1:
        raise CheckpointError(f"patch_size_t is {patch_size_t}, expected 1")


def _refuse_noise(fields: _Fields, up: int) -> None:
    noise = fields.flags("decoder_inject_noise", count=up + 1, default=False)
    if len(noise) != up + 1:
        raise CheckpointError(f"decoder_inject_noise has {len(noise)} entries, expected {up + 1}")
    if any(noise):
        raise CheckpointError(
            f"decoder_inject_noise is {list(noise)}, expected all false",
            fix="such a decoder draws new noise at every call and cannot be streamed",
        )


def _check_block_types(fields: _Fields, down: int) -> None:
    types = fields.many("down_block_types", (DOWN_BLOCK,) * down, kind=str)
    if types != (DOWN_BLOCK,) * down:
        raise CheckpointError(
            f"down_block_types is {list(types)}, expected {down} times {DOWN_BLOCK}"
        )


def _upsample_type(fields: _Fields, up: int) -> tuple[str, ...]:
    """Return the kinds of upsampler, inner to outer, from either spelling."""
    everywhere = ("spatiotemporal",) * up
    spellings = []
    if fields.given("upsample_type"):
        spellings.append(fields.many("upsample_type", everywhere, kind=str))
    if fields.given("decoder_upsample_type"):
        spellings.append(fields.many("decoder_upsample_type", everywhere, kind=str)[::-1])
    if len(spellings) == 2 and spellings[0] != spellings[1]:
        raise CheckpointError(
            f"decoder_upsample_type is {list(spellings[1][::-1])}, expected "
            f"{list(spellings[0][::-1])}: upsample_type (inner to outer) read from outer to inner",
            fix="keep one of the two keys",
        )
    return spellings[0] if spellings else everywhere


def _check_ratios(fields: _Fields, config: VAEConfig) -> None:
    for key, ratio in (
        ("spatial_compression_ratio", config.ratios.space),
        ("temporal_compression_ratio", config.ratios.time),
    ):
        if fields.given(key) and fields.one(key, ratio) != ratio:
            raise CheckpointError(
                f"{key} is {fields.values[key]}, expected {ratio} (from patch_size "
                f"{config.patch_size} and downsample_type {list(config.downsample_type)})"
            )
