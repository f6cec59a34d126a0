"""Imports run one way, and the command line stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS: dict[str, set[str]] = {
    # What a part may import besides itself. Parts that nothing here names are free to use these.
    "errors": set(),
    "notes": set(),
    "events": set(),
    "shapes": {"errors"},
    "schedules": {"errors"},
    "settings": {"schedules"},
    "paths": {"errors"},
    "origins": set(),
    "expected": {"errors", "origins", "settings"},
    "config": {"errors", "expected", "origins", "paths", "settings", "shapes"},
    "tensorfile": {"errors"},
    "checkpoint": {"errors", "tensorfile"},
    "ops": {"errors", "notes"},
    "refiner": {"errors", "notes", "shapes", "schedules", "tensorfile", "checkpoint", "ops"},
    "vae": {"errors", "notes", "shapes", "tensorfile", "checkpoint", "ops"},
    "text": {"errors", "notes", "shapes", "tensorfile", "checkpoint", "ops"},
    "stage1": {
        "errors",
        "notes",
        "shapes",
        "schedules",
        "tensorfile",
        "checkpoint",
        "ops",
        "camera",
    },
    "camera": {"errors", "notes", "shapes"},
    "io": {"errors", "notes", "paths", "shapes", "tensorfile", "checkpoint"},
}


def imported_parts(file: Path) -> set[str]:
    """Return the top-level parts of sanawm that a file imports."""
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(p for p in (base, node.module or "") if p)
            names = [module] if module != "sanawm" else [f"sanawm.{a.name}" for a in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "sanawm" and len(parts) > 1:
                found.add(parts[1])
    return found


def part_of(file: Path) -> str:
    """Return the part of sanawm that a file belongs to."""
    parts = file.relative_to(ROOT / "sanawm").parts
    return parts[0].removesuffix(".py")


LIBRARY = sorted((ROOT / "sanawm").rglob("*.py"))


@pytest.mark.parametrize("file", LIBRARY, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way(file: Path) -> None:
    part, imported = part_of(file), imported_parts(file)
    if part != "__main__":
        assert "cli" not in imported
    if part in LAYERS:
        assert imported <= LAYERS[part] | {part}


def test_no_distribution_installs_a_top_level_cli() -> None:
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"sanawm.cli" = "cli"' in config
    assert '\n    "cli"' not in config


LIGHT = (
    ["--help"],
    ["--version"],
    ["refine", "--help"],
    ["refine", "--nosuch"],
    ["refine", "--num-frames", "many"],
    ["refine", "--set", "video.crff=3"],
    ["refine", "-c", "tinny"],
    ["refine", "--prompt", "a", "--prompt-file", "b", "-o", "x.mp4"],
    ["refine", "--sigmas", "0.5,0.7,0", "-o", "x.mp4"],
)


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_help_and_usage_errors_import_no_heavy_library(
    arguments: list[str], tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from sanawm.cli.app import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit as e:\n"
        "    names = {'torch', 'transformers', 'av', 'diffusers', 'matplotlib'}\n"
        "    heavy = names & set(sys.modules)\n"
        "    print('code', e.code, 'heavy', sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    expected = 0 if arguments[-1] in ("--help", "--version") else 2
    assert f"code {expected} heavy []" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sanawm, sys; print(sorted({'torch', 'numpy', 'av'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
