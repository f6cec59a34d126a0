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
    from sanawm.expected import shown, wrong_value
    from sanawm.origins import Origin

    name = max([*parameter.opts, *parameter.secondary_opts], key=len)
    origin, key = Origin("flag", name), _keys().get(name)
    if key is not None:
        return wrong_value(key, fault["input"], origin)
    kind, rule = str(fault["type"]), fault.get("ctx", {})
    wanted = "a whole number" if kind.startswith("int") else "a number"
    if "ge" in rule:
        wanted = f"{rule['ge']} or more"
    value = shown(fault["input"], origin)
    return UsageError(f"{name} {value}: expected {wanted}", fix=f"see `{path} --help`")


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
