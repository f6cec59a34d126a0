"""SIGINT and SIGTERM: the block in hand is finished, what was written plays, the report tells."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from .command import STRIDE, finish, refined, report_of, sanawm, start, video_frames
from .conftest import LATENTS, make_latents, save_latents

BLOCKS = 20


@pytest.fixture
def clip(in_tmp: Path) -> Path:
    """Latents of many blocks, in an empty folder."""
    return save_latents(in_tmp / "z.safetensors", make_latents(1 + 3 * BLOCKS, *LATENTS[1:]))


def blocks_done(log: Path) -> int:
    """Return the finished blocks that a log tells of."""
    return log.read_text().count('"event": "block_done"') if log.exists() else 0


@contextmanager
def signal_after(log: Path, blocks: int, *numbers: int) -> Iterator[None]:
    """Send this process signals once the log tells of `blocks` finished blocks."""
    over = threading.Event()

    def watch() -> None:
        while blocks_done(log) < blocks and not over.is_set():
            time.sleep(0.005)
        for number in numbers:
            if not over.is_set():
                os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("number", "code", "schedule"),
    [
        (signal.SIGINT, 130, "sequential"),
        (signal.SIGTERM, 143, "sequential"),
        (signal.SIGINT, 130, "overlap"),
    ],
)
def test_a_signal_ends_the_run_after_the_block_in_hand(
    clip: Path, number: int, code: int, schedule: str
) -> None:
    log = Path("log.jsonl")
    with signal_after(log, 2, number):
        done = sanawm(
            "--log-file", log, "refine", "--latents", clip, "-o", "o.mp4", "--schedule", schedule,
            "--save-latents", "r.safetensors",
        )  # fmt: skip
    assert (done.code, done.out) == (code, "")
    assert "interrupted after block" in done.error
    assert "Traceback" not in done.err
    report = report_of(Path("o.mp4"))
    written = report["frames"]["written"]
    assert report["status"] == "interrupted"
    assert written == len(report["blocks"]) * STRIDE
    assert 2 * STRIDE <= written < BLOCKS * STRIDE
    assert len(video_frames(Path("o.part.mp4"))) == written
    assert not Path("o.mp4").exists()
    assert not Path("r.safetensors").exists()
    assert Path("r.part.safetensors").exists()
    event = json.loads(log.read_text().splitlines()[-1])
    assert (event["event"], event["exit_code"]) == ("error", code)


def test_a_signal_ends_a_run_without_video(clip: Path) -> None:
    log = Path("log.jsonl")
    with signal_after(log, 2, signal.SIGINT):
        done = sanawm(
            "--log-file", log, "refine", "--latents", clip, "--no-video",
            "--save-latents", "r.safetensors",
        )  # fmt: skip
    assert done.code == 130
    assert report_of(Path("r.safetensors"))["status"] == "interrupted"


def test_the_part_of_an_interrupted_run_is_the_beginning_of_the_whole(clip: Path) -> None:
    log = Path("log.jsonl")
    args = ("refine", "--latents", clip, "-o", "o.mp4", "--num-frames", 6 * STRIDE + 1)
    with signal_after(log, 2, signal.SIGINT):
        assert sanawm("--log-file", log, *args).code == 130
    part = video_frames(Path("o.part.mp4"))
    assert sanawm(*args, "--overwrite").code == 0
    whole = video_frames(Path("o.mp4"))
    assert len(whole) == 6 * STRIDE
    assert (whole[: len(part)] == part).all()


def test_a_second_signal_stops_at_once(clip: Path) -> None:
    log = Path("log.jsonl")
    with signal_after(log, 2, signal.SIGINT, signal.SIGTERM):
        done = sanawm("--log-file", log, "refine", "--latents", clip, "-o", "o.mp4")
    assert done.code == 143
    assert "error: interrupted after block " in done.err
    assert "what was finished is kept\n  fix: continue with: " in done.err
    assert done.err.rstrip().endswith("--resume")
    assert len(video_frames(Path("o.part.mp4"))) >= STRIDE
    assert report_of(Path("o.mp4"))["status"] == "interrupted"


def test_a_process_ends_and_leaves_no_child(clip: Path) -> None:
    log = Path("log.jsonl")
    process = start(
        "--log-format", "json", "--log-file", log, "refine", "--latents", clip, "-o", "o.mp4",
        "--threads", 1, start_new_session=True,
    )  # fmt: skip
    while blocks_done(log) < 2 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "stopping after the block in hand" in done.err
    assert done.events[-1]["exit_code"] == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    frames = report_of(Path("o.mp4"))["frames"]["written"]
    assert len(video_frames(Path("o.part.mp4"))) == frames >= 2 * STRIDE


def test_handlers_are_put_back(clip: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    args = ("--latents", clip, "--num-frames", STRIDE + 1, "--save-latents", "r.safetensors")
    assert sanawm("refine", *args, "--no-video").code == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert torch.isfinite(refined(Path("r.safetensors"))).all()
