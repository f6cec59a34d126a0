"""The transformers package: imported late, and named with its version when it fails.

Everything but the text encoders works without it, so no module of sanawm imports it at its top.
"""

from __future__ import annotations

from importlib import metadata
from types import ModuleType

from sanawm.errors import MachineError

#: The version that the tests of this release ran with.
TESTED_TRANSFORMERS = "5.24.0"
_FIX = (
    f"pip install transformers=={TESTED_TRANSFORMERS}, or pass --prompt-embeds, which needs no "
    "text encoder"
)


def import_transformers() -> ModuleType:
    """Return the package `transformers`; raise `MachineError` when it cannot be imported."""
    try:
        import transformers
    except ImportError as e:
        raise MachineError(
            f"the text encoder needs transformers, which cannot be imported ({e}); "
            f"found {transformers_version()}, tested with {TESTED_TRANSFORMERS}",
            fix=_FIX,
        ) from None
    return transformers


def transformers_version() -> str:
    """Return the installed version of transformers, without importing it."""
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return "none"


def cannot(task: str, error: BaseException) -> MachineError:
    """Return the error that says transformers failed at `task`, with found and tested versions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
    return MachineError(
        f"transformers {transformers_version()} cannot {task} ({reason}); "
        f"tested with {TESTED_TRANSFORMERS}",
        fix=_FIX,
    )
