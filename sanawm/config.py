"""Resolve settings from presets, TOML files, overrides and flags, remembering who set what.

Strongest first: flags, `--set`, `-c` arguments by position (later wins), what a file `extends`,
built-in defaults. Imports no torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import InputError, MissingFile, SanawmError, UsageError
from .expected import shown, wrong_value
from .origins import RANKS, Origin
from .paths import check_path, home_expanded, real_path, short_path
from .settings import EXCLUSIVE, Settings, all_keys, is_path, is_switch, may_be_none, path_keys
from .shapes import MAX_FRAMES

DEFAULT_PRESET = "tiny"


@dataclass(frozen=True)
class Layer:
    """Values of one origin, by settings key."""

    origin: Origin
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Resolved:
    """Settings of a run and the origin of every value.

    `declared` holds what presets alone say: the recipe that goes with their weights.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    declared: Mapping[str, Any] = field(default_factory=dict)

    def origin(self, key: str) -> Origin:
        """Return who set `key`."""
        return self.origins[key]

    def get(self, key: str) -> Any:
        """Return the value of `key` (`section.name`)."""
        section, _, name = key.partition(".")
        return getattr(getattr(self.settings, section), name)

    def named(self, key: str) -> str:
        """Return a setting as whoever set it knows it: `--fov-x 90`, `input.fov_x = 90 (a.toml)`.

        Messages about a value say with this whether it was typed, or came from a preset.
        """
        origin = self.origins[key]
        return origin.setting(key, shown(self.get(key), origin))

    def with_input(self, values: Mapping[str, Any], *, where: str) -> Resolved:
        """Return settings in which an input file fixes `values` that the user did not set."""
        weaker = {k: v for k, v in values.items() if not self.origins[k].by_user}
        merged = {k: self.get(k) for k in self.origins}
        merged.update(weaker)
        origins = dict(self.origins) | {k: Origin("input", where) for k in weaker}
        valid = _validated(merged, origins, self.declared)
        return Resolved(valid, origins, self.declared)

    def table(self) -> dict[str, dict[str, object]]:
        """Return `{key: {value, origin}}` for reports and `--dry-run`."""
        return {
            key: {"value": _plain(self.get(key)), "origin": str(origin)}
            for key, origin in self.origins.items()
        }


def resolve(
    configs: Sequence[str] = (),
    *,
    sets: Sequence[str] = (),
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Resolved:
    """Return the settings of a run.

    configs: preset names or TOML paths, later wins. sets: `section.key=value` strings. flags: by
    settings key, the flag's name and value.

    Raises `UsageError` or `InputError` for unknown keys, wrong values and two members of an
    exclusive group, `MissingFile` for a config that is not there.
    """
    layers = [Layer(Origin("default", "built-in default"), {})]
    for name in configs:
        layers.extend(_load(name))
    layers.extend(_parse_set(text) for text in sets)
    for key, (flag, value) in (flags or {}).items():
        layers.append(Layer(Origin("flag", flag), {key: value}))
    return _merge(layers)


def preset_names() -> list[str]:
    """Return the names of the packaged presets."""
    folder = resources.files("sanawm.configs")
    return sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".toml"))


def config_path(name: str) -> tuple[Path, bool]:
    """Return the path of a preset or config file, and whether it is a preset.

    A name without a separator or `.toml` is a preset; the error lists them and the nearest one.
    """
    check_path(name, where="config", pipe=True)
    plain = not name.endswith(".toml") and "/" not in name and "\\" not in name
    if plain and not Path(name).is_file():
        presets = preset_names()
        if name in presets:
            return Path(str(resources.files("sanawm.configs") / f"{name}.toml")), True
        raise UsageError(
            f"config {name!r} is no preset and no file; presets: {', '.join(presets)}",
            fix=_nearest(name, presets) or "name a preset or the path of a TOML file",
        )
    return Path(name), False


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file (UTF-8, a byte-order mark is tolerated)."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise MissingFile(f"config {path}: no such file") from None
    except OSError as e:
        raise MissingFile(f"config {path}: cannot be read ({e.strerror})") from None
    except (ValueError, RecursionError) as e:
        raise InputError(
            f"config {path}: not valid TOML in UTF-8 ({e})", fix="correct the line that is named"
        ) from None


def _load(name: str, trail: tuple[Path, ...] = ()) -> list[Layer]:
    """Return the layers of a config: what it extends, then itself."""
    path, preset = config_path(name)
    place = real_path(path)
    if place in trail:
        chain = " extends ".join(str(p) for p in (*trail, place))
        raise InputError(
            f"config {path}: it extends itself ({chain})", fix="take one extends line out"
        )
    data = read_toml(path)
    base = data.pop("extends", None)
    layers: list[Layer] = []
    if base is not None:
        if not isinstance(base, str):
            raise InputError(
                f"config {path}: extends must be one preset name or file name, found {base!r}",
                fix='write it like extends = "tiny"',
            )
        beside = path.parent / base
        try:
            check_path(str(beside), where="config", pipe=True)
            layers = _load(str(beside) if beside.is_file() else base, (*trail, place))
        except SanawmError as e:
            if e.message.startswith(f"config {path}"):
                raise
            raise InputError(
                f"config {path}: extends {short_path(base)}: {e.message}", fix=e.fix
            ) from None
    origin = Origin("preset", f"preset {name}") if preset else Origin("file", str(path))
    values = {key: anchored(key, v, path) for key, v in _flatten(data, origin).items()}
    return [*layers, Layer(origin, values)]


