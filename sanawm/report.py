"""The report of a run: what was asked, what was done, what was measured. JSON."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import __version__
from .components import Component
from .measure import Timeline, compile_seconds
from .notes import Notes
from .ops.compiler import COMPILED
from .plan import Plan
from .refiner.weights import transformer_folder
from .settings import is_path
from .stage1.weights import weights_file
from .tensorfile import TensorFiles, fingerprint_file
from .vae.weights import WEIGHT_FILE

SCHEMA = 1
INPUT_FILES = (
    "latents",
    "video",
    "image",
    "prompt_file",
    "prompt_embeds",
    "camera",
    "intrinsics",
    "noise",
)


@dataclass
class Record:
    """What a run collects for its report while it works."""

    timeline: Timeline = field(default_factory=Timeline)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    weights: list[dict[str, object]] = field(default_factory=list)
    inputs: list[dict[str, object]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    schedule: str = "sequential"
    compiled_before: float = field(default_factory=compile_seconds)
    state_seconds: float = 0.0
    state_cost_seconds: float = 0.0
    resumed_after: int = 0
    recipe_sha256: str | None = None
    first_chunk_seconds: float | None = None
    frames_written: int = 0
    output: dict[str, object] | None = None
    error: dict[str, object] | None = None


def describe_inputs(plan: Plan) -> list[dict[str, object]]:
    """Return path, size and sha256 of every input file of the run."""
    given = plan.settings.settings.input
    rows: list[dict[str, object]] = []
    for name in INPUT_FILES:
        value = getattr(given, name)
        if not value or not Path(value).is_file():
            continue
        path = Path(value)
        size = path.stat().st_size
        rows.append({"input": name, "path": str(path), "bytes": size, "sha256": file_sha256(path)})
    return rows


def file_sha256(path: Path) -> str:
    """Return the hash of a file, kept for as long as the file does not change."""
    stat = path.stat()
    return _sha256(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, modified: int) -> str:
    """Return the hash of a file; it is read again when its size or time of change is another."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def describe_weights(components: Mapping[str, Component]) -> list[dict[str, object]]:
    """Return what identifies the weights of each component; headers are read, no tensors."""
    rows = []
    for name, component in components.items():
        if component.path is None:
            continue
        for folder in _weight_folders(name, component.path):
            if folder.suffix in (".pt", ".pth"):
                rows.append(fingerprint_file(folder, component=name))
                continue
            label = f"{name}/{folder.name}" if name == "refiner" else name
            rows.append(TensorFiles(folder).fingerprint(component=label))
    return rows


def _weight_folders(name: str, path: Path) -> list[Path]:
    if name == "refiner":
        connectors = path / "connectors"
        return [transformer_folder(path), *([connectors] if connectors.is_dir() else [])]
    if name == "vae":
        file = path / WEIGHT_FILE
        return [file if file.is_file() else path]
    return [weights_file(path)] if name == "stage1" else [path]


def versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    import av
    import numpy
    import torch

    found = {
        "sanawm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "av": av.__version__,
    }
    if "transformers" in sys.modules:
        found["transformers"] = sys.modules["transformers"].__version__
    return found


