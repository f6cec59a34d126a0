"""A batch of a dozen lines by two processes: equal to single runs, reported, and done only once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import sanawm

from .manifests import BROKEN, MIXED, Batched, batch, rows_of, stream_of, write_lines

IDS = [str(job["id"]) for job in MIXED]


@pytest.mark.parametrize("id_", IDS)
def test_a_job_gives_the_bits_of_a_single_run(mixed: Batched, singles: Path, id_: str) -> None:
    assert stream_of(mixed.folder / f"{id_}.mp4") == stream_of(singles / f"{id_}.mp4")


def test_every_line_has_its_row(mixed: Batched) -> None:
    good = {row["id"]: row for row in mixed.rows if row["status"] == "done"}
    assert sorted(good) == sorted(IDS)
    for id_, row in good.items():
        assert row["output"] == str(mixed.folder / f"{id_}.mp4")
        assert Path(row["output"]).is_file()
        assert Path(row["report"]).is_file()
        assert (row["error"], row["error_code"]) == (None, None)
        assert (row["seconds"] > 0) == (row["shared_with"] is None)
    bad = {row["line"]: row for row in mixed.rows if row["status"] == "failed"}
    assert len(bad) == len(BROKEN)
    for number, (_, word) in enumerate(BROKEN):
        row = bad[4 + 3 * number]
        assert word in row["error"].lower() or word in row["error"]
        assert row["error_code"] == 2
        assert row["output"] is None


def test_bad_lines_are_shown_and_the_report_is_the_result(mixed: Batched) -> None:
    assert mixed.done.out.strip() == str(mixed.folder / "report.jsonl")
    assert "line 7 (id ../climb) is bad" in mixed.done.err
    assert "9 done (1 shared another's result), 0 skipped, 4 failed (4 bad lines)" in mixed.done.err
    assert not (mixed.folder / "report.part.jsonl").exists()
    assert not (mixed.folder.parent.parent / "climb.mp4").exists()


def test_jobs_with_one_recipe_run_once(mixed: Batched) -> None:
    assert mixed.row("twin")["shared_with"] == "first"
    assert mixed.row("first")["shared_with"] is None
    first, twin = (mixed.folder / f"{name}.mp4" for name in ("first", "twin"))
    assert first.samefile(twin) or first.read_bytes() == twin.read_bytes()


def test_nothing_is_left_beside_the_outputs(mixed: Batched) -> None:
    expected = {f"{id_}{suffix}" for id_ in IDS for suffix in (".mp4", ".json")}
    assert {path.name for path in mixed.folder.iterdir()} == expected | {"report.jsonl"}


def test_the_second_run_does_nothing_and_says_so(mixed: Batched, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(mixed.folder, folder)
    before = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.mp4")}
    done = batch(mixed.manifest, folder)
    assert done.code == 1  # the bad lines are still bad
    assert "nothing to do" in done.err
    assert {p.name: p.stat().st_mtime_ns for p in folder.glob("*.mp4")} == before
    rows = rows_of(folder / "report.jsonl")
    statuses = [row["status"] for row in rows]
    assert statuses.count("skipped") == len(MIXED)
    for row in rows:  # what is known of the finished jobs stays in the report
        if row["status"] == "skipped":
            made = mixed.row(row["id"])
            for key in ("frames", "recipe_sha256"):
                assert row[key] == made[key]
            assert row["output"] == str(folder / f"{row['id']}.mp4")
            assert row["report"] == str(folder / f"{row['id']}.json")
            assert row["seconds"] == 0
    assert statuses.count("failed") == len(BROKEN)


def test_strict_refuses_the_whole_manifest(mixed: Batched, tmp_path: Path) -> None:
    done = batch(mixed.manifest, tmp_path / "out", "--strict")
    assert done.code == 2
    assert "4 of 13 jobs are bad" in done.error
    assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing(mixed: Batched, tmp_path: Path) -> None:
    done = batch(mixed.manifest, tmp_path / "out", "--dry-run")
    assert done.code == 1
    assert "8 to make, 1 that share another's result, 0 done already, 4 bad" in done.err
    assert not (tmp_path / "out").exists()


def test_a_missing_job_is_linked_from_its_finished_twin(mixed: Batched, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(mixed.folder, folder)
    (folder / "first.mp4").unlink()
    done = batch(mixed.manifest, folder)
    assert "0 to make, 1 that share" in done.err
    assert (folder / "first.mp4").samefile(folder / "twin.mp4")
    rows = {row["id"]: row for row in rows_of(folder / "report.jsonl") if row["id"] == "first"}
    assert rows["first"]["shared_with"] == "twin"
    assert rows["first"]["frames"] == mixed.row("first")["frames"] > 0


def test_other_settings_replace_no_video(mixed: Batched, latents: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    shutil.copy(mixed.folder / "first.mp4", folder)
    job = {"id": "first", "prompt": "a red tower", "seed": 9, "latents": str(latents)}
    manifest = write_lines(tmp_path / "m.jsonl", [job])
    done = batch(manifest, folder, "--dry-run")
    assert "first.mp4 exists, and it was made with other settings" in done.err
    assert "fix: add --overwrite" in done.err
    batch(manifest, folder)
    (row,) = rows_of(folder / "report.jsonl")
    assert (row["status"], row["error_code"]) == ("failed", 5)
    assert "1 to make" in batch(manifest, folder, "--dry-run", "--overwrite").err


def test_the_result_on_stdout_is_one_object_in_json(mixed: Batched, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(mixed.folder, folder)
    done = sanawm(
        "--log-format", "json", "batch", mixed.manifest, "-c", "tiny", "--output-dir", folder
    )
    result = done.json
    assert result["status"] == "failed"
    assert (result["jobs"], result["skipped"]) == (13, 9)
    assert (result["failed"], result["bad_lines"]) == (4, 4)
    names = {event["event"] for event in done.events}
    assert names == {"run_start", "warning", "run_done"}
