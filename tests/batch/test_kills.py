"""Workers and batches that are killed or interrupted: nothing is lost, torn or made twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sanawm.cli.batch_params import options

from sanawm.batch.asked import Asked
from sanawm.batch.request import BatchRequest
from sanawm.batch.run import Batch
from sanawm.notes import Notes
from tests.cli.command import CHANNELS, start

from .manifests import batch, rows_of, single_runs, stream_of, write_lines

BLOCKS = 12


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents of a clip of many blocks."""
    path = tmp_path_factory.mktemp("long") / "long.safetensors"
    clip = torch.randn(
        (1, CHANNELS, 1 + 3 * BLOCKS, 4, 6), generator=torch.Generator().manual_seed(3)
    )
    save_file({"latents": clip}, path)
    return path


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, long: Path) -> list[bytes]:
    """The clip by a `sanawm refine` that nobody disturbed."""
    job = {"id": "one", "prompt": "a red tower"}
    return stream_of(single_runs(tmp_path_factory.mktemp("single"), [job], long) / "one.mp4")


def jobs_of(folder: Path, long: Path, *ids: str) -> Path:
    lines: list[dict[str, Any]] = [
        {"id": id_, "prompt": "a red tower", "seed": 42 + n, "latents": str(long)}
        for n, id_ in enumerate(ids)
    ]
    defaults = {"defaults": {"encoder-preset": "ultrafast"}}
    return write_lines(folder / "jobs.jsonl", [defaults, *lines])


def until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_killed_worker_is_replaced_and_its_job_goes_on(
    long: Path, single: list[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    request = BatchRequest(
        jobs_of(tmp_path, long, "one", "two"),
        options(),
        base=Asked(("tiny",)),
        output_dir=folder,
        jobs=1,
    )
    notes = Notes()
    run = Batch(request, notes=notes)

    def kill_at_block(number: int) -> None:
        until(lambda: any(r.block >= number for r in list(run.progress.running.values())))
        for process in multiprocessing.active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_at_block, args=(4,))
    killer.start()
    summary = run.run()
    killer.join()
    assert (summary.done, summary.failed, summary.exit_code) == (2, 0, 0)
    assert any("worker 1 died (signal SIGKILL) at job one" in text for text in notes.warnings)
    rows = {row["id"]: row for row in rows_of(folder / "report.jsonl")}
    assert 1 <= rows["one"]["resumed_after_blocks"] < BLOCKS
    assert rows["two"]["resumed_after_blocks"] == 0
    assert stream_of(folder / "one.mp4") == single
    assert not list(folder.glob("*.state"))
    assert not list(folder.glob("*.part*"))


def started(manifest: Path, folder: Path) -> subprocess.Popen[str]:
    return start("batch", manifest, "-c", "tiny", "--output-dir", folder)


def test_an_interrupted_batch_ends_after_the_block_and_goes_on_later(
    long: Path, single: list[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    manifest = jobs_of(tmp_path, long, "one", "two")
    process = started(manifest, folder)
    until((folder / "one.state").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "run the same command again to go on" in err
    rows = {row["id"]: row for row in rows_of(folder / "report.jsonl")}
    assert {i: row["status"] for i, row in rows.items()} == {
        "one": "interrupted",
        "two": "not-run",
    }
    assert rows["one"]["error_code"] == 130
    stream_of(folder / "one.part.mp4")  # playable
    done = batch(manifest, folder)
    assert done.code == 0, done.err
    rows = {row["id"]: row for row in rows_of(folder / "report.jsonl")}
    assert {row["status"] for row in rows.values()} == {"done"}
    assert rows["one"]["resumed_after_blocks"] >= 1
    assert stream_of(folder / "one.mp4") == single


@pytest.mark.slow
def test_a_killed_batch_takes_its_workers_along_and_goes_on_later(
    long: Path, single: list[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    manifest = jobs_of(tmp_path, long, "one", "two")
    process = started(manifest, folder)
    until((folder / "one.state").exists)
    process.kill()
    process.communicate(timeout=60)
    assert not (folder / "report.jsonl").exists()
    done = batch(manifest, folder)
    assert done.code == 0, done.err
    rows = {row["id"]: row for row in rows_of(folder / "report.jsonl")}
    assert {row["status"] for row in rows.values()} == {"done"}
    assert rows["one"]["resumed_after_blocks"] >= 1
    assert stream_of(folder / "one.mp4") == single
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["report.jsonl", *(f"{i}.{s}" for i in ("one", "two") for s in ("mp4", "json"))]
    )


def test_fail_fast_hands_out_no_more_and_limit_holds_back(long: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    manifest = jobs_of(tmp_path, long, "one", "two", "three")
    (tmp_path / "copy.safetensors").write_bytes(long.read_bytes())
    text = manifest.read_text().replace(str(long), "copy.safetensors", 1)
    manifest.write_text(text)
    request = BatchRequest(
        manifest, options(), Asked(("tiny",)), folder, fail_fast=True, limit=2, jobs=1
    )

    def spoil(event: Any) -> None:
        if event.name == "job_start":  # good when it was checked, gone when it runs
            (tmp_path / "copy.safetensors").unlink(missing_ok=True)

    summary = Batch(request, notes=Notes(), listener=spoil).run()
    assert (summary.done, summary.failed, summary.not_run) == (0, 1, 2)
    assert summary.exit_code == 1
    rows = {row["id"]: row for row in rows_of(folder / "report.jsonl")}
    assert (rows["one"]["status"], rows["one"]["error_code"]) == ("failed", 3)
    assert {rows["two"]["status"], rows["three"]["status"]} == {"not-run"}
