"""All checks in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sanawm.config import Resolved

from .check import Check
from .codecs import check_codecs
from .configs import check_models, check_presets, check_settings
from .machine import check_devices, check_disk, check_memory, check_versions
from .needs import needs_of
from .refiner import check_refiner


def examine(resolved: Resolved, *, configs: Sequence[str], cache: Path) -> Iterator[Check]:
    """Yield the checks of this machine for the settings of a run, as they are done.

    configs: presets and files that made the settings. cache: where prompt embeddings are kept.
    Only the hub's cache is looked at, never the network.
    """
    settings = resolved.settings
    yield check_versions()
    yield check_devices(settings.runtime.device)
    yield check_codecs(settings.video.encoder)
    needs = needs_of(resolved)
    yield check_memory(None if needs is None else needs.memory)
    yield check_disk("output", _output_folder(resolved))
    yield check_disk("cache", cache)
    fetched = 0 if needs is None else needs.download
    yield check_disk("hub cache", _hub_cache(), fetched=fetched)
    yield check_presets()
    yield check_settings(resolved, configs)
    yield check_models(resolved)
    try:
        yield check_refiner()
    except RuntimeError as e:  # what torch raises when an operation is not there
        yield Check("refiner", "FAIL", f"the tiny refiner does not run: {e}")


def _output_folder(resolved: Resolved) -> Path:
    """Return the folder that the settings write to; without one, the current folder."""
    output = resolved.settings.output
    if output.output_dir:
        return Path(output.output_dir)
    return Path(output.output).parent if output.output else Path.cwd()


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