def build_report(
    plan: Plan, record: Record, notes: Notes, *, status: str, device: str, dtype: str,
    command: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the report of a run. No environment and no secrets are in it."""
    rows = record.blocks
    steady = [r["seconds"] for r in rows[1:]] or [r["seconds"] for r in rows]
    per_block = sorted(steady)[len(steady) // 2] if steady else None
    block_seconds = plan.window.block * plan.ratios.time / float(plan.output_fps)
    runtime = plan.settings.settings.runtime
    return {
        "schema": SCHEMA,
        "status": status,
        "tool": f"sanawm {__version__}",
        "versions": versions(),
        "device": {"name": device, "dtype": dtype, "machine": platform.machine()},
        "command": command,
        "settings": plan.settings.table(),
        "inputs": record.inputs,
        "weights": record.weights,
        "recipe_sha256": record.recipe_sha256,
        "seeds": {
            "seed": runtime.seed,
            "refiner": runtime.seed if runtime.refiner_seed is None else runtime.refiner_seed,
        },
        "prompt": plan.prompt.text,
        "prompt_sha256": plan.prompt.sha256,
        "frames": {
            "asked": plan.frames.asked,
            "decoded": plan.frames.decoded if plan.outputs.video else 0,
            "written": record.frames_written,
            "dropped": plan.frames.dropped if plan.outputs.video else 0,
            "first_pose": plan.frames.dropped,
        },
        "camera": _camera(plan),
        "schedule": record.schedule,
        "resumed_after_blocks": record.resumed_after,
        "state_seconds": record.state_seconds,
        "state_cost_seconds": record.state_cost_seconds,
        "blocks": rows,
        "first_chunk_seconds": record.first_chunk_seconds,
        "timeline": record.timeline.rows(),
        "memory": record.memory,
        "peak_memory_bytes": record.memory.get("peak"),
        "compile": COMPILED.report(enabled=runtime.compile),
        "compile_seconds": round(compile_seconds() - record.compiled_before, 3),
        "steady_seconds_per_block": per_block,
        "steady_realtime_factor": block_seconds / per_block if per_block else None,
        "total_seconds": round(record.timeline.now(), 4),
        "changes": list(notes.changes),
        "warnings": list(notes.warnings),
        "output": record.output,
        "error": record.error,
    }


def _camera(plan: Plan) -> dict[str, Any] | None:
    if plan.camera is None:
        return None
    from .camera.motion import summarise_motion

    summary = summarise_motion(plan.camera, fps=float(plan.fps)).as_dict()
    return {"source": plan.camera.source, "changes_pixels": plan.has_stage1, **summary}


def video_metadata(plan: Plan, record: Record) -> dict[str, str]:
    """Return the tags of the MP4: enough to run the same job again, from any folder.

    `sanawm` holds JSON with the resolved settings, and hashes of inputs and weights.
    """
    recipe = {
        "schema": SCHEMA,
        "version": __version__,
        "recipe_sha256": record.recipe_sha256,
        "settings": {k: _absolute(k, v["value"]) for k, v in plan.settings.table().items()},
        "prompt": plan.prompt.text,
        "blocks": _block_frames(plan),
        "inputs": record.inputs,
        "weights": [
            {"component": w["component"], "header_sha256": w["header_sha256"]}
            for w in record.weights
        ],
    }
    return {"sanawm": json.dumps(recipe), "comment": f"made by sanawm {__version__}"}


def latents_metadata(plan: Plan, record: Record) -> dict[str, str]:
    """Return the metadata of saved latents: rate, seed, and a hash of what decides their values."""
    runtime = plan.settings.settings.runtime
    seed = runtime.seed if runtime.refiner_seed is None else runtime.refiner_seed
    decisive = ("text.max_length", "refiner.", "stage1.", "camera.", "runtime.noise_device")
    recipe = {
        "settings": {
            k: plan.settings.get(k) for k in plan.settings.origins if k.startswith(decisive)
        },
        "seeds": [runtime.seed, seed],
        "fps": str(plan.fps),
        "shape": plan.shape,
        "prompt": plan.prompt.sha256,
        "inputs": [row["sha256"] for row in record.inputs if row["input"] != "prompt_file"],
        "weights": [row["header_sha256"] for row in record.weights if row["component"] != "vae"],
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    blocks = [plan.window.sink + plan.window.block, plan.window.block]
    return {
        "fps": str(plan.fps),
        "seed": str(seed),
        "blocks": json.dumps(blocks),  # latent frames of the first block and of the others
        "recipe_sha256": digest,
    }


def _block_frames(plan: Plan) -> list[int]:
    """Return the frames of the video's first block, and of each other block."""
    first = plan.ratios.frames_of(plan.window.sink + plan.window.block) - plan.frames.dropped
    return [first, plan.window.block * plan.ratios.time]


def _absolute(key: str, value: Any) -> Any:
    """Make a path of the settings independent of the current folder."""
    if not is_path(key) or not isinstance(value, str) or not value or "://" in value:
        return value
    return value if key == "input.intrinsics" and "," in value else str(Path(value).absolute())


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report through a temporary file beside it."""
    from .io.files import atomic_write

    with atomic_write(path) as temporary:
        text = json.dumps(report, indent=2, default=str) + "\n"
        temporary.write_text(text, encoding="utf-8")
