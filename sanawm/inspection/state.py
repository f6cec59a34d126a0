"""A run state: how far the run came, and what it was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sanawm.io.run_state import load_state, read_recipe
from sanawm.tensorfile import TensorFiles

from .finding import Finding, Look, dims, size_text
from .recipes import changed_settings, setting_lines
from .statistics import pieces_of, statistics_of
from .tensors import file_rows


def look_at_state(path: Path, look: Look) -> Finding:
    """Describe a run state by its header; with `look.stats` its checksums are verified too.

    Raises `InputError` where `--resume` would.
    """
    values = read_recipe(path)
    if look.stats:
        load_state(path)  # compares every tensor with its checksum
    recipe: dict[str, Any] = dict(values.get("recipe", {}))
    finished = int(values.get("block", -1)) + 1
    shape = recipe.get("latent shape")
    files = TensorFiles(path)
    rows = file_rows(files)
    changed = changed_settings({k: v for k, v in recipe.items() if "." in k})
    lines = [f"{len(rows)} tensors, {size_text(path.stat().st_size)}"]
    lines += [f"latents {dims(shape)}"] if isinstance(shape, list) else []
    lines += [f"{key} {recipe[key]}" for key in ("sanawm", "torch", "device") if key in recipe]
    lines += setting_lines(changed)
    lines.append("continue it with the command of its run and --resume")
    data = {
        "blocks_done": finished,
        "blocks": _blocks(recipe),
        "bytes": path.stat().st_size,
        "settings": changed,
        "recipe": recipe,
    }
    total = "" if data["blocks"] is None else f" of {data['blocks']}"
    found = Finding(path, "state", f"run state after block {finished}{total}", lines, data)
    found.tensors = look.rows(rows, lambda name: statistics_of(pieces_of(files.read(name))))
    files.close()
    return found


def _blocks(recipe: dict[str, Any]) -> int | None:
    """Return how many blocks the run has, if its recipe tells."""
    shape, block = recipe.get("latent shape"), recipe.get("refiner.block_size")
    sink = recipe.get("refiner.sink_size")
    if not isinstance(shape, list) or not isinstance(block, int) or not isinstance(sink, int):
        return None
    return -((sink - int(shape[2])) // block)
