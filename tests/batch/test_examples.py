"""The example scripts for schedulers: every job of a manifest in exactly one task."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .manifests import rows_of, write_lines

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = 19
#: A job that fails when it is checked: it costs no run, and it is in the report of its shard.
BAD = {"seed": -1}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "my jobs.jsonl", [{"id": f"j{n}", **BAD} for n in range(JOBS)])


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which `sanawm` is the one under test."""
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{here}:{os.environ['PATH']}", **more}


def check(folder: Path, shards: int) -> None:
    """Check that the reports of all shards hold every job once."""
    reports = sorted(folder.glob("report-*.jsonl"))
    assert [r.name for r in reports] == [
        f"report-{i}-of-{shards}.jsonl" for i in range(1, shards + 1)
    ]
    ids = [row["id"] for report in reports for row in rows_of(report)]
    assert sorted(ids) == sorted(f"j{n}" for n in range(JOBS))


@pytest.mark.slow
def test_the_tasks_of_the_slurm_array_cover_the_manifest(manifest: Path, tmp_path: Path) -> None:
    script = EXAMPLES / "slurm_array.sh"
    text = script.read_text(encoding="utf-8")
    first, last = re.findall(r"^#SBATCH --array=(\d+)-(\d+)$", text, re.MULTILINE)[0]
    assert (first, re.findall(r"^SHARDS=(\d+)", text, re.MULTILINE)) == ("1", [last])
    for task in range(1, int(last) + 1):
        done = subprocess.run(
            ["bash", script, manifest, tmp_path / "out", "-c", "tiny"],
            env=environment(SLURM_ARRAY_TASK_ID=str(task)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr  # its jobs are bad
        assert done.stdout.strip().endswith(f"report-{task}-of-{last}.jsonl")
    check(tmp_path / "out", int(last))


def test_the_slurm_script_says_what_it_misses(tmp_path: Path) -> None:
    script = EXAMPLES / "slurm_array.sh"
    for arguments, word in ([], "usage"), (["m", "o"], "for sbatch"):
        done = subprocess.run(
            ["bash", script, *arguments],
            env={k: v for k, v in environment().items() if not k.startswith("SLURM")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, word in done.stderr) == (1, True)


@pytest.mark.slow
def test_the_pods_of_the_indexed_job_cover_the_manifest(manifest: Path, tmp_path: Path) -> None:
    spec = yaml.safe_load((EXAMPLES / "k8s_indexed_job.yaml").read_text(encoding="utf-8"))["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    given = {row["name"]: row["value"] for row in container["env"]}
    assert spec["completionMode"] == "Indexed"
    assert str(spec["completions"]) == given["SHARDS"]
    given |= {"MANIFEST": str(manifest), "OUTPUT_DIR": str(tmp_path / "out"), "CONFIG": "tiny"}
    for index in range(spec["completions"]):
        done = subprocess.run(
            [*container["command"], *container["args"]],
            env=environment(**given, JOB_COMPLETION_INDEX=str(index)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr
    check(tmp_path / "out", spec["completions"])
