"""Runs that are killed at random moments: what is left plays, and `--resume` gives the same clip.

Three kills in the default suite, twenty in the slow one (`make test-slow`); figures are printed at
the end of the test run.
"""

from __future__ import annotations

import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .forked import Ended, Running, started
from .tiny_runs import (
    BLOCKS,
    FINISHED,
    FRAMES,
    Decoded,
    decode,
    events,
    full,
    report_of,
    same_rows,
)

#: Flags of each kind of run, besides those of `full`, and the reference that it must equal.
KINDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "image": ("image", ()),
    "overlap": ("image", ("--schedule", "overlap")),
    "every2": ("image", ("--state-every", 2)),
    "latents": ("latents", ("--latents", "../image/out.safetensors")),
    "video": ("video", ("--video", "../image/out.mp4")),
}


@dataclass(frozen=True)
class Yard:
    """A folder with uninterrupted runs, and folders of stopped ones beside them."""

    root: Path

    def run(self, name: str, *flags: object) -> Ended:
        """Run to the end in the folder `name`."""
        with self.start(name, *flags) as running:
            return running.end()

    def start(self, name: str, *flags: object) -> AbstractContextManager[Running]:
        """Start a run that writes everything in the folder `name`."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return started(*full(*flags), folder=folder, env={"SANAWM_CACHE": str(self.root / "cache")})

    def reference(self, kind: str) -> Path:
        """Return the folder of the uninterrupted run of a kind."""
        name = KINDS[kind][0]
        for needed in dict.fromkeys(("image", name)):  # the others read what it made
            if not (self.root / needed / "out.mp4").exists():
                ended = self.run(needed, *KINDS[needed][1])
                assert ended.code == 0, ended.err
        return self.root / name


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return Yard(tmp_path_factory.mktemp("yard"))


#: Called with a name and a value: pytest's `record_property`; the sums are printed at the end.
Record = Callable[[str, object], None]


def stopped(yard: Yard, kind: str, name: str, stop: Callable[[Running], None], *more: str) -> Ended:
    """Start a run of a kind, stop it with `stop`, and return how it ended."""
    with yard.start(name, *KINDS[kind][1], *more) as running:
        stop(running)
        return running.end()


def killed(yard: Yard, kind: str, name: str, stop: Callable[[], Callable[[Running], None]]) -> None:
    """Start a run of a kind and kill it; one that was faster than the kill is started again."""
    for _ in range(8):
        ended = stopped(yard, kind, name, stop())
        if ended.code == -9:
            return
        assert ended.code == 0, ended.err
        shutil.rmtree(yard.root / name)
    pytest.fail("the run always ended before the kill")


def check_resume(yard: Yard, kind: str, name: str, record: Record) -> None:
    """Check what a stopped run left, resume it, and compare it with the reference."""
    reference, folder = yard.reference(kind), yard.root / name
    kept, finished = check_left(folder, reference)
    record("stops", 1)
    record("frames kept in the part files", kept)
    record("frames of finished chunks", finished)
    resumed = yard.run(name, *KINDS[kind][1], "--resume")
    assert resumed.code == 0, resumed.err
    check_equal(folder, reference)
    record("resumes equal", 1)
    shutil.rmtree(folder)


def check_left(folder: Path, reference: Path) -> tuple[int, int]:
    """Check the part file of a stopped run against its log: it plays, and holds what was said.

    Return its frames, and those of all finished chunks but the newest.
    """
    log = folder / "log.jsonl"
    done = [e["index"] + 1 for e in events(log, "block_done")] if log.exists() else []
    written = [e["frames"] for e in events(log, "chunk_written")] if done else []
    part = folder / "out.part.mp4"
    if not part.exists() and not done:
        return 0, 0
    found = decode(folder / "out.mp4" if not part.exists() else part)
    whole = decode(reference / "out.mp4")
    count = len(found.frames)
    finished = FRAMES // BLOCKS * (done[-1] - 1) if done else 0
    assert count >= finished
    assert (
        count >= (written[-1] if written else 0) - 1
    )  # of what is in the file, at most the newest frame is missing
    assert found == Decoded(whole.frames[:count], whole.times[:count])
    return count, finished


def check_equal(folder: Path, reference: Path) -> None:
    """Check that a resumed run made what an uninterrupted one makes, and left nothing else."""
    assert {p.name for p in folder.iterdir()} == FINISHED
    for name in ("out.safetensors", "noise.safetensors", "camera.npy"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name
    assert decode(folder / "out.mp4") == decode(reference / "out.mp4")
    pictures = sorted(p.name for p in (reference / "frames").iterdir())
    assert sorted(p.name for p in (folder / "frames").iterdir()) == pictures
    for picture in pictures:
        a, b = (root / "frames" / picture for root in (folder, reference))
        assert a.read_bytes() == b.read_bytes(), picture
    found, wanted = report_of(folder / "out.mp4"), report_of(reference / "out.mp4")
    assert found["status"] == "done"
    assert found["frames"] == wanted["frames"]
    assert same_rows(found["blocks"], wanted["blocks"])


def after(blocks: int, delay: float, *numbers: int) -> Callable[[Running], None]:
    """Return a way to stop a run: signals, `delay` seconds after `blocks` blocks are done."""

    def stop(running: Running) -> None:
        running.wait_for("\nblock " if blocks else "model ", max(blocks, 1))
        time.sleep(delay)
        for number in numbers:
            running.send(number)
            time.sleep(0.01)

    return stop


@pytest.mark.parametrize(
    ("kind", "blocks"), [("image", 1), ("overlap", 4), ("video", 6)], ids=lambda v: str(v)
)
def test_kill_and_resume(yard: Yard, record_property: Record, kind: str, blocks: int) -> None:
    """A block takes about 0.1 s, so the kill falls into any part of one."""
    yard.reference(kind)
    killed(yard, kind, "a", lambda: after(blocks, random.uniform(0, 0.1), signal.SIGKILL))
    check_resume(yard, kind, "a", record_property)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_kill_at_any_time(yard: Yard, record_property: Record, number: int) -> None:
    """From the first line of the run to its last."""
    kind = list(KINDS)[number % len(KINDS)]
    rows = report_of(yard.reference(kind) / "out.mp4")["timeline"]
    begin = min(row["start"] for row in rows if row["stage"].startswith("load"))
    seconds = max(row["stop"] for row in rows) - begin
    killed(yard, kind, "b", lambda: after(0, random.uniform(0, seconds), signal.SIGKILL))
    check_resume(yard, kind, "b", record_property)


def test_kill_while_resuming(yard: Yard, record_property: Record) -> None:
    kind = "every2"
    yard.reference(kind)
    killed(yard, kind, "c", lambda: after(4, 0.02, signal.SIGKILL))
    ended = stopped(yard, kind, "c", after(1, 0.05, signal.SIGKILL), "--resume")
    assert ended.code == -9, ended.err
    check_resume(yard, kind, "c", record_property)


@pytest.mark.parametrize(
    ("numbers", "code", "kind"),
    [
        ((signal.SIGINT,), 130, "latents"),
        ((signal.SIGTERM,), 143, "image"),
        ((signal.SIGINT, signal.SIGINT), 130, "overlap"),
    ],
    ids=lambda v: "+".join(n.name for n in v) if isinstance(v, tuple) else str(v),
)
def test_stop_and_resume(
    yard: Yard,
    record_property: Record,
    numbers: tuple[signal.Signals, ...],
    code: int,
    kind: str,
) -> None:
    yard.reference(kind)
    ended = stopped(yard, kind, "d", after(2, 0.03, *numbers))
    assert ended.code == code, ended
    assert "stopping after the block in hand" in ended.err
    if len(numbers) == 1:
        words = shlex.join(str(w) for w in (*full(*KINDS[kind][1]), "--resume"))
        assert ended.err.endswith(f"\n  fix: continue with: sanawm {words}\n")
        assert report_of(yard.root / "d" / "out.mp4")["status"] == "interrupted"
    check_resume(yard, kind, "d", record_property)


@pytest.mark.parametrize("kind", ["image", "latents", "video"])
def test_the_plan_knows_the_size_of_the_state(yard: Yard, kind: str) -> None:
    log = yard.reference(kind) / "log.jsonl"
    (line,) = (x for x in events(log, "run_start")[0]["lines"] if x.startswith("state "))
    said, unit = re.search(r"about ([\d.]+) (kB|MB) after every block -> out.state", line).groups()
    measured = events(log, "state_saved")[-1]["bytes"]
    assert float(said) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(measured, rel=0.08)
