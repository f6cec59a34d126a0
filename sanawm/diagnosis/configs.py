"""Presets, config files, the origin of every setting, and whether the models are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sanawm.config import Resolved, config_path, preset_names, resolve
from sanawm.errors import SanawmError
from sanawm.locations import HF, local_path
from sanawm.settings import ModelSettings

from .check import Check


def check_presets() -> Check:
    """Read every packaged preset."""
    broken = []
    names = preset_names()
    for name in names:
        try:
            resolve([name])
        except SanawmError as e:
            broken.append(e.message)
    data = {"presets": {name: str(config_path(name)[0]) for name in names}, "broken": broken}
    if broken or not names:
        fix = "install sanawm again"
        return Check("presets", "FAIL", "; ".join(broken) or "no preset found", fix, data=data)
    return Check(
        "presets", "ok", f"{', '.join(names)} in {config_path(names[0])[0].parent}", data=data
    )


def check_settings(resolved: Resolved, configs: Sequence[str]) -> Check:
    """List the configs that are used and who set each value that is not a built-in default."""
    files = [str(config_path(name)[0]) for name in configs]
    table = resolved.table()
    told = {k: row for k, row in table.items() if row["origin"] != "built-in default"}
    lines = tuple(f"{key} = {row['value']}   ({row['origin']})" for key, row in told.items())
    found = f"{', '.join(configs)}: {len(told)} values set, {len(table) - len(told)} built in"
    return Check("settings", "ok", found, None, lines, {"configs": files, "settings": table})


def check_models(resolved: Resolved) -> Check:
    """Say of every model location whether it is on this disk."""
    rows: dict[str, dict[str, str | None]] = {}
    for name in ModelSettings.model_fields:
        location = resolved.get(f"model.{name}")
        if location:
            rows[name] = {"location": location, "state": _state(name, location)}
    count = {s: [n for n, r in rows.items() if r["state"] == s] for s in ("here", "hub", "missing")}
    data = {"models": rows}
    lines = tuple(
        f"{name}: {rows[name]['location']} {'is not there' if s == 'missing' else 'is not cached'}"
        for s in ("missing", "hub")
        for name in count[s]
    )
    if count["missing"]:
        found = f"{len(count['missing'])} of {len(rows)} locations do not exist"
        fix = "check the paths under [model], or pass --set model.NAME=FOLDER"
        return Check("models", "FAIL", found, fix, lines, data)
    if count["hub"]:
        found = f"{len(count['hub'])} of {len(rows)} are fetched from the hub by the first run"
        return Check("models", "note", found, None, lines, data)
    folder = {str(Path(str(r["location"])).parent) for r in rows.values()}
    where = f" in {folder.pop()}" if len(folder) == 1 else ""
    return Check("models", "ok", f"all {len(rows)} locations are on this disk{where}", data=data)


def _state(name: str, location: str) -> str:
    """Return `here`, `hub` (not in the cache yet) or `missing`. Never touches the network."""
    try:
        path = local_path(location, what=name, download=False)
    except SanawmError:
        return "missing"
    return "here" if path is not None else "hub" if location.startswith(HF) else "missing"
