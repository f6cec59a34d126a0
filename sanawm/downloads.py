"""What a run fetches from the hub: about how much, and whether the disk of the cache has room."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .components import Component, is_remote
from .io.files import free_space
from .notes import Notes

#: Bytes of the released components, from the hub's listings; others are taken to be as large.
RELEASED = {
    "refiner": 40_600_000_000,
    "vae": 5_000_000_000,
    "text_encoder": 24_400_000_000,
    "stage1": 32_000_000_000,
    "stage1_text_encoder": 5_300_000_000,
}


def download_bytes(component: Component) -> int:
    """Return about how many bytes are fetched for a component; 0 when it is on this disk."""
    return RELEASED.get(component.name, 0) if is_remote(component) else 0


def cache_of_the_hub() -> Path:
    """Return where huggingface_hub keeps what it fetches (`HF_HOME` moves it)."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def check_download(components: Iterable[Component], *, notes: Notes) -> None:
    """Warn when the cache's disk has less room than what has to be fetched into it."""
    wanted = sum(download_bytes(component) for component in components)
    if not wanted:
        return
    folder = cache_of_the_hub()
    free = free_space(folder)
    if free < wanted:
        notes.warn(
            f"{folder}: about {wanted / 1e9:.0f} GB will be fetched into it, "
            f"{free / 1e9:.1f} GB are free; HF_HOME=FOLDER chooses another disk"
        )
