"""Lines that a run owes its user: what was changed from the request, and what looks wrong.

Library code receives a `Notes` object and writes to it; the command shows each line at once and
repeats it in the report (`changes`, `warnings`). This module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["info", "change", "warning"]


@dataclass
class Notes:
    """Collect lines by level and hand each to `listener` as it is written.

    A line is written once: repeating the same text at the same level is ignored.
    """

    listener: Callable[[Level, str], None] | None = None
    infos: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def info(self, text: str) -> None:
        """Record a fact that the user may want to know (which default was used, say)."""
        self._write("info", self.infos, text)

    def change(self, text: str) -> None:
        """Record that what the user asked for was changed: the line names the old and new value."""
        self._write("change", self.changes, text)

    def warn(self, text: str) -> None:
        """Record something that is allowed but probably not wanted."""
        self._write("warning", self.warnings, text)

    def _write(self, level: Level, lines: list[str], text: str) -> None:
        if text in lines:
            return
        lines.append(text)
        if self.listener is not None:
            self.listener(level, text)


def counted(number: int | str, what: str) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`, `unknown jobs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
