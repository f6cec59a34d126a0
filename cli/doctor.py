"""`sanawm doctor`: is this machine fit for a run?"""

from __future__ import annotations

import json
from typing import Any

from sanawm.config import DEFAULT_PRESET
from sanawm.errors import SanawmError

from .console import Console
from .session import cache_folder, settings_of


def run(values: dict[str, Any], console: Console) -> None:
    """Print the checks; raise `SanawmError` (exit 1) when one of them fails."""
    settings = settings_of(values, (), console)
    from sanawm.components import use_threads
    from sanawm.diagnosis import examine

    use_threads(settings.settings.runtime.threads)
    configs = values.get("config") or [DEFAULT_PRESET]
    checks = list(examine(settings, configs=configs, cache=cache_folder()))
    failed = [c.name for c in checks if c.status == "FAIL"]
    data = {
        "schema": 1,
        "status": "failed" if failed else "passed",
        "checks": [c.as_dict() for c in checks],
    }
    lines = [line for check in checks for line in check.text()]
    console.result(json.dumps(data, indent=2) if values.get("json") else "\n".join(lines), data)
    if failed:
        raise SanawmError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
