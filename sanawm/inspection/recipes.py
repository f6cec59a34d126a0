"""What a run was told, read back from its files: settings that differ from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Longest value that is shown to people.
_LONGEST = 72


def changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings whose values are not the built-in defaults (those of the release)."""
    from sanawm.config import resolve

    defaults = {key: row["value"] for key, row in resolve().table().items()}
    return {key: v for key, v in settings.items() if key not in defaults or v != defaults[key]}


def setting_lines(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as lines; `settings` differ from the defaults."""
    if not settings:
        return ["settings: the defaults"]
    shown = [f"  {key} = {_short(value)}" for key, value in settings.items()]
    return ["settings that differ from the defaults:", *shown]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def recipe_lines(recipe: Mapping[str, Any], changed: Mapping[str, Any]) -> list[str]:
    """Return what the metadata of a video made by sanawm says, for people."""
    lines = []
    if recipe.get("prompt"):
        lines.append(f"prompt   {recipe['prompt']}")
    for row in _rows(recipe, "inputs"):
        digest = str(row.get("sha256", "?"))[:16]
        name = Path(str(row.get("path", "?"))).name
        lines.append(f"input    {row.get('input', '?')} {name}, sha256 {digest}…")
    for row in _rows(recipe, "weights"):
        digest = str(row.get("header_sha256", "?"))[:16]
        lines.append(f"weights  {row.get('component', '?')}, hash {digest}…")
    return lines + setting_lines(changed)


def _rows(recipe: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = recipe.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
