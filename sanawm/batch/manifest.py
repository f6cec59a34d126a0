"""Read a manifest: JSON Lines, CSV or TOML, one job a line. Imports no torch.

A line that cannot be read is handed on as a bad line; only a manifest that is no such file at all
is refused. JSON Lines and CSV are read line by line, so they may be of any length.

    {"defaults": {"num-frames": 49}}                      JSON Lines: defaults first, if any
    {"id": "tower", "prompt": "a red tower"}

    id,prompt,seed                                        CSV: an empty cell is not given
    tower,a red tower,7

    [defaults]                                            TOML
    num-frames = 49
    [[job]]
    id = "tower"
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from sanawm.errors import MissingFile, UsageError

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".toml")
#: Longest cell of a CSV file, in characters.
MAX_CELL = 1 << 20
_JSON_FIX = 'write one object a line, like {"id": "clip_01", "prompt": "a red tower"}'


@dataclass(frozen=True)
class Line:
    """One job as written: `number` is its line in the file (TOML: its place among the jobs).

    `error` says why the line cannot be read at all; `values` are then empty.
    """

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Manifest:
    """A manifest that was opened: the values that hold for all its jobs, and its lines."""

    path: Path
    defaults: Mapping[str, Any]
    columns: tuple[str, ...]
    kind: str

    def lines(self) -> Iterator[Line]:
        """Read the jobs, in order."""
        if self.kind == "toml":
            return _toml_lines(self.path)
        return _csv_lines(self.path, self.columns) if self.kind == "csv" else _json_lines(self.path)


def open_manifest(path: Path) -> Manifest:
    """Open a manifest and read its defaults.

    Raises `MissingFile` when it is not there or cannot be read and `UsageError` when it is of
    another kind.
    """
    if path.is_dir():
        raise MissingFile(
            f"manifest {path}: it is a folder, expected a file", fix="name the manifest in it"
        )
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        ends = f"the name ends in {suffix!r}" if suffix else "the name has no ending"
        raise UsageError(
            f"manifest {path}: {ends}, expected {', '.join(SUFFIXES)}",
            fix="rename it after what it holds: JSON Lines, CSV or TOML",
        )
    try:
        with path.open("rb") as f:
            start = f.read(4)
    except FileNotFoundError:
        raise MissingFile(
            f"manifest {path}: no such file",
            fix="correct the path; it is relative to the current folder",
        ) from None
    except OSError as e:
        raise MissingFile(
            f"manifest {path}: cannot be read ({e.strerror})",
            fix="name a file that you may read",
        ) from None
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"manifest {path}: it is UTF-16", fix="save it as UTF-8")
    if suffix == ".toml":
        return Manifest(path, _table(path, _toml(path).get("defaults", {})), (), "toml")
    if suffix == ".csv":
        return Manifest(path, {}, _columns(path), "csv")
    return Manifest(path, _json_defaults(path), (), "json")


def _table(path: Path, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"manifest {path}: defaults must be a table, found {value!r}")
    if "id" in value:
        raise UsageError(f"manifest {path}: defaults hold an id; every job has its own")
    return value


def _json_lines(path: Path) -> Iterator[Line]:
    first = True
    with path.open("rb") as f:
        for number, raw in enumerate(f, start=1):
            text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not text.strip():
                continue
            line = _json_line(number, text)
            header, first = first and "defaults" in line.values, False
            if not header:
                yield line


def _json_line(number: int, raw: bytes) -> Line:
    """Return a line of JSON; one that is no object gives a line with an error."""
    try:
        values = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError as e:
        error = f"not UTF-8 (byte {raw[e.start]:#04x} at position {e.start})"
        return Line(number, error=error, fix="save the manifest as UTF-8")
    except json.JSONDecodeError as e:
        return Line(number, error=f"not JSON ({e.msg}, column {e.colno})", fix=_JSON_FIX)
    except (ValueError, RecursionError) as e:
        error = f"not JSON ({str(e).splitlines()[0][:80]})"
        return Line(number, error=error, fix=_JSON_FIX)
    if not isinstance(values, dict):
        error = f"expected an object {{...}}, found {_kind(values)}"
        return Line(number, error=error, fix=_JSON_FIX)
    return Line(number, values)


def _json_defaults(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as f:
        for number, raw in enumerate(f, start=1):
            text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if text.strip():
                values = _json_line(number, text).values
                if "defaults" not in values:
                    return {}
                if len(values) > 1:
                    raise UsageError(
                        f"manifest {path}, line {number}: a line with defaults holds nothing else",
                        fix='write {"defaults": {...}} on a line of its own',
                    )
                return _table(path, values["defaults"])
    return {}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _open_csv(path: Path) -> io.TextIOWrapper:
    # Bytes that are no UTF-8 become surrogates, so that only their own row is bad.
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _columns(path: Path) -> tuple[str, ...]:
    csv.field_size_limit(MAX_CELL)
    with _open_csv(path) as f:
        try:
            names = next(csv.reader(f, strict=True), [])
        except csv.Error as e:
            raise UsageError(f"manifest {path}: no CSV ({e})") from None
    columns = tuple(name.strip() for name in names)
    if "id" not in columns:
        shown = ", ".join(ascii(c)[1:-1] for c in columns[:8]) or "nothing"
        raise UsageError(
            f"manifest {path}: its first line names no column id (found: {shown})",
            fix="name the columns id, prompt, ... in the first line, separated by commas",
        )
    again = {name for name in columns if columns.count(name) > 1}
    if again or "" in columns:
        what = f"column {min(again)!r} is there twice" if again else "a column has no name"
        raise UsageError(f"manifest {path}: {what}")
    return columns


def _csv_lines(path: Path, columns: tuple[str, ...]) -> Iterator[Line]:
    csv.field_size_limit(MAX_CELL)
    with _open_csv(path) as f:
        rows = csv.reader(f, strict=True)
        next(rows)
        while True:
            number = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as e:
                yield Line(number, error=f"no CSV ({e}); is a quotation mark open?")
                continue
            if row:
                yield _csv_line(number, row, columns)


def _csv_line(number: int, row: list[str], columns: tuple[str, ...]) -> Line:
    if len(row) != len(columns):
        return Line(
            number,
            error=f"{len(row)} cells, expected {len(columns)}; a cell with a comma needs quotes",
        )
    values = {name: cell for name, cell in zip(columns, row, strict=True) if cell != ""}
    for name, cell in values.items():
        if any("\ud800" <= c <= "\udfff" for c in cell):
            return Line(number, error=f"{name}: not UTF-8")
    return Line(number, values)


def _toml(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as e:
        raise UsageError(f"manifest {path}: not valid TOML in UTF-8 ({e})") from None
    unknown = [name for name in data if name not in ("defaults", "job")]
    if unknown:
        raise UsageError(
            f"manifest {path}: unknown table {unknown[0]!r}",
            fix="write [defaults] once, and [[job]] for every job",
        )
    if not isinstance(data.get("job", []), list):
        raise UsageError(f"manifest {path}: job is one table", fix="write [[job]] for every job")
    return data


def _toml_lines(path: Path) -> Iterator[Line]:
    for number, values in enumerate(_toml(path).get("job", []), start=1):
        if isinstance(values, dict):
            yield Line(number, values)
        else:
            yield Line(number, error=f"expected a table, found {_kind(values)}")
