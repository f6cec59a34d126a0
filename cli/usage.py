"""Errors of the command line's own parser in the words of the settings' errors."""

from __future__ import annotations

from typing import Any

from sanawm.errors import UsageError


def usage_error(error: Any) -> UsageError | None:
    """Return what to say about an error of the parser; None for one that says nothing."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "sanawm"
    cause: Any = error.__context__  # pydantic's, if it is about a value
    if hasattr(cause, "errors") and getattr(error, "param", None) is not None:
        return _wrong_value(error.param, cause.errors()[0], path)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return UsageError(message, fix=f"see `{path} --help`") if message else None


def _wrong_value(parameter: Any, fault: Any, path: str) -> UsageError:
    """Return the error for a value that is not of its option's type."""
    from sanawm.expected import expected, shown, wrong_value
    from sanawm.origins import Origin

    name = max([*parameter.opts, *parameter.secondary_opts], key=len)
    origin, key = Origin("flag", name), _keys().get(name)
    if key is not None and _is_of_presets(key):  # which one is used is not known yet
        message = wrong_value(key, fault["input"], origin).message
        fix = f"use {name} with {expected(key)}, or leave it out"
        return UsageError(message, fix=fix)
    if key is not None:
        return wrong_value(key, fault["input"], origin)
    kind, rule = str(fault["type"]), fault.get("ctx", {})
    wanted = "a whole number" if kind.startswith("int") else "a number"
    if "ge" in rule:
        wanted = f"{rule['ge']} or more"
    value = shown(fault["input"], origin)
    return UsageError(f"{name} {value}: expected {wanted}", fix=f"see `{path} --help`")


def _is_of_presets(key: str) -> bool:
    """Tell whether a preset sets this key, so that the built-in default is not what a run uses."""
    from sanawm.config import config_path, preset_names, read_toml

    section, _, name = key.partition(".")
    return any(
        name in read_toml(config_path(preset)[0]).get(section, {}) for preset in preset_names()
    )


def _keys() -> dict[str, str]:
    """Return the settings key of every flag that has one."""
    from . import camera_params, params, refine_params

    rows = (
        *refine_params.REFINE,
        *params.DECODE,
        *params.ENCODE,
        *camera_params.SHOW,
        *camera_params.CONVERT,
        *camera_params.MAKE,
    )
    return {flag.shown: flag.key for flag in rows}