def _flatten(data: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for section, table in data.items():
        if not isinstance(table, Mapping):
            if section not in Settings.model_fields:
                raise _unknown(section, list(Settings.model_fields), origin)
            raise InputError(
                f"{origin}: [{section}] must be a table, found {table!r}",
                fix=f"write [{section}] on a line of its own, and its keys below",
            )
        for name, value in table.items():
            flat[f"{section}.{name}"] = value
    known = all_keys()
    for key in flat:
        if key not in known:
            raise _unknown(key, known, origin)
    return flat


def anchored(key: str, value: Any, file: Path) -> Any:
    """Return the value of `key` found in `file`: a relative path is relative to that file."""
    if not is_path(key) or not isinstance(value, str) or not value or "://" in value:
        return value
    if (key == "input.intrinsics" and "," in value) or (key, value) == ("output.state", "none"):
        return value
    return str(file.parent / home_expanded(value, where=str(file)))


def _parse_set(text: str) -> Layer:
    key, equals, raw = text.partition("=")
    key = key.strip()
    origin = Origin("set", f"--set {key}")
    if not equals or not key:
        raise UsageError(
            f"--set {text!r}: expected section.key=value", fix="write it like --set video.crf=20"
        )
    known = all_keys()
    if key not in known:
        raise _unknown(key, known, origin)
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = None if raw.strip() == "none" and may_be_none(key) else raw  # a bare word: text
    return Layer(origin, {key: value})


def _merge(layers: Iterable[Layer]) -> Resolved:
    values: dict[str, Any] = {}
    defaults = Settings()
    origins: dict[str, Origin] = {}
    for key in all_keys():
        section, _, name = key.partition(".")
        values[key] = getattr(getattr(defaults, section), name)
        origins[key] = Origin("default", "built-in default")
    declared: dict[str, Any] = {}
    chosen: dict[tuple[str, ...], tuple[int, str]] = {}
    for number, layer in enumerate(layers):
        rank = layer.origin.rank if layer.origin.rank >= RANKS["set"] else number / 1e6
        for group in EXCLUSIVE:
            _choose(group, layer, rank, values, origins, chosen)
        for key, value in layer.values.items():
            values[key], origins[key] = value, layer.origin
            if layer.origin.kind == "preset":
                declared[key] = value
    resolved = Resolved(_validated(values, origins, declared), origins, declared)
    if resolved.settings.video.num_frames > MAX_FRAMES:
        raise UsageError(
            f"{resolved.named('video.num_frames')} cannot be used: expected at most {MAX_FRAMES}",
            fix="a streamed clip has 24*k + 1 frames: 25, 49, ... 241",
        )
    return resolved


def _choose(
    group: tuple[str, ...],
    layer: Layer,
    rank: float,
    values: dict[str, Any],
    origins: dict[str, Origin],
    chosen: dict[tuple[str, ...], Any],
) -> None:
    """Let a layer's member of an exclusive group replace the members that weaker layers set."""
    mine = [k for k in group if layer.values.get(k) is not None]
    if not mine:
        return
    rivals = [k for k in group if values[k] is not None and k not in mine]
    same = chosen.get(group) == rank
    if len(mine) > 1 or (same and rivals):
        both = mine if len(mine) > 1 else [*mine, *rivals]
        names = [str(layer.origin if k in mine else origins[k]) for k in both]
        shown = names if layer.origin.kind == "flag" else both
        raise UsageError(f"{' and '.join(shown)} exclude each other", fix="give one of them")
    for key in rivals:
        values[key], origins[key] = None, layer.origin
    chosen[group] = rank


def _validated(
    values: Mapping[str, Any], origins: Mapping[str, Origin], declared: Mapping[str, Any]
) -> Settings:
    """Return settings; errors name a value that works, that of the presets if they have one."""
    from pydantic import ValidationError

    nested: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
        if isinstance(value, str) and key in path_keys() and "://" not in value:
            check_path(value, where=str(origins[key]), pipe=key == "input.prompt_file")
        if isinstance(value, bool) and not is_switch(key):
            raise wrong_value(key, value, origins[key], declared=declared.get(key))
    try:
        return Settings.model_validate(nested)
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(p) for p in first["loc"][:2])
        cause = first.get("ctx", {}).get("error")
        found, usual = values.get(key), declared.get(key)
        raise wrong_value(key, found, origins[key], cause, declared=usual) from None


def _unknown(key: str, known: Iterable[str], origin: Origin) -> UsageError:
    names = list(known)
    return UsageError(
        f"{origin}: unknown key {key!r}",
        fix=_nearest(key, names) or "run `sanawm refine --dry-run` to see every key",
    )


def _nearest(word: str, names: Iterable[str]) -> str | None:
    names = list(names)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    if not close:
        tail = word.rpartition(".")[2]
        close = [n for n in names if n.rpartition(".")[2] == tail][:1]
    return f"did you mean {close[0]!r}?" if close else None


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
