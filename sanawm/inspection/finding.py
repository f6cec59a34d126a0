"""What was found out about a file, for people and for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from .statistics import Statistics

#: Tensors that are listed without `--keys`; files with more show their groups.
SHORT_LIST = 12


class TensorRow(NamedTuple):
    """One tensor of a file: its name, dtype, shape, size in bytes, and its values if asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    values: Statistics | None = None

    def line(self, width: int) -> str:
        """Return the row as a line whose names are padded to `width`."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        text = f"{self.name:<{width}}  {self.dtype:<9} {shape}"
        return text if self.values is None else f"{text:<{width + 32}}  {self.values.line()}"

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        row: dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.nbytes,
        }
        return row if self.values is None else row | self.values.as_dict()


@dataclass
class Finding:
    """A recognised file or folder.

    `kind` is one of KINDS; `title` says in a few words what it is; `lines` are further facts for
    people, `data` the facts for scripts, `tensors` the tensors that were asked for.
    """

    path: Path
    kind: str
    title: str
    lines: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    tensors: list[TensorRow] = field(default_factory=list)

    def text(self) -> list[str]:
        """Return the lines of the report."""
        width = max((len(t.name) for t in self.tensors), default=0)
        rows = [f"  {t.line(width)}" for t in self.tensors]
        return [f"{self.path}: {self.title}", *(f"  {line}" for line in self.lines), *rows]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        found = {"path": str(self.path), "kind": self.kind, "title": self.title, **self.data}
        return found | {"tensors": [t.as_dict() for t in self.tensors]}


KINDS = (
    "latents",
    "prompt-embeds",
    "noise",
    "weights",
    "checkpoint",
    "state",
    "trajectory",
    "intrinsics",
    "video",
    "image",
    "frames",
    "config",
    "report",
    "json",
    "text",
)


@dataclass(frozen=True)
class Look:
    """What the user wants to see: values of tensors (`stats`), and the tensors of `keys` (a GLOB).

    Without `keys` all tensors count; a long list of them is shortened unless values are asked for.
    """

    stats: bool = False
    keys: str | None = None

    def chosen(self, rows: Iterable[TensorRow]) -> list[TensorRow]:
        """Return the rows that are listed."""
        found = list(rows)
        if self.keys is not None:
            return [r for r in found if fnmatchcase(r.name, self.keys)]
        return found if self.stats or len(found) <= SHORT_LIST else []

    def rows(
        self, rows: Sequence[TensorRow], values: Callable[[str], Statistics]
    ) -> list[TensorRow]:
        """Return the rows that are listed, with the values that `values` reads when asked for."""
        chosen = self.chosen(rows)
        return [r._replace(values=values(r.name)) for r in chosen] if self.stats else chosen


def size_text(count: int) -> str:
    """Return a size in bytes with a unit that suits it."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"


def dims(shape: Iterable[int]) -> str:
    """Return a shape as `1x16x25x8x12`."""
    return "x".join(map(str, shape)) or "scalar"
