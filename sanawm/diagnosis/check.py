"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

#: `ok`; `note`: works, but worth knowing; `FAIL`: a run would fail, or could not be trusted.
Status = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True)
class Check:
    """One check: its name, what was found, and what to do about it when it is not as it should be.

    `lines` are further facts for people, `data` the facts for scripts.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None
    lines: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def text(self) -> list[str]:
        """Return the lines of the report."""
        mark = {"ok": "ok  ", "note": "note", "FAIL": "FAIL"}[self.status]
        fix = [f"fix: {self.fix}"] if self.fix else []
        head = f"{mark}  {self.name:<9}  {self.found}"
        return [head, *(f"{'':<17}{line}" for line in (*fix, *self.lines))]

    def as_dict(self) -> dict[str, Any]:
        """Return the check for JSON."""
        head = {"name": self.name, "status": self.status, "found": self.found, "fix": self.fix}
        return {**head, **self.data}
