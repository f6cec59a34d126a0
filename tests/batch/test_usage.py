"""What `sanawm batch` refuses, with which exit code, and what it says to a person."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sanawm.cli.batch_view import counts_line, table_of

from sanawm.batch.engines import device_masks
from sanawm.batch.progress import Progress, Running, clock
from tests.cli.command import sanawm

from .manifests import batch, rows_of, write_lines

OPTIONS = (
    "--config", "--set", "--overwrite", "--engine", "--jobs", "--shard", "--output-dir",
    "--strict", "--fail-fast", "--limit", "--dry-run", "--gpus-per-job", "--cpus-per-job",
    "--ray-address", "--report",
)  # fmt: skip


def test_help_names_every_option() -> None:
    done = sanawm("batch", "--help")
    assert done.code == 0
    assert [name for name in OPTIONS if name not in done.out] == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["m.txt"], "the name ends in '.txt'"),
        (["m.jsonl", "--jobs", "0"], "--jobs 0: expected at least 1"),
        (["m.jsonl", "--limit", "0"], "--limit 0"),
        (["m.jsonl", "--cpus-per-job", "0"], "--cpus-per-job 0"),
        (["m.jsonl", "--gpus-per-job", "-1"], "--gpus-per-job -1"),
        (["m.jsonl", "--gpus-per-job", "nan"], "--gpus-per-job nan"),
        (["m.jsonl", "--gpus-per-job", "0.5"], "needs --engine ray"),
        (["m.jsonl", "--engine", "slurm"], "expected local or ray"),
        (["m.jsonl", "--ray-address", "auto"], "goes with --engine ray"),
        (["m.jsonl", "--shard", "8/7"], "expected 1/7 to 7/7"),
        (["m.jsonl", "--nosuch"], "No such option"),
        ([], "Missing argument"),
    ],
)
def test_usage_errors_exit_2_and_import_no_torch(
    arguments: list[str], word: str, tmp_path: Path
) -> None:
    write_lines(tmp_path / "m.jsonl", [{"id": "a"}])
    (tmp_path / "m.txt").touch()
    code = (
        "import sys\nfrom sanawm.cli.app import main\n"
        f"try:\n    main(['batch', '--output-dir', 'out', *{arguments!r}])\n"
        "except SystemExit as e:\n    print(e.code, 'torch' in sys.modules, 'av' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.strip() == "2 False False", done.stderr
    assert word in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lines", "more", "code", "word"),
    [
        ([], (), 2, "it holds no job"),
        ([{"defaults": {"promt": "x"}}, {"id": "a"}], (), 2, "defaults: unknown key 'promt'"),
        ([{"defaults": {"seed": -1}}, {"id": "a"}], (), 2, "seed (defaults)"),
        ([{"id": "a"}], ("--set", "video.crff=3"), 2, "unknown key 'video.crff'"),
        ([{"id": "a"}], ("-c", "nosuch.toml"), 3, "no such file"),
        ([{"id": "a"}], ("--report", "r.txt"), 2, "expected .jsonl"),
    ],
)
def test_what_is_wrong_for_all_jobs_refuses_the_batch(
    lines: list[Any], more: tuple[str, ...], code: int, word: str, tmp_path: Path
) -> None:
    done = batch(write_lines(tmp_path / "m.jsonl", lines), tmp_path / "out", *more)
    assert done.code == code, done.err
    assert word in done.error
    assert not (tmp_path / "out").exists()


def test_a_manifest_that_is_not_there_exits_3(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "no.jsonl", "no such file"), (tmp_path, "it is a folder")):
        done = batch(path, tmp_path / "out")
        assert (done.code, word in done.error, "fix: " in done.error) == (3, True, True)
    assert not (tmp_path / "out").exists()


def test_every_refusal_says_what_to_do(tmp_path: Path) -> None:
    empty = write_lines(tmp_path / "e.jsonl", [])
    one = write_lines(tmp_path / "m.jsonl", [{"id": "a", "seed": -1}])
    for more in (("--jobs", 0), ("--shard", "abc"), ("--engine", "slurm")):
        assert "fix: use --" in batch(one, tmp_path / "out", *more).error
    assert 'fix: write one job a line, like {"id"' in batch(empty, tmp_path / "out").error
    done = batch(one, tmp_path / "out", "--strict")
    assert "1 of 1 job is bad" in done.error
    assert "fix: correct it, or leave --strict out" in done.error
    lines = ['{"id": ', "3", {"id": "a"}, {"id": "a"}]
    done = batch(write_lines(tmp_path / "n.jsonl", lines), tmp_path / "out", "--dry-run")
    assert done.err.count("fix: write one object a line, like {") == 2
    assert "'a' is that of line 3 already\n" in done.err
    assert "fix: give every job a name of its own" in done.err
    assert done.out == "4 jobs, 3 bad\n"


def test_why_there_is_nothing_to_do(tmp_path: Path) -> None:
    bad = write_lines(tmp_path / "bad.jsonl", [{"id": "a", "seed": -1}])
    done = batch(bad, tmp_path / "out", "--dry-run")
    assert "1 job: 0 to make, 0 done already, 1 bad\n" in done.err
    assert "nothing to do: the job is bad" in done.err
    done = batch(bad, tmp_path / "out", "--shard", "2/2", "--dry-run")
    assert "nothing to do: the manifest has 1 job, none of them is in this shard" in done.err
    two = write_lines(tmp_path / "two.jsonl", [{"id": "a", "seed": -1}, "x"])
    assert "nothing to do: all jobs are bad" in batch(two, tmp_path / "out", "--dry-run").err


def test_a_part_file_of_someone_else_makes_a_job_bad(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.part.mp4").write_bytes(b"my holidays")
    (folder / "report.part.jsonl").write_bytes(b"my notes")
    manifest = write_lines(tmp_path / "m.jsonl", [{"id": "a"}])
    done = batch(manifest, folder, "--dry-run")
    assert "a.part.mp4 exists and was not made by sanawm" in done.err
    done = batch(manifest, folder)
    assert (done.code, "report.part.jsonl exists and was not made" in done.error) == (5, True)
    assert (folder / "a.part.mp4").read_bytes() == b"my holidays"
    assert (folder / "report.part.jsonl").read_bytes() == b"my notes"
    assert "1 to make" in batch(manifest, folder, "--overwrite", "--dry-run").err


def test_a_batch_that_is_stopped_at_once_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_signal(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sanawm.batch.run.Batch._say_start", second_signal)
    done = batch(write_lines(tmp_path / "m.jsonl", [{"id": "a"}]), tmp_path / "out")
    assert done.code == 130
    assert "error: interrupted; the jobs that were done are kept\n" in done.err
    assert "fix: run the same command again to go on: done jobs are skipped" in done.err


def test_an_output_folder_is_needed(tmp_path: Path) -> None:
    manifest = write_lines(tmp_path / "m.jsonl", [{"id": "a"}])
    done = sanawm("batch", manifest)
    assert (done.code, "add --output-dir" in done.error) == (2, True)
    (tmp_path / "file").touch()
    assert batch(manifest, tmp_path / "file").code == 5


def test_an_unknown_column_refuses_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("id,promt\na,x\n")
    done = batch(path, tmp_path / "out")
    assert done.code == 2
    assert "its first line: unknown key 'promt'" in done.error


BAD = (
    ({"id": "a", "seed": -1}, 2, "seed (line 1)"),
    ({"id": "a", "latents": "no.safetensors"}, 3, "no.safetensors"),
    ({"id": "a", "prompt": "x", "prompt-file": "y"}, 2, "exclude each other"),
    ({"id": "a", "config": "nosuch.toml"}, 3, "nosuch.toml"),
    ({"id": "a", "device": "cuda:77"}, 4, "cuda:77"),
    ({"id": "a", "encoder": "nosuch"}, 4, "nosuch"),
    ({"id": "a", "save-camera": "nowhere/c.npy"}, 5, "does not exist"),
    ({"id": "a", "num-frames": 1}, 2, "frames"),
)


@pytest.mark.parametrize(("job", "code", "word"), BAD, ids=[str(b[2]) for b in BAD])
def test_a_bad_job_has_the_exit_code_that_refine_would_have(
    job: dict[str, Any], code: int, word: str, tmp_path: Path
) -> None:
    manifest = write_lines(tmp_path / "m.jsonl", [job])
    assert batch(manifest, tmp_path / "out").code == 1
    (row,) = rows_of(tmp_path / "out" / "report.jsonl")
    assert (row["error_code"], row["status"], row["id"]) == (code, "failed", "a")
    assert word in row["error"]


def test_two_jobs_do_not_write_one_file(tmp_path: Path) -> None:
    jobs = [
        {"id": "a", "save-camera": "c.npy"},
        {"id": "b", "save-camera": "c.npy"},
        {"id": "a.part"},
        {"id": "d", "preview": "out/a.png", "save-camera": "d.npy"},
        {"id": "e", "preview": "out/a.png"},
    ]
    (tmp_path / "out").mkdir()
    done = batch(write_lines(tmp_path / "m.jsonl", jobs), tmp_path / "out", "--dry-run")
    assert "line 2 (id b) is bad: it would write" in done.err
    assert "line 3 (id a.part) is bad: it would write" in done.err
    assert "line 5 (id e) is bad: it would write" in done.err
    assert "2 to make" in done.err
    assert list((tmp_path / "out").iterdir()) == []


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(b"my holidays")
    (folder / "b.json").write_text('{"mine": 1}')
    (folder / "c.npy").write_bytes(b"mine")
    jobs = [{"id": "a"}, {"id": "b", "seed": 1}, {"id": "c", "save-camera": "out/c.npy"}]
    manifest = write_lines(tmp_path / "m.jsonl", jobs)
    done = batch(manifest, folder)
    assert done.code == 1
    assert "a.mp4 exists, and it was made with other settings" in done.err
    assert "b.json exists, and it is no report" in done.err
    assert "save-camera: " in done.err
    assert [row["error_code"] for row in rows_of(folder / "report.jsonl")] == [5, 5, 5]
    assert (folder / "a.mp4").read_bytes() == b"my holidays"
    assert "3 to make" in batch(manifest, folder, "--overwrite", "--dry-run").err


def test_ray_that_is_not_installed_is_a_limit_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    manifest = write_lines(tmp_path / "m.jsonl", [{"id": "a"}])
    done = batch(manifest, tmp_path / "out", "--engine", "ray")
    assert done.code == 4
    assert "pip install 'sanawm[ray]'" in done.error
    assert [r["status"] for r in rows_of(tmp_path / "out" / "report.jsonl")] == ["not-run"]


def test_each_process_sees_its_own_devices() -> None:
    assert device_masks(3, count=4, each=1, visible=None) == ["0", "1", "2"]
    assert device_masks(2, count=4, each=2, visible="7,6,5,4") == ["7,6", "5,4"]
    assert device_masks(3, count=2, each=1, visible="GPU-a,GPU-b") == ["GPU-a", "GPU-b", "GPU-a"]
    assert device_masks(2, count=2, each=0, visible=None) == ["", ""]


def test_the_table_shows_running_jobs_counts_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    progress = Progress(total=10, skipped=1, done=2, failed=1, left=6, work_left=60, work_done=30)
    progress.began = 40.0
    progress.video_seconds = 30.0
    progress.running = {
        str(n): Running(f"clip {n}", f"worker {n}", 90.0, block=n, blocks=4) for n in range(20)
    }
    out = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    out.print(table_of(progress))
    text = out.export_text()
    assert "worker 1" in text
    assert "clip 1" in text
    assert "block 1/4" in text
    assert "0:10" in text
    assert "and 4 more" in text
    progress.running = {"0": Running("a", "w", 90.0, block=2, blocks=4)}
    # 30 units and half a job of 10 in 60 s; 55 are left.
    assert counts_line(progress) == (
        "1 running · 2 done · 1 skipped · 1 failed · 5 waiting · 1:34 left · 0.50x real time"
    )


def test_no_time_is_guessed_before_anything_is_done() -> None:
    progress = Progress(total=3, left=3, work_left=30)
    assert progress.seconds_left is None
    assert progress.realtime_factor is None
    assert (clock(None), clock(59.6), clock(3723)) == ("?", "1:00", "1:02:03")
