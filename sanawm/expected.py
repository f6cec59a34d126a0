"""What each settings key takes, in words, and the error for a value that it does not take.

pydantic's own messages name a rule (`input should be less than or equal to 51`); these name what
was typed and where, what was expected, and a value that works. Imports no torch.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .errors import UsageError
from .origins import Origin
from .settings import all_keys

#: Keys whose type says less than their users need to know.
_SPECIAL = {
    "refiner.sigmas": "numbers that descend to 0",
    "stage1.denoising_step_list": "whole numbers that descend to 0",
    "video.fps": "frames per second such as 16, 23.976 or 24000/1001",
    "video.output_fps": "frames per second such as 16, 23.976 or 24000/1001",
}
#: Examples for keys without a default.
_EXAMPLES = {
    "input.fov_x": 90,
    "video.output_fps": "24000/1001",
    "runtime.threads": 2,
    "runtime.refiner_seed": 42,
    "camera.translation_speed": 0.025,
    "camera.rotation_speed_deg": 0.6,
    "camera.pitch_limit_deg": 60,
}


def expected(key: str) -> str:
    """Return what `key` takes: `a whole number from 0 to 51`."""
    if key in _SPECIAL:
        return _SPECIAL[key]
    field = all_keys()[key]
    kind, rules = _plain_type(field.annotation, list(field.metadata))
    if get_origin(kind) is Literal:
        *most, last = map(str, get_args(kind))
        return f"{', '.join(most)} or {last}" if most else last
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"a whole number{_range(rules)}"
    return f"a number{_range(rules)}" if kind is float else "text"


def wrong_value(
    key: str, value: object, origin: Origin, cause: object = None, *, declared: object = None
) -> UsageError:
    """Return the error for `value`, set at `origin`, which `key` does not take.

    `cause` is the error of a check of our own, whose words are kept; `declared` the value that the
    run's presets give.
    """
    if isinstance(cause, UsageError):
        return UsageError(f"{origin}: {cause.message}", fix=cause.fix)
    found = origin.setting(key, shown(value, origin))
    return UsageError(f"{found}: expected {expected(key)}", fix=working(key, origin, declared))


def working(key: str, origin: Origin, declared: object = None) -> str:
    """Return a value that works, as it would be set at `origin`; that of the presets first."""
    if declared is not None and origin.kind != "preset" and not isinstance(declared, bool):
        return f"use {origin.typed(key, shown(declared, origin))}, the preset's"
    default = all_keys()[key].default
    if default is None or default == "":
        example = _EXAMPLES.get(key)
        if example is None:
            return f"correct it, or leave {origin.key_name(key)} out"
        return f"use {origin.typed(key, shown(example, origin))}, or leave it out"
    if isinstance(default, bool):
        return f"use {origin.typed(key, 'true')} or {origin.typed(key, 'false')}"
    return f"use {origin.typed(key, shown(default, origin))}, the default"


def shown(value: object, origin: Origin) -> str:
    """Return a value as it is typed at `origin`; texts that are no word are in quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        inner = [shown(v, origin) for v in value]
        return ",".join(inner) if origin.kind == "flag" else f"[{', '.join(inner)}]"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value) if isinstance(value, int) else value if isinstance(value, str) else ""
    if not text or not all(c.isalnum() or c in "_-+./:%," for c in text):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain_type(annotation: Any, rules: list[Any]) -> tuple[Any, list[Any]]:
    """Return a type without `None` and annotations, and the rules that the latter hold."""
    if get_origin(annotation) in (Union, UnionType):
        (kind, *_) = [a for a in get_args(annotation) if a is not type(None)]
        return _plain_type(kind, rules)
    if hasattr(annotation, "__metadata__"):
        for extra in annotation.__metadata__:
            rules = [*rules, *getattr(extra, "metadata", [])]
        return _plain_type(get_args(annotation)[0], rules)
    return annotation, rules


def _range(rules: list[Any]) -> str:
    low = next((r.ge for r in rules if hasattr(r, "ge")), None)
    high = next((r.le for r in rules if hasattr(r, "le")), None)
    if high is None:
        below = next((r.lt for r in rules if hasattr(r, "lt")), None)
        if below is not None:
            return f" from {low} to {below - 1}"
        return "" if low is None else f", {low} or more"
    return f" from {low} to {high}"
