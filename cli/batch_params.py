"""The parameters of `sanawm batch`. They set no settings key: those come from the manifest."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .params import CONFIG, DRY_RUN, SET, Flag
from .refine_params import REFINE

if TYPE_CHECKING:
    from sanawm.batch.asked import Option

RUN = "How it runs"


def _option(name: str, type_: Any, help_: str, metavar: str | None = None) -> inspect.Parameter:
    option = typer.Option(
        name, help=help_, metavar=metavar, show_default=False, rich_help_panel=RUN
    )
    return inspect.Parameter(
        name.removeprefix("--").replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[type_ | None, option],
    )


BATCH = (
    inspect.Parameter(
        "manifest",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[
            str,
            typer.Argument(
                metavar="MANIFEST",
                show_default=False,
                help="JSON Lines, CSV or TOML: one job a line, an id and options of refine. "
                "Relative paths in it are relative to its folder.",
            ),
        ],
    ),
    CONFIG,
    SET,
    _option("--output-dir", str, "Folder of the videos: ID.mp4. Made if it is not there.", "DIR"),
    _option("--report", str, "One row a job (default: report.jsonl in the folder).", "FILE.jsonl"),
    _option(
        "--overwrite",
        bool,
        "Replace videos made with other settings. Those made with the same are kept anyway.",
    ),
    _option("--strict", bool, "Refuse the whole manifest when one line is bad."),
    _option("--fail-fast", bool, "Hand out no more jobs after the first that fails."),
    _option("--limit", int, "Make at most N jobs now; those done already do not count.", "N"),
    _option("--shard", str, "Only this share of the jobs, 1/N to N/N, for array jobs.", "I/N"),
    _option("--engine", str, "local: processes here (default); ray: a Ray cluster."),
    _option("--jobs", int, "Jobs at a time (default: one a device; on Ray as many as fit).", "N"),
    _option("--gpus-per-job", float, "Devices of each job (1 where there are any).", "N"),
    _option("--cpus-per-job", int, "Cores of each job, and its threads if it sets none.", "N"),
    _option("--ray-address", str, "auto, HOST:PORT or ray://HOST:PORT; without it a new cluster."),
    DRY_RUN,
)


def _off(flag: Flag, on: bool) -> Any:
    """Return the settings value for a switch given by its negative name."""
    return flag.value(not on)


def options() -> tuple[Option, ...]:
    """Return the long options of `refine` as keys of a manifest, both names of a switch."""
    from sanawm.batch.asked import Option  # it brings in the settings: not for --help

    found = []
    for flag in REFINE:
        positive, _, negative = flag.names.partition("/")
        long = next(n for n in positive.split(",") if n.startswith("--"))
        found.append(Option(long.removeprefix("--"), flag.key, flag.type, flag.value))
        if negative:
            name = negative.removeprefix("--")
            found.append(Option(name, flag.key, bool, partial(_off, flag)))
    return tuple(found)
