"""Where the components of a run lie, and their architectures, before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .config import Resolved
from .errors import CheckpointError, MachineError, UsageError
from .locations import HF, local_path
from .notes import Notes
from .refiner.config import RefinerConfig
from .shapes import VAERatios, Window
from .stage1.config import Stage1Config
from .stage1.plan import check_chunk_size
from .tensorfile import read_json
from .vae.config import VAEConfig
from .vae.config_json import CLASS_NAMES

if TYPE_CHECKING:
    import torch

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Component:
    """One component: its location as configured, and its path here (None: not fetched yet)."""

    name: str
    location: str
    path: Path | None

    @property
    def local(self) -> Path:
        """Path on this disk; the component must have been found with `download`."""
        assert self.path is not None, self.name
        return self.path


def find_component(settings: Resolved, name: str, *, why: str, download: bool) -> Component:
    """Return the component that `model.<name>` names, fetching it with `download`.

    Raises `UsageError` when it is not configured (`why` says what needs it) and `MissingFile`
    when it is not there.
    """
    key = f"model.{name}"
    location = settings.get(key)
    if not location:
        raise UsageError(
            f"no location for the {name}: {why} needs it",
            fix=f"choose a preset with -c, or --set model.{name}=FOLDER",
        )
    path = local_path(
        location, what=name, download=download, key=key, set_by=str(settings.origin(key))
    )
    return Component(name, location, path)


def refiner_config(component: Component) -> RefinerConfig:
    """Return the refiner's architecture; the released one when it is not on this disk."""
    if component.path is None:
        return RefinerConfig.released()
    from .refiner.weights import transformer_folder

    return RefinerConfig.from_json(transformer_folder(component.path) / "config.json")


def vae_config(component: Component, *, notes: Notes | None = None) -> VAEConfig:
    """Return the VAE's architecture; the released one when it is not on this disk.

    Settings that the file lacks take the released model's values: without the name of its class,
    it may be any other file, which is worth a warning.
    """
    if component.path is None:
        return VAEConfig.released()
    path = component.path / "config.json"
    config = VAEConfig.from_json(path, notes=notes)
    if notes is not None and "_class_name" not in read_json(path):
        notes.warn(
            f"{path}: no _class_name in it; it is read as {CLASS_NAMES[0]}, and every setting "
            "that is not there takes the released model's value"
        )
    return config


def check_pair(refiner: RefinerConfig, vae: VAEConfig, *, where: str) -> None:
    """Raise `CheckpointError` when refiner and VAE do not share a latent space."""
    time, height, width = refiner.vae_scale_factors
    if VAERatios(time, height) != vae.ratios or height != width:
        raise CheckpointError(
            f"{where}: the refiner was made for a VAE with ratios {time} (time) and "
            f"{height}x{width} (space), this VAE has {vae.ratios.time} and {vae.ratios.space}",
            fix="use refiner and VAE of one release",
        )
    if refiner.in_channels != vae.latent_channels:
        raise CheckpointError(
            f"{where}: the refiner takes {refiner.in_channels} latent channels, the VAE has "
            f"{vae.latent_channels}",
            fix="use refiner and VAE of one release",
        )


def stage1_config(settings: Resolved, *, download: bool, notes: Notes) -> Stage1Config:
    """Return stage 1's architecture: that of `model.stage1_config`, else the released one."""
    location = settings.settings.model.stage1_config
    if not location:
        return Stage1Config.released()
    key = "model.stage1_config"
    path = local_path(
        location, what="stage1_config", download=download, key=key, set_by=str(settings.origin(key))
    )
    return Stage1Config.released() if path is None else Stage1Config.from_file(path, notes=notes)


def check_stage1(
    config: Stage1Config,
    refiner: RefinerConfig,
    ratios: VAERatios,
    chunk: int,
    window: Window,
) -> None:
    """Raise when stage 1 cannot feed this refiner: other latents, or chunks of another size."""
    check_chunk_size(chunk, config)
    if config.latent_channels != refiner.in_channels or config.vae != ratios:
        raise CheckpointError(
            f"stage 1 makes {config.latent_channels} latent channels with ratios "
            f"{config.vae.time} and {config.vae.space}, the refiner takes {refiner.in_channels} "
            f"with {ratios.time} and {ratios.space}",
            fix="use stage 1 and refiner of one release, or set model.stage1_config",
        )
    if window.block != chunk:
        raise UsageError(
            f"refiner blocks of {window.block} latent frames differ from stage 1's chunks of "
            f"{chunk}",
            fix=f"use --refiner-block-size {chunk}",
        )


def is_remote(component: Component) -> bool:
    """Tell whether a component would have to be fetched."""
    return component.path is None and component.location.startswith(HF)


def choose_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises `UsageError` for another name, `MachineError` when there is no such device here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UsageError(
            f"device {name!r} is unknown; expected auto, cpu, cuda or cuda:N",
            fix="use --device auto",
        )
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise MachineError(
                f"device {name}: this machine has {count} CUDA devices"
                + ("" if torch.version.cuda else " (this torch is a CPU build)"),
                fix="use --device cpu, or install a CUDA build of torch",
            )
    return torch.device(name)


def use_threads(count: int | None) -> None:
    """Set the CPU threads of torch's operations; None leaves torch's own choice."""
    if count is not None:
        import torch

        torch.set_num_threads(count)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the model dtype: `auto` is float32 on a CPU and bfloat16 on CUDA."""
    import torch

    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    return getattr(torch, PRECISIONS[precision])
