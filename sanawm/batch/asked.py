"""What a line of a manifest asks: its keys are the long options of `refine`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from sanawm.config import Resolved, anchored, preset_names, resolve
from sanawm.errors import UsageError
from sanawm.io.files import check_stem
from sanawm.paths import check_path, home_expanded
from sanawm.settings import EXCLUSIVE, path_keys

#: Keys of a line that are no options with a settings key.
OWN_KEYS = ("id", "config", "set")
#: Settings that the batch decides, and why a line may not.
DECIDED = {
    "output.output": "the id names the output",
    "output.output_dir": "--output-dir names the folder of all jobs",
    "output.name": "the id names the output",
    "output.overwrite": "it is an option of the whole batch: --overwrite",
    "output.resume": "half-done jobs resume by themselves",
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Option(NamedTuple):
    """A long option of `refine`: its name, the settings key it sets, its type, and its parser.

    `value` turns what would be typed (a `type`) into the settings value.
    """

    name: str
    key: str
    type: type
    value: Callable[[Any], Any]


@dataclass(frozen=True)
class Asked:
    """Settings of a job before they are resolved; `flags` by settings key, with their origin."""

    configs: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    def under(self, stronger: Asked) -> Asked:
        """Return these settings where `stronger` does not say otherwise."""
        flags = dict(self.flags)
        for group in EXCLUSIVE:
            if any(key in stronger.flags for key in group):
                flags = {k: v for k, v in flags.items() if k not in group}
        return Asked(
            self.configs + stronger.configs,
            self.sets + stronger.sets,
            flags | dict(stronger.flags),
        )

    def with_flags(self, flags: Mapping[str, tuple[str, Any]]) -> Asked:
        """Return these settings with further flags."""
        return Asked(self.configs, self.sets, {**self.flags, **flags})

    def resolve(self) -> Resolved:
        """Return the settings; raises the errors of `sanawm.config.resolve`."""
        return resolve(self.configs, sets=self.sets, flags=self.flags)


class Reader:
    """Turn the values of manifest lines into what they ask."""

    def __init__(self, options: Iterable[Option], manifest: Path) -> None:
        self.manifest = manifest.absolute()  # workers may have another current folder
        self._options = {option.name: option for option in options}

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `UsageError` for a name that is no option, or one that the batch decides."""
        seen: dict[str, str] = {}
        for name in names:
            plain = self._plain(name)
            if plain in seen:
                raise UsageError(f"{seen[plain]} and {name} are one option")
            seen[plain] = name

    def asked(self, values: Mapping[str, Any], *, where: str) -> Asked:
        """Return what a line asks; `where` names it as the origin of settings.

        Raises `UsageError` for unknown names and values of another type. `null` is not given.
        """
        self.check_names(values)
        configs: tuple[str, ...] = ()
        sets: tuple[str, ...] = ()
        flags: dict[str, tuple[str, Any]] = {}
        names: dict[str, str] = {}
        for name, value in values.items():
            plain = name.replace("_", "-")
            if value is None or plain == "id":
                continue
            if plain == "config":
                configs = tuple(self._config(text) for text in _texts(value, name))
            elif plain == "set":
                sets = _texts(value, name)
            else:
                option = self._options[plain]
                if option.key in flags:
                    raise UsageError(f"{names[option.key]} and {name} contradict")
                given = option.value(_typed(option, value, name))
                given = (
                    anchored(option.key, given, self.manifest)
                    if option.key in path_keys()
                    else given
                )
                flags[option.key] = (f"{plain} ({where})", given)
                names[option.key] = name
        return Asked(configs, sets, flags)

    def _plain(self, name: str) -> str:
        plain = name.replace("_", "-")
        if plain in OWN_KEYS:
            return plain
        option = self._options.get(plain)
        if option is None:
            close = get_close_matches(plain, [*self._options, *OWN_KEYS], n=1, cutoff=0.5)
            raise UsageError(
                f"unknown key {name!r}",
                fix=f"did you mean {close[0]!r}?" if close else "see `sanawm refine --help`",
            )
        if option.key in DECIDED:
            raise UsageError(f"{name} has no place in a job: {DECIDED[option.key]}")
        return plain

    def _config(self, text: str) -> str:
        """Return a preset's name, or a file's path relative to the manifest's folder."""
        check_path(text, where="config")
        beside = self.manifest.parent / home_expanded(text, where="config")
        if text in preset_names() and not beside.is_file():
            return text
        return str(beside)


def job_id(values: Mapping[str, Any]) -> str:
    """Return the id of a line, checked as a file name; raises `UsageError`."""
    found = values.get("id")
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if found is None:
        raise UsageError("no id", fix='give every job a name of its own, like "id": "clip_01"')
    if not isinstance(found, str):
        raise UsageError(f"id {found!r} is no text")
    return check_stem(found)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise UsageError(f"{name} {value!r}: expected a text or a list of texts")
    return tuple(texts)


def _typed(option: Option, value: Any, name: str) -> Any:
    """Return a value as the option's type, as it would be typed on the command line."""
    convert = {bool: _switch, int: _whole, float: _number, str: _text}[option.type]
    typed = convert(value)
    if typed is None:
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise UsageError(f"{name} {value!r}: expected {wanted[option.type]}")
    return typed


def _switch(value: Any) -> bool | None:
    if isinstance(value, str):
        word = value.strip().lower()
        return True if word in _TRUE else False if word in _FALSE else None
    return value if isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):  # tables with empty cells make 25.0 of 25
        return int(value) if value.is_integer() else None
    try:
        return int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    """Return a text; a number, or a list of numbers, becomes what would be typed for it."""
    if isinstance(value, str):
        return value
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        return None
    return ",".join(str(n) for n in numbers)
