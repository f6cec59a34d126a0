"""The report of a batch: one row a job, JSON Lines, written as jobs end.

It grows as `NAME.part.jsonl` and gets its name when the batch ends, so a finished report is whole;
the part is locked, so two batches never write one report.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from sanawm.io.files import check_output, write_error
from sanawm.io.part import PartFile
from sanawm.notes import Notes

from .jobs import Outcome
from .shard import WHOLE, Shard


def report_path(folder: Path, shard: Shard) -> Path:
    """Return where the report lies by default; the shards of a manifest do not share one."""
    name = "report" if shard == WHOLE else f"report-{shard.index}-of-{shard.count}"
    return folder / f"{name}.jsonl"


class BatchReport:
    """Write the rows of a report to `path`.

    Raises `UsageError` for another ending, `OutputBusy` while another batch writes it, and
    `OutputError` when it cannot be written. An earlier report is replaced at the end.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, notes: Notes) -> None:
        check_output(path, overwrite=True, suffixes=(".jsonl", ".ndjson"))
        self.path = path
        self.rows = 0
        self._part = PartFile(path, overwrite=overwrite, notes=notes)

    @property
    def part_path(self) -> Path:
        """The file that grows."""
        return self._part.path

    def add(self, outcome: Outcome) -> None:
        """Append a row; it is in the file when this returns."""
        line = json.dumps(outcome.row(), ensure_ascii=False).encode("utf-8", "backslashreplace")
        data = line + b"\n"
        try:
            while data:
                data = data[os.write(self._part.fd, data) :]
        except OSError as e:
            raise write_error(self._part.path, e, done=f"{self.rows} rows") from None
        self.rows += 1

    def close(self) -> None:
        """Give the report its name."""
        self._part.commit(overwrite=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep the part when something went wrong and a row is in it."""
        if self._part.fd < 0:
            return
        if self.rows:
            self._part.release()
        else:
            self._part.discard()
