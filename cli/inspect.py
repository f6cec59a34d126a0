"""`sanawm inspect`: what is this file?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sanawm.errors import SanawmError, UsageError
from sanawm.paths import check_path

from .console import Console


def run(values: dict[str, Any], console: Console) -> None:
    """Describe every file, or convert one; raise the first error once all were looked at."""
    paths = [Path(name) for name in values["files"]]
    if values.get("convert") is not None:
        _convert(paths, values, console)
        return
    if values.get("overwrite"):
        raise UsageError("--overwrite belongs to --convert", fix="leave it out")
    from sanawm.inspection import inspect_path

    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    errors: list[SanawmError] = []
    for path in paths:
        try:
            check_path(str(path), where="inspect")
            found = inspect_path(
                path, stats=bool(values.get("stats")), keys=values.get("keys"), notes=console.notes
            )
        except SanawmError as error:
            errors.append(error)
            rows.append(_failure(path, error))
            continue
        lines += found.text()
        rows.append(found.as_dict())
    if len(paths) == 1 and errors:
        raise errors[0]
    data = {
        "schema": 1,
        "status": "failed" if errors else "done",
        "files": rows,
        "warnings": console.notes.warnings,
    }
    console.result(json.dumps(data, indent=2) if values.get("json") else "\n".join(lines), data)
    for later in errors[1:]:
        console.error(later)
    if errors:
        raise errors[0]


def _failure(path: Path, error: SanawmError) -> dict[str, Any]:
    found = {"message": error.message, "exit_code": error.exit_code, "fix": error.fix}
    return {"path": str(path), "kind": None, "error": found}


def _convert(paths: list[Path], values: dict[str, Any], console: Console) -> None:
    """Write a `.pt` as safetensors and print where it is."""
    from sanawm.inspection.conversion import convert_pt

    for flag in ("stats", "keys"):
        if values.get(flag) is not None:
            raise UsageError(f"--{flag} and --convert exclude each other", fix="give one of them")
    if len(paths) != 1:
        raise UsageError(
            f"--convert takes one file, {len(paths)} were given", fix="convert one by one"
        )
    made = convert_pt(paths[0], Path(values["convert"]), overwrite=bool(values.get("overwrite")))
    console.notes.info(f"{made.tensors} tensors, {made.bytes / 1e9:.3g} GB, without the pickle")
    data = {
        "schema": 1,
        "status": "done",
        "output": str(made.path),
        "tensors": made.tensors,
        "bytes": made.bytes,
    }
    as_json = json.dumps(data, indent=2) if values.get("json") else str(made.path)
    console.result(as_json, data)
