"""Outputs: full disks, folders that go away, two runs at once, files that are someone else's."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanawm.states import RunStates

from .cli.command import ROOT, sanawm
from .forked import started
from .tiny_runs import decode, events, report_of

TINY = ROOT / "configs" / "tiny"
#: Eight blocks of 32x48 from latents that this module makes once.
SOURCE = "z.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with input files of every kind, prompt embeddings, and a finished run."""
    folder = tmp_path_factory.mktemp("made")
    clip = folder / "clip.mp4"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = sanawm(
            "refine", "--height", 32, "--width", 48, "-o", clip, "--save-stage1", SOURCE,
            "--save-prompt-embeds", "embeds.safetensors", "--save-noise", "noise.safetensors",
            "--save-camera", "camera.npy",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert sanawm(*from_latents("whole.mp4")).code == 0
    shutil.copy(TINY / "first.png", folder / "first.png")
    np.savetxt(folder / "lens.txt", [[50, 50, 48, 32]])
    return folder


def from_latents(name: str, *more: object) -> tuple[object, ...]:
    """Return the cheapest run there is: latents and prompt embeddings to video."""
    embeds = ("--prompt-embeds", "embeds.safetensors")
    return ("refine", "--latents", SOURCE, *embeds, "-o", name, *more)


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def begins_like(part: Path, whole: Path) -> int:
    """Return the frames in a part file, which must be the first ones of `whole`."""
    found, wanted = decode(part), decode(whole)
    count = len(found.frames)
    assert found.frames == wanted.frames[:count]
    assert found.times == wanted.times[:count]
    return count


# Names


def test_no_file_has_its_final_name_before_the_last_chunk_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread may be slow with the last chunk, and its state needs the part files."""
    parts = (here / "out.part.mp4", here / "kept.part.safetensors")
    seen: list[bool] = []
    written = RunStates.written

    def late(self: RunStates, number: int, *more: Any, **named: Any) -> None:
        time.sleep(0.2)
        seen.append(all(part.exists() for part in parts))
        written(self, number, *more, **named)

    monkeypatch.setattr(RunStates, "written", late)
    done = sanawm(*from_latents("out.mp4", "--save-latents", "kept.safetensors"))
    assert done.code == 0, done.err
    assert seen == [True] * 8
    assert not any(part.exists() for part in parts)


# Full disks


def test_a_limit_of_the_file_size(here: Path) -> None:
    before = contents(here)
    with started(*from_latents("out.mp4"), folder=here, file_limit=20_000) as run:
        ended = run.end()
    assert ended.code == 5, ended.err
    assert "error: out.part.mp4: file size limit reached after " in ended.err
    assert "frames are kept and playable" in ended.err
    assert "fix: raise the limit (ulimit -f)" in ended.err
    assert ended.err.count("warning: the run state cannot be kept (out.state: file size limit") == 1
    assert begins_like(here / "out.part.mp4", here / "whole.mp4") >= 12
    left = contents(here)
    assert set(left) - set(before) <= {str(here / n) for n in ("out.part.mp4", "out.json")}
    assert {name: left[name] for name in before} == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 512 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("mounting a file system needs root: run the suite as root in a container")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(here: Path, small_disk: Path) -> None:
    (small_disk / "mine").write_bytes(b"m" * 490_000)
    out = small_disk / "out.mp4"
    with started(*from_latents(str(out), "--crf", 0), folder=here) as run:
        ended = run.end()
    assert ended.code == 5, ended.err
    assert f"warning: {small_disk}: about " in ended.err
    assert " will be written there, " in ended.err
    assert f"error: {small_disk}/out.part.mp4: no space left on device after " in ended.err
    assert "frames are kept and playable" in ended.err
    assert "fix: free some space, or write to another disk" in ended.err
    assert 1 <= len(decode(small_disk / "out.part.mp4").frames) < 96
    assert not out.exists()
    assert (small_disk / "mine").read_bytes() == b"m" * 490_000
    assert {p.name for p in small_disk.iterdir()} <= {"mine", "out.part.mp4", "out.json"}


def test_a_disk_without_room_for_the_latents(here: Path, small_disk: Path) -> None:
    """Their size is known, so nothing is computed first."""
    (small_disk / "mine").write_bytes(b"m" * 500_000)
    out = small_disk / "out.safetensors"
    done = sanawm(*from_latents("out.mp4", "--save-latents", out))
    assert done.code == 5
    assert "out.part.safetensors: no space left on device" in done.err
    assert "bytes are needed for all latents" in done.err
    assert "block 1/8" not in done.err
    assert [p.name for p in small_disk.iterdir()] == ["mine"]
    assert not list(here.glob("out*"))


def test_a_read_only_disk(here: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for flags in (("--report", small_disk / "r.json"), ("--state", small_disk / "s.state")):
        done = sanawm(*from_latents("out.mp4", *flags))
        assert done.code == 5
        assert f"no permission to write in {small_disk}" in done.err
    done = sanawm(*from_latents(str(small_disk / "out.mp4")))
    assert done.code == 5
    assert "fix: choose a folder that you may write to" in done.err
    assert not list(here.glob("out*"))


def test_a_warning_when_little_is_free(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanawm.space.free_space", lambda path: 5000)
    done = sanawm(*from_latents("out.mp4", "--frames-dir", "f", "--dry-run"))
    assert done.code == 0
    assert f"warning: {here}: about " in done.err
    assert "will be written there, 5 kB are free" in done.err
    monkeypatch.setattr("sanawm.space.free_space", lambda path: 10**12)
    assert "will be written" not in sanawm(*from_latents("out.mp4", "--dry-run")).err


def test_the_estimate_covers_what_is_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, latents and state; the video's size depends on its pictures."""
    from sanawm import space

    sizes: dict[str, int] = {}
    real = space._files

    def recorded(*args: object) -> Iterator[tuple[Path, int]]:
        for path, size in real(*args):  # type: ignore[arg-type]
            sizes[str(path)] = size
            yield path, size

    monkeypatch.setattr(space, "_files", recorded)
    log = ("--log-file", "log.jsonl")
    sides = ("--frames-dir", "f", "--save-latents", "r.safetensors")
    assert sanawm(*from_latents("out.mp4", *sides, *log)).code == 0
    assert sum(p.stat().st_size for p in Path("f").iterdir()) < sizes["f"]
    assert sizes["r.safetensors"] == pytest.approx(Path("r.safetensors").stat().st_size, rel=0.05)
    states = [e["bytes"] for e in events(Path("log.jsonl"), "state_saved")]
    assert max(states) < sizes["out.state"] < 3 * max(states)


def test_a_folder_that_vanishes(here: Path) -> None:
    folder = here / "gone"
    folder.mkdir()
    before = contents(here)
    with started(*from_latents("gone/out.mp4"), folder=here) as run:
        run.wait_for("\nblock ", 1)
        run.send(signal.SIGSTOP)  # so that blocks are left when the folder is gone
        shutil.rmtree(folder)
        run.send(signal.SIGCONT)
        ended = run.end()
    assert ended.code == 5, ended.err
    assert "error: gone/out.mp4: the finished file cannot be read back" in ended.err
    line = "warning: the run state cannot be kept (output gone/out.state: the folder gone does not"
    assert ended.err.count(line) == 1
    assert "\n  fix: check the disk and its folders, and run again\n" in ended.err
    assert contents(here) == before


def test_a_closed_stdout(here: Path) -> None:
    with started(*from_latents("out.mp4"), folder=here, close_stdout=True) as run:
        ended = run.end()
    assert (ended.code, ended.out) == (0, "")
    assert "done: 96 frames" in ended.err
    assert decode(here / "out.mp4") == decode(here / "whole.mp4")


@pytest.mark.parametrize("encoder", ["nosuch", "libvpx-vp9"])
def test_an_encoder_that_is_not_there(here: Path, encoder: str) -> None:
    before = contents(here)
    done = sanawm(*from_latents("out.mp4", "--encoder", encoder))
    assert done.code == 4
    assert f"encoder '{encoder}'" in done.err
    assert "libx264" in done.err
    assert contents(here) == before


# Two runs at once


def test_two_runs_on_one_output(here: Path) -> None:
    sides = ("--frames-dir", "f", "--save-latents", "r.safetensors")
    with started(*from_latents("out.mp4", *sides), folder=here) as first:
        first.wait_for("\nblock ", 1)
        first.send(signal.SIGSTOP)  # it holds its files for as long as this test needs
        for more in ((), ("--overwrite",), ("--resume",), ("--overwrite", "--resume")):
            second = sanawm(*from_latents("out.mp4", *sides, *more))
            assert second.code == 5, second.err
            assert "block 1/8" not in second.err
        for flags in (("--frames-dir", "f"), ("--save-latents", "r.safetensors")):
            third = sanawm(*from_latents("third.mp4", *flags, "--overwrite"))
            assert third.code == 5, third.err
            assert "is being written by another run" in third.err
        first.send(signal.SIGCONT)
        ended = first.end()
    assert ended.code == 0, ended.err
    assert decode(here / "out.mp4") == decode(here / "whole.mp4")
    assert len(list((here / "f").iterdir())) == 96
    assert report_of(here / "out.mp4")["status"] == "done"
    assert not list(here.glob("*.part.*"))
    assert not list(here.glob("third*"))


@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--resume",)], ids=" ".join)
def test_two_processes_that_start_at_once(here: Path, more: tuple[str, ...]) -> None:
    """One wins, the other is refused, or comes after it; no file is of both."""
    command = from_latents("out.mp4", "--save-latents", "r.safetensors", *more)
    with started(*command, folder=here) as first, started(*command, folder=here) as second:
        ended = sorted((first.end(), second.end()), key=lambda e: e.code)
    assert ended[0].code == 0, ended[0].err
    if ended[1].code:  # else the second began when the first had ended, and was asked to replace it
        assert ended[1].code == 5, ended[1].err
        reason = ended[1].err.partition("error: ")[2]
        assert "is being written by another run" in reason or " exists" in reason, reason
        assert "block 1/8" not in ended[1].err
    else:
        assert more
    assert decode(here / "out.mp4") == decode(here / "whole.mp4")
    report = report_of(here / "out.mp4")
    assert (report["status"], report["output"]["frames"]) == ("done", 96)
    assert not list(here.glob("*.part.*"))
    assert not (here / "out.state").exists()


# Files of others


OUTPUTS = {
    "-o": "kept.mp4",
    "--save-latents": "kept.safetensors",
    "--save-prompt-embeds": "kept.safetensors",
    "--save-noise": "kept.safetensors",
    "--save-camera": "kept.npy",
    "--preview": "kept.png",
    "--report": "kept.json",
    "--frames-dir": "kept",
    "--state": "kept.state",
    "--log-file": "kept.jsonl",
}


@pytest.mark.parametrize("flag", OUTPUTS)
def test_nothing_that_exists_is_overwritten(here: Path, flag: str) -> None:
    target = here / OUTPUTS[flag]
    if flag == "--frames-dir":
        target.mkdir()
        (target / "frame_000000.png").write_bytes(b"mine")
    else:
        target.write_bytes(b"mine")
    before = contents(here)
    camera = ("--camera", "camera.npy") if flag == "--save-camera" else ()
    done = sanawm(*from_latents("out.mp4", flag, OUTPUTS[flag], *camera))
    assert done.code == 5, done.err
    assert OUTPUTS[flag] in done.err
    assert contents(here) == before


@pytest.mark.parametrize(
    ("flags", "harmed"),
    [
        (("--latents", SOURCE, "--save-latents", SOURCE), SOURCE),
        (("--latents", SOURCE, "--save-latents", "./link.safetensors"), SOURCE),
        (("--latents", "z.part.safetensors", "--save-latents", SOURCE), "z.part.safetensors"),
        (("--latents", SOURCE, "--state", SOURCE), SOURCE),
        (("--video", "clip.mp4", "-o", "clip.mp4"), "clip.mp4"),
        (("--video", "clip.part.mp4", "-o", "clip.mp4"), "clip.part.mp4"),
        (("--image", "first.png", "--preview", "first.png"), "first.png"),
        (("--image", "f/frame_000001.png", "--frames-dir", "f"), "f/frame_000001.png"),
        (("--camera", "camera.npy", "--save-camera", "camera.npy"), "camera.npy"),
        (("--camera", "out.json"), "out.json"),
        (("--camera", "colmap", "--report", "colmap/transforms.json"), "colmap/transforms.json"),
        (("--noise", "noise.safetensors", "--save-noise", "noise.safetensors"), "noise"),
        (("--prompt-file", "p.txt", "--state", "p.txt"), "p.txt"),
        (("--save-latents", "model/model.safetensors"), "model.safetensors"),
        (("--report", "model/config.json"), "config.json"),
        (("--image", "first.png", "--intrinsics", "lens.txt", "--state", "lens.txt"), "lens.txt"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_no_input_is_written_to(here: Path, flags: tuple[str, ...], harmed: str) -> None:
    """Not even with --overwrite, through a link, or under the name that an output grows by."""
    shutil.copy(SOURCE, "z.part.safetensors")
    shutil.copy("clip.mp4", "clip.part.mp4")
    Path("link.safetensors").symlink_to(SOURCE)
    Path("f").mkdir()
    shutil.copy("first.png", "f/frame_000001.png")
    Path("p.txt").write_text("a red tower")
    Path("colmap").mkdir()
    shutil.copy(ROOT / "tests/cases/C08_nerfstudio_transforms/transforms.json", "colmap")
    shutil.copy("colmap/transforms.json", "out.json")
    shutil.copytree(TINY / "refiner_diffusers", "model_of_mine")
    shutil.copytree(TINY / "gemma2", "model")
    for shard in sorted(Path("model").glob("*.safetensors")):
        shard.rename("model/model.safetensors")
    before = contents(here)
    done = sanawm(
        "refine", "-o", "out.mp4", "--overwrite",
        "--set", "model.stage1_text_encoder=model", *flags,
    )  # fmt: skip
    assert done.code == 2, done.err
    assert "an input of this run" in done.err
    assert harmed in done.err
    assert contents(here) == before


# Files of others under the names that outputs grow by


def test_a_part_file_of_someone_else_is_refused(here: Path) -> None:
    """Unless --overwrite allows to replace it; then the line says whose it was."""
    sides = ("--save-latents", "r.safetensors", "--save-noise", "n.safetensors")
    shutil.copy("embeds.safetensors", "r.part.safetensors")
    Path("n.part.safetensors").write_bytes(b"mine")
    made = Path("clip.mp4").read_bytes().replace(b"sanawm", b"others")
    for data in (b"mine", b"a longer text of mine", made[: len(made) // 2], made):
        Path("out.part.mp4").write_bytes(data)
        before = contents(here)
        for more in ((), ("--resume",), ("--dry-run",)):
            done = sanawm(*from_latents("out.mp4", *more))
            assert done.code == 5, done.err
            assert "out.part.mp4 exists and was not made by sanawm" in done.err
            assert "fix: move it away, or choose another name" in done.err
        assert contents(here) == before
    for flag in (sides[:2], sides[2:]):
        done = sanawm(*from_latents("other.mp4", *flag))
        assert (done.code, ".part.safetensors exists and was not made" in done.err) == (5, True)
    done = sanawm(*from_latents("out.mp4", "--overwrite", *sides))
    assert done.code == 0, done.err
    assert f"replaced out.part.mp4, which was not made by sanawm ({len(made)} bytes)" in done.err
    assert "replaced n.part.safetensors, which was not made by sanawm (4 bytes)" in done.err
    assert "replaced r.part.safetensors, which was not made by sanawm" in done.err
    assert decode(here / "out.mp4") == decode(here / "whole.mp4")


def test_a_folder_in_the_place_of_the_part_file(here: Path) -> None:
    Path("out.part.mp4").mkdir()
    for more in ((), ("--overwrite",)):
        done = sanawm(*from_latents("out.mp4", *more))
        assert (done.code, "out.part.mp4 exists and is a folder" in done.err) == (5, True)


def test_a_part_file_that_other_commands_left_is_ours(here: Path) -> None:
    """`decode` writes no recipe, but it says who made the file."""
    assert sanawm("decode", SOURCE, "-o", "e.mp4").code == 0
    Path("e.mp4").rename("e.part.mp4")
    done = sanawm("decode", SOURCE, "-o", "e.mp4")
    assert done.code == 0, done.err
    assert "replaced e.part.mp4, left by an unfinished run" in done.err


@pytest.mark.parametrize("name", [".", "./", "/", "..", "folder", "folder/.."])
def test_an_output_that_is_a_folder(here: Path, name: str) -> None:
    Path("folder").mkdir()
    before = contents(here)
    for more in (("-o", name), ("--no-video", "--save-latents", name, "-o", "x.mp4")):
        done = sanawm("refine", "--latents", SOURCE, *more)
        assert done.code == 2, done.err
        assert done.error.splitlines()[0].endswith(" is a folder")
        assert "fix: name a file in it" in done.err
    assert contents(here) == before


def test_a_name_without_ending(here: Path) -> None:
    done = sanawm(*from_latents("clip"))
    assert done.code == 2
    assert "output clip: the name has no ending, expected .mp4\n  fix: use clip.mp4" in done.err


def test_a_folder_that_takes_no_files(here: Path) -> None:
    done = sanawm(*from_latents("/proc/q.mp4", "--report", "q.json", "--state", "q.state"))
    assert done.code == 5, done.err
    assert "/proc/q.part.mp4: the folder /proc takes no new files" in done.err
    assert "fix: write to another folder" in done.err


def test_a_run_that_is_refused_says_nothing_of_replacing(here: Path) -> None:
    with started(*from_latents("out.mp4"), folder=here) as first:
        first.wait_for("\nblock ", 2)
        first.send(signal.SIGSTOP)
        assert Path("out.state").exists()
        for more in ((), ("--overwrite",), ("--resume",)):
            second = sanawm(*from_latents("out.mp4", *more))
            assert (second.code, "by another run" in second.err) == (5, True), second.err
            assert "replaced" not in second.err
            assert "resuming" not in second.err
