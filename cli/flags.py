"""What a flag is: a row that names the settings key it sets, and commands built from such rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sanawm.errors import UsageError


def numbers(flag: str) -> Callable[[str], tuple[float, ...]]:
    """Return a parser of a comma-separated list of numbers for `flag`."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(part) for part in text.strip().removesuffix(",").split(","))
        except ValueError:
            raise UsageError(
                f"{flag} {text!r}: expected numbers separated by commas",
                fix=f"write it like {flag} {'0.9,0.5,0' if flag == '--sigmas' else '1000,500,0'}",
            ) from None

    return parse


@dataclass(frozen=True)
class Flag:
    """One flag: `names` as typed (`--a` or `--a/--no-a`), the settings `key` it sets, its type."""

    names: str
    key: str
    type: Any
    help: str
    panel: str
    parse: Callable[[Any], Any] | None = None
    invert: bool = False

    @property
    def parameter(self) -> str:
        """Name of the Python parameter."""
        long = next(n for n in self.names.replace("/", ",").split(",") if n.startswith("--"))
        return long.removeprefix("--").replace("-", "_")

    @property
    def shown(self) -> str:
        """Name of the flag for messages."""
        return "--" + self.parameter.replace("_", "-")

    def typed(self, given: Any) -> str:
        """Return the name that was typed: the second one of a switch that was turned off."""
        _, _, off = self.names.partition("/")
        return off if off and given is False else self.shown

    def value(self, given: Any) -> Any:
        """Return the settings value for what was typed."""
        if self.invert:
            return not given
        return given if self.parse is None else self.parse(given)


def with_flags(
    flags: Iterable[Flag], first: tuple[inspect.Parameter, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command function (taking `**values`) the parameters of `first` and of `flags`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = list(first)
        for flag in flags:
            option = typer.Option(
                *flag.names.split(","),
                help=flag.help,
                rich_help_panel=flag.panel,
                show_default=False,
            )
            parameters.append(
                inspect.Parameter(
                    flag.parameter,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=Annotated[flag.type | None, option],
                )
            )
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {p.name: p.annotation for p in parameters}
        return function

    return decorate


def given(flags: Iterable[Flag], values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return what was typed, by settings key: the flag's name and its value."""
    return {
        flag.key: (flag.typed(values[flag.parameter]), flag.value(values[flag.parameter]))
        for flag in flags
        if values.get(flag.parameter) is not None
    }


def extra(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def argument(name: str, metavar: str, help_: str) -> inspect.Parameter:
    """Return a required positional argument."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, typer.Argument(metavar=metavar, help=help_)],
    )
