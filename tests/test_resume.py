"""What `--resume` refuses, what it starts over, and what it needs of the files that are left."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sanawm.io.run_state import load_state, save_state
from sanawm.tensorfile import read_header

from .cli.command import ROOT, Done, sanawm
from .tiny_runs import decode, events, report_of

#: Blocks of 32x48 that stage 1 makes of a picture; stopped after two of them.
BLOCKS = 4
FRAMES = 12 * BLOCKS + 1
TINY = ROOT / "configs" / "tiny"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs of a run, what it left when it was stopped, and a whole one."""
    folder = tmp_path_factory.mktemp("stopped")
    here = Path.cwd()
    patch = pytest.MonkeyPatch()
    os.chdir(folder)
    try:
        shutil.copy(TINY / "first.png", "first.png")
        Path("p.txt").write_text("a red tower", encoding="utf-8")
        shutil.copytree(TINY / "sana_dit", "sana_dit")
        assert run(name="whole.mp4").code == 0

        def stop(self: object, chunk: object) -> None:
            if chunk.span.number == 1:  # type: ignore[attr-defined]
                raise KeyboardInterrupt

        patch.setattr("sanawm.job.RefineJob._say_block", stop)
        assert run().code == 130
    finally:
        patch.undo()
        os.chdir(here)
    return folder


def command(*more: object, name: str = "out.mp4") -> tuple[object, ...]:
    """Return the run that was stopped."""
    return (
        "refine", "--image", "first.png", "--prompt-file", "p.txt", "--num-frames", FRAMES,
        "--height", 32, "--width", 48, "--set", "model.stage1=sana_dit",
        "--set", "model.stage1_config=sana_dit/config.yaml", "-o", name,
        "--save-latents", Path(name).with_suffix(".safetensors"), *more,
    )  # fmt: skip


def run(*more: object, name: str = "out.mp4") -> Done:
    return sanawm(*command(*more, name=name))


