"""stdout carries the result alone, stderr the rest, and neither can lose a finished run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sanawm.errors import OutputError
from sanawm.events import EVENT_NAMES

from .command import STRIDE, Done, report_of, sanawm, start, video_frames
from .conftest import Run

#: The closed list of cli.md.
EVENTS = (
    "run_start config load_start load_done encode_done chunk_done block_done chunk_written "
    "state_saved run_done warning error"
)


@pytest.fixture
def short(in_tmp: Path, latents: Path) -> tuple[object, ...]:
    """Arguments of a run of one block, in an empty folder."""
    return ("refine", "--latents", latents, "--num-frames", STRIDE + 1, "-o", "o.mp4")


def lines(path: Path) -> list[dict[str, object]]:
    """Return the objects in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_stdout_holds_the_path_and_nothing_else(short: tuple[object, ...]) -> None:
    done = sanawm(*short)
    assert (done.code, done.out) == (0, "o.mp4\n")


def test_plain_lines_say_what_happens(short: tuple[object, ...]) -> None:
    text = sanawm(*short).err
    assert "\x1b" not in text
    assert "no -c given: using the embedded preset 'tiny'" in text
    for word in ("model  refiner of", "video  64x48", "plan   1 block of 3", "block 1/1:"):
        assert word in text
    assert "(growing as o.part.mp4)" in text
    assert text.rstrip().splitlines()[-1].startswith(f"done: {STRIDE} frames in ")


def test_the_part_file_is_named_before_the_first_block(short: tuple[object, ...]) -> None:
    text = sanawm(*short).err
    assert text.index("o.part.mp4") < text.index("block 1/1")


def test_json_prints_one_object_and_events_of_the_closed_list(run: Run) -> None:
    assert run.done.out.count("\n") == 1
    result = run.done.json
    assert {"schema", "status", "output", "report", "frames_written", "seconds"} == set(result)
    assert (result["schema"], result["status"]) == (1, "done")
    assert result["output"] == str(run.video)
    assert result["report"] == str(run.video.with_suffix(".json"))
    events = run.done.events
    assert {e["event"] for e in events} <= set(EVENTS.split()) <= set(EVENT_NAMES)
    assert {e["level"] for e in events} <= {"info", "warning", "error"}
    times = [e["t"] for e in events]
    assert all(t >= 0 for t in times)
    order = [e["event"] for e in events if e["event"] in ("run_start", "block_done", "run_done")]
    assert order == ["run_start", "block_done", "block_done", "run_done"]
    written = [e for e in events if e["event"] == "chunk_written"]
    assert [(e["index"], e["frames"]) for e in written] == [(0, STRIDE), (1, 2 * STRIDE)]


def test_the_log_file_holds_the_same_events(run: Run) -> None:
    assert lines(run.folder / "log.jsonl") == run.done.events


def test_the_log_file_is_appended_to(short: tuple[object, ...]) -> None:
    Path("log.jsonl").write_text('{"mine": 1}\n')
    done = sanawm("--log-file", "log.jsonl", *short)
    assert done.code == 0
    logged = lines(Path("log.jsonl"))
    assert logged[0] == {"mine": 1}
    assert logged[-1]["event"] == "run_done"
    assert "block 1/1" in done.err  # the terminal still gets its own lines


def test_quiet_is_silent_but_for_warnings_and_errors(short: tuple[object, ...]) -> None:
    assert sanawm("--quiet", *short) == Done(0, "o.mp4\n", "")
    done = sanawm("--quiet", *short)
    assert done.err == "error: o.mp4 exists\n  fix: add --overwrite, or choose another name\n"
    done = sanawm("--quiet", *short, "--overwrite", "--refiner-kv-max-frames", 3)
    assert done.err.startswith("warning: ")
    assert done.err.count("\n") == 1


def test_quiet_json_keeps_warnings_and_errors(short: tuple[object, ...]) -> None:
    sanawm("-q", *short)
    done = sanawm("-q", "--log-format", "json", *short)
    (event,) = done.events
    assert (event["event"], event["level"], event["exit_code"]) == ("error", "error", 5)


def test_verbose_tells_of_loading(short: tuple[object, ...]) -> None:
    assert "load done: component refiner" in sanawm("-v", *short).err
    assert "load done" not in sanawm(*short, "--overwrite").err


@pytest.mark.parametrize("place", ["before", "after"])
def test_global_options_stand_before_or_after_the_command(
    short: tuple[object, ...], place: str
) -> None:
    options = ("--log-format", "json", "--log_file=log.jsonl", "-v")
    done = sanawm(*options, *short) if place == "before" else sanawm(*short, *options)
    assert done.json["status"] == "done"
    assert lines(Path("log.jsonl")) == done.events


