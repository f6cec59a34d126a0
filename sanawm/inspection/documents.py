"""Files of text: trajectories, configs, reports, JSON of checkpoints, prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sanawm.errors import InputError, MissingFile
from sanawm.locations import HF
from sanawm.notes import Notes
from sanawm.tensorfile import short

from .finding import Finding, Look
from .recipes import changed_settings, setting_lines

#: Largest JSON file that is read, bytes; a larger one is no report and no trajectory.
MAX_JSON = 256 << 20


def look_at_trajectory(path: Path, notes: Notes) -> Finding:
    """Describe a camera path as `--camera` reads it. Raises `MissingFile` or `InputError`."""
    from sanawm.camera import load_trajectory, summarise_motion

    trajectory = load_trajectory(path, notes=notes)
    summary = summarise_motion(trajectory)
    title = f"camera path, {len(trajectory)} poses ({trajectory.format})"
    data = {"format": trajectory.format, "source": trajectory.source, **summary.as_dict()}
    return Finding(path, "trajectory", title, summary.lines()[1:], data)


def look_at_config(path: Path) -> Finding:
    """Describe a TOML config: what it sets, and whether its models are there.

    Raises `MissingFile` or `InputError` where `refine` would.
    """
    from sanawm.config import read_toml, resolve

    base = read_toml(path).get("extends")
    resolved = resolve([str(path)])
    table = {k: row for k, row in resolved.table().items() if row["origin"] != "built-in default"}
    own = {k: row["value"] for k, row in table.items() if row["origin"] == str(path)}
    lines = [f"{key} = {value}" for key, value in own.items()]
    lines += [f"(from {base}) {k} = {row['value']}" for k, row in table.items() if k not in own]
    missing = [
        f"{key} {value}"
        for key, value in ((k, row["value"]) for k, row in table.items())
        if key.startswith("model.") and not str(value).startswith(HF) and not _exists(value)
    ]
    lines += [f"not there: {place}" for place in missing]
    title = f"config that sets {len(own)} keys" + (f" and extends {base}" if base else "")
    data = {"extends": base, "settings": own, "resolved": table, "missing": missing}
    return Finding(path, "config", title, lines, data)


def _exists(place: object) -> bool:
    return Path(str(place)).expanduser().exists()


def look_at_json(path: Path, look: Look, notes: Notes) -> Finding:
    """Describe a JSON file: a run report, settings or index of a checkpoint, or a trajectory."""
    data = _read_json(path)
    if isinstance(data, dict) and str(data.get("tool", "")).startswith("sanawm"):
        return _report(path, data)
    if isinstance(data, dict) and isinstance(data.get("weight_map"), dict):
        shards = sorted(set(map(str, data["weight_map"].values())))
        title = f"index of {len(data['weight_map'])} tensors in {len(shards)} shards"
        return Finding(path, "json", title, shards, {"shards": shards})
    kind = None
    if isinstance(data, dict):
        kind = data.get("_class_name") or data.get("model_type")
    if kind:
        return Finding(path, "json", f"settings of a model: {kind}", [], {"model": kind})
    return look_at_trajectory(path, notes)


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_JSON:
            raise InputError(f"{path}: more than {MAX_JSON} bytes of JSON")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except OSError as e:
        raise MissingFile(f"{path}: cannot be read ({e.strerror})") from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: not valid JSON ({short(e)})", fix="fetch it again") from None


def _report(path: Path, report: dict[str, Any]) -> Finding:
    """Describe the report of a run."""
    frames, output, error = (_table(report, key) for key in ("frames", "output", "error"))
    lines = []
    if output:
        lines.append(f"output   {output.get('path')}, {frames.get('written')} frames written")
    if error:
        lines += [f"error    {line}" for line in str(error.get("message")).splitlines()]
    blocks = _rows(report, "blocks")
    pace = report.get("steady_seconds_per_block")
    each = f", {pace:.3g} s each" if isinstance(pace, (int, float)) else ""
    lines.append(f"blocks   {len(blocks)}{each}; {report.get('total_seconds')} s in all")
    if isinstance(report.get("peak_memory_bytes"), int):
        lines.append(f"memory   {report['peak_memory_bytes'] / 1e9:.2f} GB at most")
    lines += [f"changed  {text}" for text in _rows(report, "changes")]
    lines += [f"warned   {text}" for text in _rows(report, "warnings")]
    rows = _table(report, "settings").items()
    told = changed_settings({k: row.get("value") for k, row in rows if isinstance(row, dict)})
    keys = ("schema", "status", "tool", "versions", "frames", "total_seconds", "error", "output")
    data = {key: report.get(key) for key in keys} | {"settings": told}
    title = f"report of a run ({report.get('status')}, {report.get('tool')})"
    return Finding(path, "report", title, lines + setting_lines(told), data)


def _table(report: dict[str, Any], key: str) -> dict[str, Any]:
    value = report.get(key)
    return value if isinstance(value, dict) else {}


def _rows(report: dict[str, Any], key: str) -> list[Any]:
    value = report.get(key)
    return value if isinstance(value, list) else []


def look_at_yaml(path: Path, notes: Notes) -> Finding:
    """Describe a release YAML, stage 1's architecture. Raises `InputError` or `MissingFile`."""
    from sanawm.stage1.config import Stage1Config

    config = Stage1Config.from_file(path, notes=notes)
    kind = "streaming" if config.streaming else "bidirectional"
    title = f"release settings of a {kind} stage 1"
    line = (
        f"{config.depth} blocks x {config.width}, {config.latent_channels} latent channels, "
        f"VAE ratios {config.vae.time} and {config.vae.space}"
    )
    data = {"depth": config.depth, "width": config.width, "streaming": config.streaming}
    return Finding(path, "config", title, [line], data)


def look_at_text(path: Path, notes: Notes) -> Finding:
    """Describe a text file: a camera path when its lines are numbers, else a prompt."""
    from sanawm.text.prompt import prompt_sha256, read_prompt_file, read_text_file

    lines = read_text_file(path, what="text").splitlines()
    if any(_is_row(line) for line in lines[:64]) or path.name == "images.txt":
        return look_at_trajectory(path, notes)
    prompt = read_prompt_file(path)
    title = f"text of {len(prompt.split())} words, a prompt"
    digest = prompt_sha256(prompt)
    shown = prompt if len(prompt) <= 200 else f"{prompt[:199]}…"
    data = {"prompt_sha256": digest, "words": len(prompt.split())}
    return Finding(path, "text", title, [shown, f"sha256 {digest}"], data)


def _is_row(line: str) -> bool:
    """Tell whether a line holds several columns, most of them numbers."""
    columns = line.replace(",", " ").split()
    numbers = sum(c.lstrip("+-").replace(".", "", 1).split("e")[0].isdigit() for c in columns)
    return len(columns) >= 4 and numbers > len(columns) / 2
