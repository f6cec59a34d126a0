"""Who set a value: a default, a preset, an input file, the user's file, `--set` or a flag."""

from __future__ import annotations

from dataclasses import dataclass

#: Strength of an origin. Values that an input file fixes lie between `preset` and `file`.
RANKS = {"default": 0, "preset": 1, "input": 2, "file": 3, "set": 4, "flag": 5}


@dataclass(frozen=True)
class Origin:
    """Who set a value: `kind` is a key of RANKS, `where` names the file, preset or flag."""

    kind: str
    where: str

    @property
    def rank(self) -> int:
        """Strength: a value of higher rank replaces one of lower or equal rank."""
        return RANKS[self.kind]

    @property
    def by_user(self) -> bool:
        """True for flags, `--set` and the user's own files."""
        return self.rank >= RANKS["file"]

    def __str__(self) -> str:
        return self.where

    def setting(self, key: str, value: str) -> str:
        """Return `key = value` as whoever set it knows it: `--crf 99`, `video.crf = 99 (a.toml)`.

        `value` is shown as it is given.
        """
        if self.kind in ("flag", "set"):
            return self.typed(key, value)
        return f"{key} = {value} ({self.where})"

    def typed(self, key: str, value: str) -> str:
        """Return what to type in the same place to give `key` another value."""
        if self.kind == "flag":
            return f"{self.where} {value}"
        return f"--set {key}={value}" if self.kind == "set" else f"{key} = {value}"

    def key_name(self, key: str) -> str:
        """Return the key's name in this place: that of the flag, or its own."""
        return self.where if self.kind == "flag" else key
