"""What a run tells its listener while it works. Imports nothing heavy.

The list of event names is closed: scripts rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

EVENT_NAMES = (
    "run_start",
    "job_start",
    "job_done",
    "config",
    "load_start",
    "load_done",
    "encode_done",
    "chunk_done",
    "block_done",
    "chunk_written",
    "state_saved",
    "run_done",
    "warning",
    "error",
)


@dataclass(frozen=True)
class Event:
    """One event: its `name` (one of EVENT_NAMES), `level` and JSON-able `data`."""

    name: str
    level: str = "info"
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
