"""The `sanawm` command: global options, commands, and errors to exit codes."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from sanawm import __version__
from sanawm.errors import MachineError, SanawmError, UsageError

from . import camera_params, params, tool_params
from .batch_params import BATCH
from .console import NORMAL, QUIET, VERBOSE, Console
from .refine_params import REFINE
from .streams import prepare_streams, silence

LOG_FORMATS = ("auto", "rich", "plain", "json")

app = typer.Typer(
    name="sanawm",
    help="Streaming refiner for SANA-WM: clean latents, a prompt and a camera path become an MP4, "
    "chunk by chunk.\n\nThe options below may also stand after a command.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
_console: Console | None = None
_debug = False


def _version(value: bool) -> None:
    if value:
        print(f"sanawm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more; repeatable.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    log_format: Annotated[
        str, typer.Option(help="auto, rich, plain or json.", envvar="SANAWM_LOG_FORMAT")
    ] = "auto",
    log_file: Annotated[
        Path | None, typer.Option(help="Append JSON lines here.", envvar="SANAWM_LOG_FILE")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks of expected errors.")] = False,
) -> None:
    """Read the global options."""
    global _console, _debug
    if log_format not in LOG_FORMATS:
        raise typer.BadParameter(f"{log_format!r} is not one of {', '.join(LOG_FORMATS)}")
    verbosity = QUIET if quiet else VERBOSE + verbose - 1 if verbose else NORMAL
    _console = Console(log_format=log_format, log_file=log_file, verbosity=verbosity)
    _debug = debug


def console() -> Console:
    """Return the console of this process."""
    global _console
    if _console is None:
        _console = Console(log_format="auto", log_file=None, verbosity=NORMAL)
    return _console


@app.command(no_args_is_help=False)
@params.with_flags(REFINE, (params.CONFIG, params.SET, params.DRY_RUN))
def refine(**values: Any) -> None:
    """Refine clean latents into an MP4, block by block: the main job."""
    from .refine import run

    run(values, console())


@app.command()
@params.with_flags((), BATCH)
def batch(**values: Any) -> None:
    """Refine many clips from a manifest, models loaded once a worker."""
    from .batch import run

    run(values, console())


@app.command()
@params.with_flags(
    params.DECODE,
    (params.argument("latents", "LATENTS", "Latents file."), params.CONFIG, params.SET),
)
def decode(**values: Any) -> None:
    """Decode latents into a video through the causal VAE."""
    from .decode import run

    run(values, console())


@app.command()
@params.with_flags(
    params.ENCODE,
    (params.argument("source", "IN", "Image or video."), params.CONFIG, params.SET),
)
def encode(**values: Any) -> None:
    """Encode an image or a video into latents."""
    from .encode import run

    run(values, console())


camera = typer.Typer(
    name="camera",
    help="Look at, convert, roll out and check camera paths; no model is loaded.",
    no_args_is_help=True,
)
app.add_typer(camera)


@camera.command("show")
@params.with_flags(
    camera_params.SHOW,
    (camera_params.FILE, camera_params.PLOT, camera_params.TEXT_PLOT, camera_params.JSON),
)
def camera_show(**values: Any) -> None:
    """Say what a camera path does: a table, a text plot on a terminal, a picture with --plot."""
    from .camera import show

    show(values, console())


@camera.command("convert")
@params.with_flags(
    camera_params.CONVERT,
    (params.argument("file", "IN", camera_params.FILE_HELP), camera_params.TO),
)
def camera_convert(**values: Any) -> None:
    """Write a camera path in another format."""
    from .camera import convert

    convert(values, console())


@camera.command("make")
@params.with_flags(camera_params.MAKE, (camera_params.TO,))
def camera_make(**values: Any) -> None:
    """Roll an action string out and write its poses."""
    from .camera import make

    make(values, console())


@camera.command("check")
@params.with_flags(
    camera_params.CHECK, (camera_params.FILE, camera_params.PLOT, camera_params.JSON)
)
def camera_check(**values: Any) -> None:
    """Check a camera path: exit 1 when a check fails, 2 when the file is malformed."""
    from .camera import check

    check(values, console())


@app.command()
@params.with_flags((), tool_params.INSPECT)
def inspect(**values: Any) -> None:
    """Say what a file is: latents, checkpoint, run state, camera path, our MP4, and the rest."""
    from .inspect import run

    run(values, console())


@app.command()
@params.with_flags((), tool_params.COMPARE)
def compare(**values: Any) -> None:
    """Compare two videos or two latents files, block by block; exit 1 outside the thresholds."""
    from .compare import run

    run(values, console())


@app.command()
@params.with_flags(params.BENCH, (params.CONFIG, params.SET, *tool_params.BENCH))
def bench(**values: Any) -> None:
    """Measure the stages on this machine, against its own limit for the same work."""
    from .bench import run

    run(values, console())


@app.command()
@params.with_flags((), (params.CONFIG, params.SET, *tool_params.DOCTOR))
def doctor(**values: Any) -> None:
    """Check this machine: versions, devices, codecs, memory, disk, config, the tiny refiner."""
    from .doctor import run

    run(values, console())


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    prepare_streams()
    _forget()
    arguments = _normalised(sys.argv[1:] if argv is None else argv)
    code = 70
    try:
        code = _guarded(arguments)
    finally:
        if _console is not None:
            _console.close()
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
    if argv is None and any(t.name.startswith("sanawm-") for t in threading.enumerate()):
        os._exit(code)  # a block is still in work: its thread must not meet a dying interpreter
    sys.exit(code)


def _forget() -> None:
    """Forget the options of an earlier call in this process."""
    global _console, _debug
    _console, _debug = None, False


def _guarded(arguments: list[str]) -> int:
    from typer import exceptions

    try:
        result = app(arguments, prog_name="sanawm", standalone_mode=False)
        if result == 130:  # Typer returns this for an interrupt
            return _interrupted()
        return result if isinstance(result, int) else 0
    except SanawmError as e:
        if _debug:
            raise
        console().error(e)
        return e.exit_code
    except exceptions.Exit as e:
        return e.exit_code
    except exceptions.TyperException as e:
        return _usage(e)
    except (KeyboardInterrupt, exceptions.Abort):
        return _interrupted()
    except Exception as e:
        if _debug:
            raise
        return _unexpected(e)


def _interrupted() -> int:
    """Say that the command was stopped at once; its exit code is that of the signal."""
    code = console().stop_code or 130
    console().failure("interrupted", code)
    return code


def _usage(error: Any) -> int:
    """Show a usage error in two lines."""
    from .usage import usage_error

    refusal = usage_error(error)
    if refusal is not None:
        console().error(refusal)
    return 2


def _unexpected(error: Exception) -> int:
    """Report a machine limit, a reader of stdout that went away, or a bug (traceback in a file)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        limit = MachineError("out of memory", fix="use a smaller size, window or precision")
        console().error(limit)
        return limit.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)[:40]
        too_long = UsageError(f"{name}...: the name is too long", fix="use a shorter path")
        console().error(too_long)
        return too_long.exit_code
    if isinstance(error, BrokenPipeError):  # `sanawm --help | head`
        silence(sys.stdout)
        return 0
    where = console().log_traceback(error) or _crash_file(error)
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    console().failure(f"unexpected {what}; this is a bug, traceback in {where}", 70)
    return 70


def _crash_file(error: Exception) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="sanawm-crash-", suffix=".log", delete=False, encoding="utf-8"
    ) as f:
        traceback.print_exception(error, file=f)
    return f.name


#: Global options and whether they take a value; they may stand before or after the command.
GLOBALS = {
    "--verbose": False,
    "--quiet": False,
    "--debug": False,
    "--log-format": True,
    "--log-file": True,
}
_SHORT_GLOBAL = re.compile(r"-(v+|q)")


def _normalised(arguments: list[str]) -> list[str]:
    """Accept two habits: `--num_frames` for `--num-frames`, and global options anywhere."""
    first: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            return [*first, *rest, argument, *waiting]
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
            argument = name + equals + value
        if name in GLOBALS:
            first.append(argument)
            if GLOBALS[name] and not equals:
                first.append(next(waiting, ""))
        elif _SHORT_GLOBAL.fullmatch(argument):
            first.append(argument)
        else:
            rest.append(argument)
    return first + rest


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
