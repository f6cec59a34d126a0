"""Architecture of a stage-1 model, from a release YAML, a TOML of the same layout, or built in.

Imports no torch. The release YAML does not name widths and depth: its model name stands for them.
Source: the public release YAMLs of SANA-WM (streaming and bidirectional, 1600M, 720p).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.notes import Notes
from sanawm.shapes import LatentShape, VAERatios

#: Widths that a model name of the release stands for (the name's tail selects the row).
NAMED_SIZES: dict[str, dict[str, int]] = {
    "1600M_P1_D20": {
        "hidden_size": 2240,
        "depth": 20,
        "num_heads": 20,
        "linear_head_dim": 112,
        "caption_channels": 2304,
    }
}
#: Keys of the `model` section with the only values that this code computes.
FIXED: dict[str, tuple[object, ...]] = {
    "patch_size": ([1, 1, 1],),
    "qk_norm": (True,),
    "cross_norm": (True,),
    "k_conv_only": (True,),
    "t_kernel_size": (3,),
    "cam_attn_compress": (1,),
    "ffn_type": ("CachedGLUMBConvTemp", "GLUMBConvTemp"),
    "pos_embed_type": ("casual_wan_rope", "wan_rope"),
    "chunk_split_strategy": ("first_chunk_plus_one",),
}
#: Keys of the `model` section that only training, or a choice of kernel, uses.
NOT_ARCHITECTURE = {
    "model", "image_size", "aspect_ratio_type", "mixed_precision", "fp32_attention", "multi_scale",
    "attn_type", "mlp_acts", "use_pe", "class_dropout_prob", "init_cam_from_base",
}  # fmt: skip
ARCHITECTURE = {
    "hidden_size", "depth", "num_heads", "linear_head_dim", "in_channels", "caption_channels",
    "softmax_every_n", "mlp_ratio", "conv_kernel_size", "chunk_size",
    "use_chunk_plucker_post_attn", "chunk_plucker_channels", "chunk_plucker_post_attn_blocks",
}  # fmt: skip


@dataclass(frozen=True)
class Stage1Config:
    """What a stage-1 checkpoint's tensors and its training fix.

    `chunk_size` is None for a bidirectional checkpoint; `plucker_channels` is 0 for a model without
    a Plücker embedder. The last two fields choose arithmetic, not architecture: `ray_dtype` is that
    of the ray geometry (`model`: the dtype of the weights, as upstream on a GPU), and
    `camera_clamp` limits the camera transform's growth as diffusers 0.42.1 does (comparison only:
    the released streaming weights need it off).
    """

    latent_channels: int
    width: int
    depth: int
    head_size: int
    cross_heads: int
    text_width: int
    text_length: int = 300
    softmax_every: int = 4
    mlp_ratio: int = 3
    conv_taps: int = 4
    plucker_channels: int = 48
    plucker_blocks: int = 20
    chunk_size: int | None = 3
    time_ratio: int = 8
    space_ratio: int = 32
    flow_shift: float = 8.0
    ray_dtype: Literal["float32", "model"] = "float32"
    camera_clamp: bool = False

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            _check_positive(name, getattr(self, name))
        if self.chunk_size is not None:
            _check_positive("chunk_size", self.chunk_size)
        if self.plucker_channels < 0:
            raise InputError(f"stage 1: plucker_channels is {self.plucker_channels}, below 0")
        for part, name in ((self.head_size, "head size"), (self.cross_heads, "cross heads")):
            if self.width % part:
                raise InputError(f"stage 1: width {self.width} is no multiple of {name} {part}")
        if self.head_size % 8:
            raise InputError(
                f"stage 1: head size {self.head_size} is no multiple of 8; "
                "the camera branch groups half a head in fours"
            )

    @property
    def heads(self) -> int:
        """Heads of self-attention."""
        return self.width // self.head_size

    @property
    def streaming(self) -> bool:
        """Whether the checkpoint was trained to run in chunks."""
        return self.chunk_size is not None

    @property
    def vae(self) -> VAERatios:
        """Pixels per latent, in time and in space."""
        return VAERatios(self.time_ratio, self.space_ratio)

    def is_softmax(self, block: int) -> bool:
        """Whether block `block` (from 0) uses softmax attention instead of gated delta."""
        return (block + 1) % self.softmax_every == 0

    def latent_shape(self, *, frames: int, height: int, width: int) -> LatentShape:
        """Return the latents of a clip of `frames` pixel frames of `height` x `width` pixels.

        Raises `UsageError` when height or width is no multiple of the VAE's spatial ratio, or the
        frames are not `time_ratio * k + 1`.
        """
        for name, size in (("height", height), ("width", width)):
            if size < 1 or size % self.space_ratio:
                below = max(size // self.space_ratio, 1) * self.space_ratio
                raise UsageError(
                    f"{name} {size} is no multiple of {self.space_ratio}, the pixels per latent",
                    fix=f"use {below} or {below + self.space_ratio}",
                )
        latent_frames = self.vae.latent_frames_of(frames)
        rows, columns = height // self.space_ratio, width // self.space_ratio
        return LatentShape(1, self.latent_channels, latent_frames, rows, columns)

    @classmethod
    def released(cls) -> Stage1Config:
        """Return the released streaming model (1600M, 720p)."""
        sizes = NAMED_SIZES["1600M_P1_D20"]
        return cls(
            latent_channels=128,
            width=sizes["hidden_size"],
            depth=sizes["depth"],
            head_size=sizes["linear_head_dim"],
            cross_heads=sizes["num_heads"],
            text_width=sizes["caption_channels"],
        )

    @classmethod
    def from_file(cls, path: Path, *, notes: Notes | None = None) -> Stage1Config:
        """Read a release YAML (`.yaml`, `.yml`) or a TOML file with the same sections and keys.

        Raises `MissingFile`, or `InputError` for a file that is malformed or describes a model
        that this code does not compute.
        """
        try:
            return cls.from_mapping(read_sections(path), where=str(path), notes=notes)
        except InputError as e:
            if str(path) in e.message:
                raise
            raise InputError(f"{path}: {e.message}", fix=e.fix) from None

    @classmethod
    def from_mapping(
        cls, data: Mapping[str, Any], *, where: str, notes: Notes | None = None
    ) -> Stage1Config:
        """Build a config from the sections `model`, `vae`, `text_encoder`, `scheduler`.

        `where` names the source in messages. Keys of `model` that are not understood are named in
        a warning through `notes`.
        """
        model = _section(data, "model", where)
        vae = _section(data, "vae", where)
        text = _section(data, "text_encoder", where)
        scheduler = _section(data, "scheduler", where)
        _check_fixed(model, text, scheduler, where)
        known = ARCHITECTURE | NOT_ARCHITECTURE | set(FIXED)
        unknown = sorted(str(key) for key in model if key not in known)  # YAML's may be no text
        if unknown and notes is not None:
            notes.warn(f"{where}: not understood and ignored in [model]: {', '.join(unknown)}")
        sizes = _named_sizes(str(model.get("model", ""))) | dict(model)
        stride = _stride(vae, where)
        plucker = bool(model.get("use_chunk_plucker_post_attn", True))
        blocks = _integer(model, "chunk_plucker_post_attn_blocks", where, default=20)
        channels = _integer(model, "chunk_plucker_channels", where, default=6 * stride.time)
        source = sizes if "in_channels" in sizes else vae
        key = "in_channels" if "in_channels" in sizes else "vae_latent_dim"
        return cls(
            latent_channels=_integer(source, key, where),
            width=_integer(sizes, "hidden_size", where),
            depth=_integer(sizes, "depth", where),
            head_size=_integer(sizes, "linear_head_dim", where),
            cross_heads=_integer(sizes, "num_heads", where),
            text_width=_integer(sizes, "caption_channels", where),
            text_length=_integer(text, "model_max_length", where, default=300),
            softmax_every=_integer(model, "softmax_every_n", where, default=4),
            mlp_ratio=_integer(model, "mlp_ratio", where, default=3),
            conv_taps=_integer(model, "conv_kernel_size", where, default=4),
            plucker_channels=channels if plucker else 0,
            plucker_blocks=blocks if plucker else 0,
            chunk_size=_integer(model, "chunk_size", where) if "chunk_size" in model else None,
            time_ratio=stride.time,
            space_ratio=stride.space,
            flow_shift=_number(scheduler, "inference_flow_shift", where, default=8.0),
        )


_POSITIVE = (
    "latent_channels", "width", "depth", "head_size", "cross_heads", "text_width", "text_length",
    "softmax_every", "mlp_ratio", "conv_taps", "time_ratio", "space_ratio",
)  # fmt: skip


def read_sections(path: Path) -> dict[str, Any]:
    """Return the top-level mapping of a YAML or TOML file; raise `MissingFile` or `InputError`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except OSError as e:
        raise MissingFile(f"{path}: cannot be read ({e.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file in UTF-8") from None
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise InputError(f"{path}: not valid TOML ({e})") from None
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as e:
        raise InputError(f"{path}: not valid YAML ({str(e).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected sections such as `model:`, found no mapping")
    return data


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"stage 1: {name} is {value}; expected 1 or more")


