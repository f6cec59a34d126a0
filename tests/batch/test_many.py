"""Two hundred jobs: on processes of this machine, and on a Ray cluster whose workers are killed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.command import finish, sanawm, start

from .manifests import batch, rows_of, stream_of, write_lines

pytestmark = pytest.mark.slow

LINES = 200
BROKEN = 20
TWINS = 5
WORKER_KILLS = 3


class Many(NamedTuple):
    """The manifest, its good ids, and for each of them the video of a single run."""

    manifest: Path
    ids: list[str]
    singles: Path

    def check(self, folder: Path) -> None:
        """Compare every output with its single run, and look for anything else."""
        for id_ in self.ids:
            assert stream_of(folder / f"{id_}.mp4") == stream_of(self.singles / f"{id_}.mp4"), id_
        left = {path.name for path in folder.iterdir()}
        assert left == {f"{i}.{s}" for i in self.ids for s in ("mp4", "json")} | {"report.jsonl"}


def job(number: int, latents: Path) -> dict[str, Any]:
    """Return the recipe of a job: four prompts, a seed of its own, every fourth with stage 1."""
    recipe: dict[str, Any] = {"prompt": f"tower number {number % 4}", "seed": number}
    if number % 4:
        return {**recipe, "latents": str(latents)}
    frames = 37 if number % 20 else 97
    return {**recipe, "num-frames": frames, "height": 32, "width": 48}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, latents: Path) -> Many:
    """200 lines, one in ten of them bad, five pairs with one recipe; and the single runs."""
    folder = tmp_path_factory.mktemp("many")
    bad = ('{"id": "j#", "seed": -1}', '{"id": "j0"}', "{", '{"id": "j#", "image": "no.png"}')
    lines: list[Any] = []
    good: dict[str, dict[str, Any]] = {}
    for n in range(LINES):
        if n % 10 == 7:
            lines.append(bad[n // 10 % len(bad)].replace("#", str(n)))
            continue
        number = len(good)
        first_twin = LINES - BROKEN - 2 * TWINS
        if number >= first_twin:
            number = first_twin + (number - first_twin) // 2
        good[f"j{n}"] = job(number, latents)
        lines.append({"id": f"j{n}", **good[f"j{n}"]})
    singles = folder / "singles"
    singles.mkdir()
    made: dict[str, Path] = {}
    for id_, recipe in good.items():
        target, key = singles / f"{id_}.mp4", json.dumps(recipe)
        if key in made:
            shutil.copy(made[key], target)
            continue
        flags = [part for name, value in recipe.items() for part in (f"--{name}", value)]
        done = sanawm("refine", "-c", "tiny", *flags, "-o", target)
        assert done.code == 0, done.err
        made[key] = target
    assert (len(good), len(made)) == (LINES - BROKEN, LINES - BROKEN - TWINS)
    return Many(write_lines(folder / "jobs.jsonl", lines), list(good), singles)


def test_two_hundred_jobs_on_two_processes(
    many: Many, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = tmp_path / "out"
    began = time.monotonic()
    done = batch(many.manifest, folder, "--jobs", 2)
    seconds = time.monotonic() - began
    assert done.code == 1, done.err
    rows = rows_of(folder / "report.jsonl")
    statuses = Counter(row["status"] for row in rows)
    assert statuses == {"done": LINES - BROKEN, "failed": BROKEN}
    assert sorted(row["line"] for row in rows) == list(range(1, LINES + 1))
    shared = sum(row["shared_with"] is not None for row in rows)
    assert shared == TWINS
    many.check(folder)

    before = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.mp4")}
    again = time.monotonic()
    second = batch(many.manifest, folder, "--jobs", 2)
    assert second.code == 1
    assert "nothing to do" in second.err
    rows = rows_of(folder / "report.jsonl")
    assert Counter(r["status"] for r in rows) == {"skipped": LINES - BROKEN, "failed": BROKEN}
    assert {p.name: p.stat().st_mtime_ns for p in folder.glob("*.mp4")} == before
    record_property(
        "local, 2 processes",
        f"{LINES} lines, {statuses['done']} done of which {shared} shared, "
        f"{BROKEN} bad, in {seconds:.0f} s; the second run took {time.monotonic() - again:.1f} s",
    )


class Cluster(NamedTuple):
    """A Ray cluster on this machine with two cores, and the environment of who may join it."""

    address: str
    environment: dict[str, str]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Start a head node as a process of its own, and end it with all that it started.

    Ray asks for a token; this one is made for this cluster and known to nobody else.
    """
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, **own}
    ray = Path(sys.executable).with_name("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        ray, "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port),
        "--num-cpus", "2", "--num-gpus", "0", "--include-dashboard", "false",
        "--object-store-memory", str(128 << 20), "--disable-usage-stats",
    ]  # fmt: skip
    head = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=environment,
    )  # fmt: skip
    try:
        until(lambda: _listens(port), seconds=60)
        yield Cluster(f"127.0.0.1:{port}", environment)
    finally:
        head.send_signal(signal.SIGTERM)  # `ray start --block` ends its node then
        try:
            head.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def done_rows(report: Path) -> list[dict[str, Any]]:
    """Return the whole rows of a growing report whose jobs a worker has made."""
    rows = []
    for line in report.read_text(encoding="utf-8").splitlines() if report.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["status"] == "done":
            rows.append(row)
    return rows


