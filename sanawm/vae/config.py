"""Settings of the LTX-2 video VAE and the blocks they describe. Imports no torch.

Order of the per-block settings, as in `config.json`: encoder and decoder lists run from the outer
block (pixels) to the inner one (latents); `upsample_type` alone runs from inner to outer.
`down_blocks` and `up_blocks` give the blocks in the order in which they run, widths worked out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from sanawm.errors import CheckpointError
from sanawm.notes import Notes
from sanawm.shapes import VAERatios

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Stride(NamedTuple):
    """Factors by which a block shrinks or grows time, height and width: 1 or 2 each."""

    time: int
    height: int
    width: int

    @property
    def cells(self) -> int:
        """Positions that are folded into one: the product of the three factors."""
        return self.time * self.height * self.width


STRIDES = {
    "spatial": Stride(1, 2, 2),
    "temporal": Stride(2, 1, 1),
    "spatiotemporal": Stride(2, 2, 2),
}


class DownBlockPlan(NamedTuple):
    """An encoder block: `layers` resnets at `width` channels, then a downsampler to `out`."""

    width: int
    layers: int
    stride: Stride | None  # None: no downsampler, out == width
    out: int


class UpBlockPlan(NamedTuple):
    """A decoder block: entered with `width` channels, upsampled, `layers` resnets at `out`.

    When `inner` differs from `width`, a resnet in front of the upsampler changes the width.
    """

    width: int
    inner: int
    stride: Stride | None  # None: no upsampler, out == inner
    factor: int
    residual: bool
    layers: int
    out: int

    @property
    def growth(self) -> float:
        """Values made of one value that comes in."""
        return self.out * (self.stride.cells if self.stride else 1) / self.width


@dataclass(frozen=True)
class VAEConfig:
    """Settings of one VAE, named as in `config.json`; the defaults are the LTX-2.0 layout.

    Raises `CheckpointError` naming the key, what was found and what was expected when lists do
    not match in length, a kind is unknown, or the channels cannot work out.
    """

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 128
    block_out_channels: tuple[int, ...] = (256, 512, 1024, 2048)
    layers_per_block: tuple[int, ...] = (4, 6, 6, 2, 2)  # the last is the mid block
    spatio_temporal_scaling: tuple[bool, ...] = (True, True, True, True)
    downsample_type: tuple[str, ...] = (
        "spatial",
        "temporal",
        "spatiotemporal",
        "spatiotemporal",
    )
    decoder_block_out_channels: tuple[int, ...] = (256, 512, 1024)
    decoder_layers_per_block: tuple[int, ...] = (5, 5, 5, 5)  # the last is the mid block
    decoder_spatio_temporal_scaling: tuple[bool, ...] = (True, True, True)
    upsample_residual: tuple[bool, ...] = (True, True, True)
    upsample_factor: tuple[int, ...] = (2, 2, 2)
    upsample_type: tuple[str, ...] = ("spatiotemporal",) * 3  # inner to outer
    patch_size: int = 4
    resnet_norm_eps: float = 1e-6
    scaling_factor: float = 1.0
    encoder_causal: bool = True
    decoder_causal: bool = True
    encoder_spatial_padding_mode: PaddingMode = "zeros"
    decoder_spatial_padding_mode: PaddingMode = "reflect"

    @classmethod
    def released(cls) -> VAEConfig:
        """Return the layout of the SANA-WM streaming release: LTX-2.0 with a causal decoder."""
        return cls()

    @classmethod
    def from_json(cls, path: Path, *, notes: Notes | None = None) -> VAEConfig:
        """Read a `config.json`; unknown keys are named in a warning to `notes`.

        Raises `MissingFile` when it cannot be read, `CheckpointError` when it cannot be used.
        """
        from .config_json import read_config

        return read_config(path, notes=notes)

    def __post_init__(self) -> None:
        self._check_values()
        self._check_lengths()
        up = _ratios((b.stride for b in self.up_blocks), self.patch_size)
        if up != self.ratios:
            raise CheckpointError(
                f"upsample_type {list(self.upsample_type)} decodes to ratios (time, space) "
                f"{tuple(up)}, expected the encoder's {tuple(self.ratios)}"
            )

    @property
    def ratios(self) -> VAERatios:
        """Pixel frames per latent frame and pixels per latent, from the encoder's blocks."""
        return _ratios((b.stride for b in self.down_blocks), self.patch_size)

    @property
    def down_blocks(self) -> tuple[DownBlockPlan, ...]:
        """The encoder's blocks, outer to inner."""
        blocks = []
        width = self.latent_channels
        for i, out in enumerate(self.block_out_channels):
            stride = STRIDES[self.downsample_type[i]] if self.spatio_temporal_scaling[i] else None
            if stride is None and out != width:
                raise CheckpointError(
                    f"block_out_channels[{i}] is {out}, expected {width}: "
                    f"encoder block {i} has no downsampler and cannot change the width"
                )
            if stride is not None and (out % stride.cells or (width * stride.cells) % out):
                raise CheckpointError(
                    f"block_out_channels[{i}] is {out}, expected a multiple of {stride.cells} "
                    f"that divides {width * stride.cells} ({self.downsample_type[i]} downsampler)"
                )
            blocks.append(DownBlockPlan(width, self.layers_per_block[i], stride, out))
            width = out
        return tuple(blocks)

    @property
    def up_blocks(self) -> tuple[UpBlockPlan, ...]:
        """The decoder's blocks, inner to outer."""
        blocks: list[UpBlockPlan] = []
        width = self.decoder_block_out_channels[-1]
        count = len(self.decoder_block_out_channels)
        for i in range(count):
            block = self._up_block(width, number=i, at=count - 1 - i)
            blocks.append(block)
            width = block.out
        return tuple(blocks)

    def _up_block(self, width: int, *, number: int, at: int) -> UpBlockPlan:
        """Work out decoder block `number`; `at` is its place in the lists that run inwards."""
        inner = self.decoder_block_out_channels[at]
        factor = self.upsample_factor[at]
        residual = self.upsample_residual[at]
        scaled = self.decoder_spatio_temporal_scaling[at]
        stride = STRIDES[self.upsample_type[number]] if scaled else None
        if stride is None and factor != 1:
            raise CheckpointError(
                f"upsample_factor[{at}] is {factor}, expected 1: this block has no upsampler"
            )
        if inner % factor or width % factor:
            raise CheckpointError(
                f"upsample_factor[{at}] is {factor}, expected a divisor of the widths "
                f"{width} and {inner}"
            )
        if inner != width and factor != 1:
            raise CheckpointError(
                f"decoder_block_out_channels[{at}] is {inner}, expected {width}: "
                f"the width can change only where upsample_factor is 1 (found {factor})"
            )
        if stride is not None and residual and (inner % stride.cells or stride.cells % factor):
            raise CheckpointError(
                f"upsample_residual[{at}] is true, which needs decoder_block_out_channels[{at}] "
                f"({inner}) to be a multiple of {stride.cells} and upsample_factor[{at}] "
                f"({factor}) to divide {stride.cells}"
            )
        layers = self.decoder_layers_per_block[at]
        return UpBlockPlan(width, inner, stride, factor, residual, layers, inner // factor)

    def _check_values(self) -> None:
        at_least: tuple[tuple[str, Iterable[float], int], ...] = (
            ("in_channels", (self.in_channels,), 1),
            ("out_channels", (self.out_channels,), 1),
            ("latent_channels", (self.latent_channels,), 1),
            ("patch_size", (self.patch_size,), 1),
            ("block_out_channels", self.block_out_channels, 1),
            ("decoder_block_out_channels", self.decoder_block_out_channels, 1),
            ("upsample_factor", self.upsample_factor, 1),
            ("layers_per_block", self.layers_per_block, 0),
            ("decoder_layers_per_block", self.decoder_layers_per_block, 0),
        )
        for key, numbers, least in at_least:
            for n in numbers:
                if n < least:
                    raise CheckpointError(f"{key} holds {n}, expected {least} or more")
        for key in ("resnet_norm_eps", "scaling_factor"):
            if not 0 < getattr(self, key) < float("inf"):
                raise CheckpointError(f"{key} is {getattr(self, key)}, expected a number above 0")
        for key in ("encoder_spatial_padding_mode", "decoder_spatial_padding_mode"):
            _check_words(key, (getattr(self, key),), get_args(PaddingMode))
        _check_words("downsample_type", self.downsample_type, STRIDES)
        _check_words("upsample_type", self.upsample_type, STRIDES)

    def _check_lengths(self) -> None:
        down, up = len(self.block_out_channels), len(self.decoder_block_out_channels)
        if not down or not up:
            raise CheckpointError(
                f"block_out_channels has {down} entries and decoder_block_out_channels {up}, "
                "expected 1 or more each"
            )
        for key, count, of in (
            ("layers_per_block", down + 1, "block_out_channels and the mid block"),
            ("spatio_temporal_scaling", down, "block_out_channels"),
            ("downsample_type", down, "block_out_channels"),
            ("decoder_layers_per_block", up + 1, "decoder_block_out_channels and the mid block"),
            ("decoder_spatio_temporal_scaling", up, "decoder_block_out_channels"),
            ("upsample_residual", up, "decoder_block_out_channels"),
            ("upsample_factor", up, "decoder_block_out_channels"),
            ("upsample_type", up, "decoder_block_out_channels"),
        ):
            found = len(getattr(self, key))
            if found != count:
                raise CheckpointError(f"{key} has {found} entries, expected {count} (for {of})")


def _check_words(key: str, words: Iterable[str], known: Iterable[str]) -> None:
    for word in words:
        if word not in known:
            raise CheckpointError(f"{key} holds {word!r}, expected one of {', '.join(known)}")


def _ratios(strides: Iterable[Stride | None], patch_size: int) -> VAERatios:
    time, space = 1, patch_size
    for stride in strides:
        if stride is not None:
            time *= stride.time
            space *= stride.height
    return VAERatios(time, space)