def _section(data: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    section = data.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"{where}: {name} is {type(section).__name__}, expected a section")
    return section


def _check_fixed(
    model: Mapping[str, Any], text: Mapping[str, Any], scheduler: Mapping[str, Any], where: str
) -> None:
    """Refuse settings that would need other arithmetic than what is written here."""
    checks: list[tuple[Mapping[str, Any], str, tuple[object, ...]]] = [
        (model, key, allowed) for key, allowed in FIXED.items()
    ]
    checks += [
        (text, "y_norm", (True,)),
        (scheduler, "predict_flow_v", (True,)),
        (scheduler, "noise_schedule", ("linear_flow",)),
    ]
    for section, key, allowed in checks:
        value = section.get(key, allowed[0])
        if value not in allowed:
            expected = " or ".join(repr(a) for a in allowed)
            raise InputError(f"{where}: {key} is {value!r}; only {expected} is supported")


def _named_sizes(name: str) -> dict[str, Any]:
    for tail, sizes in NAMED_SIZES.items():
        if name.endswith(tail):
            return dict(sizes)
    return {}


def _stride(vae: Mapping[str, Any], where: str) -> VAERatios:
    """Return the VAE's ratios from `vae_stride: [time, space, space]`."""
    stride = vae.get("vae_stride", [8, 32, 32])
    whole = isinstance(stride, list) and len(stride) == 3 and all(type(n) is int for n in stride)
    if not whole or stride[1] != stride[2]:
        raise InputError(f"{where}: vae_stride is {stride!r}; expected [time, space, space]")
    return VAERatios(stride[0], stride[1])


def _integer(
    section: Mapping[str, Any], key: str, where: str, *, default: int | None = None
) -> int:
    value = section.get(key, default)
    if value is None:
        raise InputError(
            f"{where}: {key} is missing and the model name does not stand for it",
            fix=f"add {key}, or use one of the released names (…{', …'.join(NAMED_SIZES)})",
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise InputError(f"{where}: {key} is {value!r}, expected an integer")
    return value


def _number(section: Mapping[str, Any], key: str, where: str, *, default: float) -> float:
    value = section.get(key, default)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= sys.float_info.max:
        raise InputError(f"{where}: {key} is {value!r}, expected a number above 0")
    return float(value)