def next_worker(report: Path, *, after: int, killed: list[int]) -> int:
    """Wait until more than `after` jobs are done; return a worker that is in the middle of one."""

    def busy() -> list[int]:
        rows = done_rows(report)[after:]
        alive = {int(row["worker"].rpartition(":")[2]) for row in rows} - set(killed)
        return [pid for pid in alive if _has_state(pid, report.parent)]

    found: list[int] = []
    until(lambda: bool(found.extend(busy()) or found))
    return found[0]


def _has_state(pid: int, folder: Path) -> bool:
    """Tell whether a process is writing a video of which a block is finished and kept."""
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            path = link.readlink()
            stem = path.name.removesuffix(".part.mp4")
            if stem != path.name and (folder / f"{stem}.state").exists():
                return True
    return False


@pytest.mark.cluster
def test_two_hundred_jobs_on_a_cluster_that_is_shot_at(
    many: Many,
    cluster: Cluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    folder = tmp_path / "out"
    part = folder / "report.part.jsonl"
    command = (
        "batch", many.manifest, "-c", "tiny", "--output-dir", folder,
        "--engine", "ray", "--ray-address", cluster.address, "--jobs", 2,
    )  # fmt: skip
    began = time.monotonic()
    driver = start(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=cluster.environment
    )
    killed: list[int] = []
    try:
        for number in range(WORKER_KILLS):
            pid = next_worker(part, after=15 * number, killed=killed)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        until(lambda: len(done_rows(part)) >= 15 * (WORKER_KILLS + 1))
    finally:
        driver.kill()
        driver.wait()
    first = done_rows(part)
    at_kill = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.mp4") if ".part" not in p.name}
    assert not (folder / "report.jsonl").exists()

    second = finish(start(*command, env=cluster.environment), seconds=900)
    seconds = time.monotonic() - began
    assert second.code == 1, second.err
    rows = rows_of(folder / "report.jsonl")
    statuses = Counter(row["status"] for row in rows)
    assert sorted(row["line"] for row in rows) == list(range(1, LINES + 1))
    assert statuses["failed"] == BROKEN
    assert statuses["done"] + statuses["skipped"] == LINES - BROKEN
    done_twice = {r["id"] for r in first} & {r["id"] for r in rows if r["status"] == "done"}
    assert done_twice == set()
    now = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.mp4")}
    assert {name: now[name] for name in at_kill} == at_kill
    many.check(folder)
    made = [*first, *(r for r in rows if r["status"] == "done")]
    resumed = [r["id"] for r in made if r["resumed_after_blocks"]]
    assert resumed
    record_property(
        "ray, 2 actors",
        f"{LINES} lines; workers killed: {len(killed)}, driver killed after "
        f"{len(first)} jobs; rerun: {statuses['skipped']} skipped, {statuses['done']} done, "
        f"{statuses['failed']} bad; {len({r['worker'] for r in made if r['worker']})} actor "
        f"processes, {len(resumed)} jobs continued after a block; "
        f"made twice: {len(done_twice)}, torn or lost: 0; {seconds:.0f} s in all",
    )
