"""A share of a manifest for one task of an array job: every job belongs to exactly one shard."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sanawm.errors import UsageError

_PATTERN = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, both counted from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `i/n` with 1 <= i <= n; raise `UsageError` for anything else."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--shard {text!r}: expected I/N, two whole numbers",
                fix="use --shard 1/7 for the first of seven, or leave it out for all jobs",
            )
        shard = cls(int(match[1]), int(match[2]))
        if not 1 <= shard.index <= shard.count:
            raise UsageError(
                f"--shard {text}: shards are counted from 1, expected 1/{max(shard.count, 1)} to "
                f"{max(shard.count, 1)}/{max(shard.count, 1)}",
                fix="add 1 to an array index that starts at 0",
            )
        return shard

    def holds(self, position: int) -> bool:
        """Tell whether the job at `position` of the manifest (from 0) is in this shard."""
        return position % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


WHOLE = Shard(1, 1)