def test_the_environment_sets_logging_and_a_flag_wins(
    short: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANAWM_LOG_FORMAT", "json")
    monkeypatch.setenv("SANAWM_LOG_FILE", "log.jsonl")
    assert sanawm(*short).json["status"] == "done"
    assert lines(Path("log.jsonl"))[-1]["event"] == "run_done"
    assert sanawm("--log-format", "plain", *short, "--overwrite").out == "o.mp4\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("refine", "--nosuch"), 2, "--nosuch"),
        (("refine", "--num-frames", "many"), 2, "--num-frames many: expected a whole number"),
        (("refine", "-c", "tinny", "-o", "o.mp4"), 2, "tinny"),
        (("refine", "-o", "no/o.mp4"), 5, "the folder no does not exist"),
        (("decode", "no.safetensors", "-o", "o.mp4"), 3, "no.safetensors"),
        (("encode", "no.png", "-o", "o.safetensors"), 3, "no.png"),
    ],
    ids=str,
)
def test_errors_are_json_too(
    in_tmp: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = sanawm("--log-format", "json", *arguments)
    assert (done.code, done.out) == (code, "")
    error = done.events[-1]
    assert (error["event"], error["level"], error["exit_code"]) == ("error", "error", code)
    assert words in error["message"]


def test_a_bad_log_format_and_a_log_file_that_cannot_be_written(in_tmp: Path) -> None:
    done = sanawm("--log-format", "xml", "refine", "-o", "o.mp4")
    assert done.code == 2
    assert "'xml' is not one of auto, rich, plain, json" in done.err
    done = sanawm("--log-file", "no/log.jsonl", "refine", "-o", "o.mp4")
    assert done.code == 5
    assert "log file no/log.jsonl: cannot be written" in done.err


def test_a_log_file_that_fills_up_does_not_stop_the_run(short: tuple[object, ...]) -> None:
    done = sanawm("--log-file", "/dev/full", *short)
    assert (done.code, done.out) == (0, "o.mp4\n")
    assert done.err.count("warning: log file /dev/full: cannot be written any more") == 1


# A bug


def test_a_bug_is_one_line_and_a_traceback_file(
    short: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("made for this test")

    monkeypatch.setattr("sanawm.plan.make_plan", broken)
    done = sanawm("-q", *short)
    assert (done.code, done.out) == (70, "")
    (line,) = done.err.splitlines()
    assert "unexpected KeyError" in line
    assert "this is a bug" in line
    file = Path(line.rpartition(" ")[2])
    assert "in broken" in file.read_text()
    file.unlink()


def test_a_bugs_traceback_goes_to_the_log_file_if_there_is_one(
    short: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("made for this test")

    monkeypatch.setattr("sanawm.plan.make_plan", broken)
    done = sanawm("--log-file", "log.jsonl", *short)
    assert done.code == 70
    assert "traceback in log.jsonl" in done.error
    tracebacks = [str(e["traceback"]) for e in lines(Path("log.jsonl")) if "traceback" in e]
    assert "in broken" in tracebacks[0]
    assert "Traceback" not in done.err


@pytest.mark.parametrize("error", [MemoryError(), type("OutOfMemoryError", (RuntimeError,), {})()])
def test_out_of_memory_is_a_limit_of_the_machine(
    short: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("sanawm.plan.make_plan", broken)
    done = sanawm("-q", *short)
    assert done.code == 4
    assert done.err.startswith("error: out of memory\n  fix: ")


def test_debug_shows_the_traceback_of_an_expected_error(in_tmp: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        sanawm("refine", "-o", "no/o.mp4", "--debug")


# Streams that are closed or full, each in a process of its own


def test_closed_streams_do_not_fail_a_run(short: tuple[object, ...]) -> None:
    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    process = start(*short, "--threads", 1, preexec_fn=close)
    assert process.wait(60) == 0
    assert len(video_frames(Path("o.mp4"))) == STRIDE
    assert report_of(Path("o.mp4"))["status"] == "done"


def test_a_reader_that_went_away_and_a_full_disk_do_not_fail_a_run(
    short: tuple[object, ...],
) -> None:
    with Path("/dev/full").open("w") as full:
        process = start(*short, "--threads", 1, stderr=full)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
    assert len(video_frames(Path("o.mp4"))) == STRIDE


def test_help_into_a_closed_pipe_is_no_bug() -> None:
    command = f"{sys.executable} -m sanawm refine --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout in ("0\n", "1\n")


def test_a_name_that_is_not_utf8_is_printed_as_it_is(in_tmp: Path, latents: Path) -> None:
    name = os.fsdecode(b"o\xff.mp4")
    process = start(
        "refine", "--latents", latents, "--num-frames", STRIDE + 1, "-o", name, "--threads", 1,
        text=False, env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == b"o\xff.mp4\n"
    assert report_of(Path(name))["output"]["path"] == name