@pytest.fixture
def left(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to work in; nothing but the state may be lost by a refusal."""
    folder = tmp_path / "left"
    shutil.copytree(stopped, folder)
    monkeypatch.chdir(folder)
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def equals_the_whole(folder: Path) -> bool:
    """Tell whether `out.mp4` and its latents are those of the run that was never stopped."""
    same = (folder / "out.safetensors").read_bytes() == (folder / "whole.safetensors").read_bytes()
    return same and decode(folder / "out.mp4") == decode(folder / "whole.mp4")


def test_it_goes_on_and_nothing_of_the_state_is_left(left: Path) -> None:
    before = {p.name for p in left.iterdir()}
    assert {"out.state", "out.part.mp4", "out.part.safetensors", "out.json"} <= before
    done = run("--resume", "--log-file", "log.jsonl")
    assert done.code == 0, done.err
    assert "resuming after block 2 from out.state" in done.err
    assert equals_the_whole(left)
    after = {p.name for p in left.iterdir()} - {"log.jsonl"}
    parts = {"out.state", "out.part.mp4", "out.part.safetensors"}
    assert after == before - parts | {"out.mp4", "out.safetensors"}
    assert [e["index"] for e in events(left / "log.jsonl", "block_done")] == [2, 3]
    report = report_of(left / "out.mp4")
    assert report["resumed_after_blocks"] == 2
    assert [row["index"] for row in report["blocks"]] == list(range(BLOCKS))


@pytest.fixture(scope="module")
def stopped_at_once(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the same run leaves when it is stopped after its first block."""
    folder = tmp_path_factory.mktemp("once") / "left"
    shutil.copytree(stopped, folder)
    here, patch = Path.cwd(), pytest.MonkeyPatch()
    os.chdir(folder)
    try:
        stop_after(1, "--overwrite")
    finally:
        patch.undo()
        os.chdir(here)
    return folder


def stop_after(blocks: int, *more: object) -> None:
    """Start the run and stop it when so many blocks are done."""

    def stop(self: object, done: int) -> None:
        if done == blocks:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sanawm.job.RefineJob._check_stop", stop)
        assert run(*more).code == 130


def test_noise_is_written_block_by_block(left: Path) -> None:
    """It is not held until the end; a resumed run takes over what is in the file."""
    assert run("--save-noise", "w.safetensors", name="other.mp4").code == 0
    stop_after(2, "--save-noise", "n.safetensors", "--overwrite")
    frames = int(read_header(Path("n.part.safetensors"))[1]["frames_written"])
    assert frames in (6, 9)  # of two blocks, and of one that may have begun
    done = run("--resume")
    assert (done.code, "outputs is [" in done.err) == (2, True)
    done = run("--resume", "--save-noise", "n.safetensors")
    assert done.code == 0, done.err
    assert Path("n.safetensors").read_bytes() == Path("w.safetensors").read_bytes()
    assert not Path("n.part.safetensors").exists()
    assert equals_the_whole(left)


def test_frames_that_the_state_holds_are_not_called_replaced(
    stopped_at_once: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The part file of one block is written anew: its frames are in the state, none is lost."""
    monkeypatch.chdir(stopped_at_once)
    assert Path("out.part.mp4").stat().st_size > 0
    done = run("--resume")
    assert done.code == 0, done.err
    assert "resuming after block 1 from out.state" in done.err
    assert "replaced" not in done.err
    assert equals_the_whole(stopped_at_once)


def test_a_moved_folder_can_be_resumed(left: Path) -> None:
    left.rename(left.with_name("moved"))
    os.chdir(left.with_name("moved"))
    assert run("--resume").code == 0
    assert equals_the_whole(Path.cwd())


def test_another_schedule_can_resume(left: Path) -> None:
    assert run("--resume", "--schedule", "overlap", "--offload", "none").code == 0
    assert equals_the_whole(left)


def flip(path: str, at: int = -1) -> Callable[[], None]:
    """Return a change of one byte of a file."""

    def change() -> None:
        data = bytearray(Path(path).read_bytes())
        data[at] ^= 1
        Path(path).write_bytes(bytes(data))

    return change


def replace(path: str, old: str, new: str) -> Callable[[], None]:
    """Return a change of a text file."""

    def change() -> None:
        text = Path(path).read_text(encoding="utf-8")
        assert old in text
        Path(path).write_text(text.replace(old, new), encoding="utf-8")

    return change


def other_picture() -> None:
    from PIL import Image

    Image.new("RGB", (96, 64), (9, 9, 9)).save("first.png")


def other_weights() -> None:
    model = torch.load("sana_dit/model.pt", weights_only=True)
    tensors = next((v for k, v in model.items() if k == "generator"), model)
    next(iter(tensors.values())).mul_(1.01)
    torch.save(model, "sana_dit/model.pt")


def nothing() -> None:
    """Change no file."""


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        (
            lambda: Path("p.txt").write_text("a red tower."),
            (),
            "prompt is 'a red tower.' now, 'a red tower' in the saved run",
        ),
        (nothing, ("--seed", 43), "runtime.seed is 43 now, 42 in the saved run"),
        (nothing, ("--refiner-kv-max-frames", 8), "refiner.kv_max_frames is 8 now, 11 in the"),
        (nothing, ("--sigmas", "0.909375,0.725,0"), "refiner.sigmas is [0.909375, 0.725, 0.0] now"),
        (nothing, ("--fps", 24), "video.fps is '24' now, 16 in the saved run"),
        (nothing, ("--crf", 20), "video.crf is 20 now, 18 in the saved run"),
        (nothing, ("--fov-x", 60), "input.fov_x is 60.0 now"),
        (nothing, ("--action", "a-48"), "camera is another now (sha256 "),
        (nothing, ("--num-frames", FRAMES - 12), "latent shape is [1, "),
        (nothing, ("--precision", "bf16"), "precision is 'torch.bfloat16' now, 'torch.float32'"),
        (nothing, ("--no-video",), "outputs is ['save_latents'] now"),
        (nothing, ("--threads", 2), "threads is 2 now, 1 in the saved run"),
        (other_picture, (), "input image is another now (sha256 "),
        (other_weights, (), "weights stage1 is another now (hash "),
        (
            replace(
                "sana_dit/config.yaml", "inference_flow_shift: 2.0", "inference_flow_shift: 3.0"
            ),
            (),
            "config of stage1 is another now (sha256 ",
        ),
    ],
    ids=lambda v: " ".join(map(str, v)) if isinstance(v, tuple) else None,
)
def test_another_run_is_refused_naming_the_difference(
    left: Path, change: Callable[[], None], flags: tuple[object, ...], words: str
) -> None:
    change()
    before = snapshot(left)
    name = "out.state"
    done = run("--resume", *flags)
    assert done.code == 2, done.err
    assert f"error: {name} belongs to another run: " in done.err
    assert words in done.err
    assert "fix: repeat the command of the saved run with --resume, or start without" in done.err
    assert snapshot(left) == before


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_state_that_is_cut_short_is_refused(left: Path, share: float) -> None:
    data = Path("out.state").read_bytes()
    Path("out.state").write_bytes(data[: int(len(data) * share)])
    before = snapshot(left)
    done = run("--resume")
    assert done.code == 2, done.err
    assert "error: run state out.state: " in done.err
    assert "delete it and start the run again without --resume" in done.err
    assert snapshot(left) == before


@pytest.mark.parametrize("at", [20, 3000, -1, -300_000])
def test_a_state_with_a_flipped_bit_is_refused(left: Path, at: int) -> None:
    flip("out.state", at)()
    done = run("--resume")
    assert done.code == 2, done.err
    assert "error: run state out.state: " in done.err


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("block",), 40),
        (("block",), -1),
        (("block",), "x"),
        (("rows",), []),
        (("rows",), None),
        (("frames",), torch.zeros(1)),
        (("first",), 7),
        (("stages",), []),
        (("stages", "refine"), {}),
        (("stages", "refine", "cache"), {}),
        (("stages", "refine", "cache", "keys"), torch.zeros(2, 2)),
        (("stages", "refine", "noise"), {}),
        (("stages", "refine", "noise"), {"generator": torch.zeros(3)}),
        (("stages", "stage1"), {}),
        (("stages", "decode"), {}),
        (("stages", "decode", "frames"), None),
    ],
    ids=str,
)
def test_a_state_that_holds_something_else_is_refused(
    left: Path, place: tuple[str, ...], value: object
) -> None:
    """Whole by its checksums, but not written by such a run: an error in words, never a crash."""
    state = load_state(Path("out.state"))
    table = state
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    save_state(Path("out.state"), state)
    done = run("--resume")
    assert done.code == 2, done.err
    assert "error: run state out.state: " in done.err
    assert "Traceback" not in done.err


def test_a_part_file_shorter_than_the_state(left: Path) -> None:
    """As a power cut leaves it that lost data of the video, but not the newer state."""
    data = Path("out.part.mp4").read_bytes()
    for share in (0.0, 0.05, 0.3):
        Path("out.part.mp4").write_bytes(data[: int(len(data) * share)])
        done = run("--resume")
        assert done.code == 5, done.err
        assert "error: cannot continue out.mp4: " in done.err
        assert "fix: run again without --resume" in done.err
    Path("out.part.mp4").unlink()
    done = run("--resume")
    assert done.code == 5
    assert "out.part.mp4 is gone" in done.err


def test_side_files_that_lost_data(left: Path) -> None:
    Path("out.part.safetensors").write_bytes(b"")
    done = run("--resume")
    assert done.code == 5, done.err
    assert "error: cannot continue out.safetensors: " in done.err
    Path("out.part.safetensors").unlink()
    done = run("--resume")
    assert done.code == 5, done.err
    assert "out.part.safetensors is gone" in done.err


def test_a_dry_run_says_what_would_be_resumed(left: Path) -> None:
    before = snapshot(left)
    done = run("--resume", "--dry-run")
    assert done.code == 0, done.err
    assert (
        "\nresume after block 2 of 4, from out.state: 24 frames and 7 latent frames are kept, "
        "2 blocks are made\n"
    ) in done.out
    assert "resuming" not in done.err
    assert snapshot(left) == before
    done = run("--resume", "--dry-run", "--seed", 43)
    assert done.code == 2
    assert "runtime.seed is 43 now, 42 in the saved run" in done.err
    Path("out.part.mp4").unlink()
    done = run("--resume", "--dry-run")
    assert (done.code, "out.part.mp4 is gone" in done.err) == (5, True)
    Path("out.state").unlink()
    done = run("--resume", "--dry-run")
    assert "\nresume nothing: there is no out.state; all 4 blocks are made\n" in done.out
    assert sanawm("--log-format", "json", *command("--dry-run")).json["resume"] is None


def test_long_prompts_are_shown_where_they_differ(left: Path) -> None:
    state = load_state(Path("out.state"))
    state["prompt"] = "a red tower " * 20 + "at noon, with a long shadow that falls over the green"
    save_state(Path("out.state"), state)
    Path("p.txt").write_text("a red tower " * 20 + "at night", encoding="utf-8")
    done = run("--resume")
    assert done.code == 2
    found = re.search(r"prompt is '(.*?)' now, '(.*?)' in the saved run", done.err)
    assert found is not None, done.err
    now, then = found.groups()
    assert now.startswith("...")
    assert now.endswith("a red tower at night")
    assert "at noon, with a long" in then
    assert max(len(now), len(then)) <= 66


def test_without_a_state_it_starts_over(left: Path) -> None:
    Path("out.state").unlink()
    done = run("--resume")
    assert done.code == 0, done.err
    assert "nothing to resume: there is no out.state; the run starts at the beginning" in done.err
    assert equals_the_whole(left)


def test_a_run_that_keeps_no_state(left: Path) -> None:
    done = run("--resume", "--state", "none")
    assert done.code == 2
    assert "--resume: this run keeps no state (--state none)" in done.err
    Path("out.state").unlink()
    done = run("--state", "none", "--overwrite")
    assert done.code == 0
    assert "state  none is kept" in done.err
    assert not Path("out.state").exists()


def test_a_new_run_says_that_it_replaces_a_state(left: Path) -> None:
    done = run("--overwrite")
    assert done.code == 0
    assert "out.state of an earlier run is replaced (--resume would have continued it)" in done.err
    assert not Path("out.state").exists()


def test_a_run_killed_while_it_closed_is_finished(left: Path) -> None:
    """Its files bear their names, but the state is still there: no work is lost."""
    state = Path("out.state").read_bytes()
    assert run("--resume").code == 0
    Path("out.state").write_bytes(state)
    Path("out.json").unlink()
    for renamed_back in ((), ("out.safetensors",), ("out.mp4",)):
        for name in renamed_back:
            Path(name).rename(Path(name).with_stem("out.part"))
        Path("out.state").write_bytes(state)
        done = run("--resume")
        assert done.code == 0, done.err
        assert "finished by the stopped run, and taken up again" in done.err
        assert equals_the_whole(left)
    Path("out.state").write_bytes(state)
    Path("out.mp4").write_bytes(b"someone else's file under that name")
    before = snapshot(left)
    done = run("--resume")
    assert (done.code, "out.mp4 exists" in done.err) == (5, True)
    assert snapshot(left) == before


def test_the_plan_says_how_large_the_state_is(left: Path) -> None:
    size = (left / "out.state").stat().st_size
    done = sanawm("--log-format", "json", *command("--resume", "--dry-run"))
    assert size < done.json["state_bytes"] < 1.3 * size  # the history is not full yet
    done = run("--resume", "--dry-run", "--state-every", 2)
    assert "state  about " in done.out
    assert " after every 2 blocks -> out.state" in done.out


def test_a_state_of_another_output_is_not_replaced(left: Path) -> None:
    before = snapshot(left)
    for flags in (("--state", "out.state"), ("--state", "out.state", "--overwrite")):
        done = run(*flags, name="other.mp4")
        assert done.code == 5, done.err
        assert "out.state is the run state of another output" in done.err
    assert snapshot(left) == before


def test_every_second_block(left: Path) -> None:
    for path in left.glob("out.*"):
        path.unlink()
    done = run("--state-every", 2, "--log-file", "log.jsonl")
    assert done.code == 0
    assert [e["block"] for e in events(left / "log.jsonl", "state_saved")] == [1, 3]
    report = json.loads(Path("out.json").read_text())
    assert 0 < report["state_cost_seconds"] <= report["state_seconds"] * 1.01


def test_a_run_that_is_finished_has_nothing_to_resume(left: Path) -> None:
    assert run("--resume").code == 0
    before = snapshot(left)
    for more in ((), ("--dry-run",)):
        done = run("--resume", *more)
        assert done.code == 5, done.err
        assert (
            "out.mp4 exists: this run is finished already, there is nothing to resume" in done.err
        )
        assert "fix: use the file as it is; add --overwrite to make it again" in done.err
        done = run("--resume", "--seed", 43, *more)
        assert (done.code, "finished" in done.err) == (5, False)
        assert "out.mp4 exists\n  fix: add --overwrite, or choose another name" in done.err
    assert snapshot(left) == before


def test_what_a_new_run_says_of_the_one_it_replaces(left: Path) -> None:
    """One line, which names --resume only if it would have gone on."""
    again = left.with_name("again")
    shutil.copytree(left, again)
    done = run("--overwrite")
    assert done.code == 0, done.err
    line = "out.state of an earlier run is replaced (--resume would have continued it), and with it"
    assert f"{line} out.part.mp4\n" in done.err
    assert done.err.count("replaced") == 1
    os.chdir(again)
    done = run("--overwrite", "--seed", 43)
    assert done.code == 0, done.err
    assert "out.state of an earlier run is replaced\n" in done.err
    assert "would have continued" not in done.err
