"""A growing video: readable by others while it grows, after a kill, and on a full disk."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
import pytest

from sanawm.errors import OutputError
from sanawm.io.growing import Sink
from sanawm.io.part import PartFile
from sanawm.io.remux import count_frames, read_metadata, whole_boxes
from sanawm.io.video import VideoSettings, VideoWriter
from sanawm.notes import Notes

from .child import SMALL
from .clips import box_ends, box_names, decode, moving_clip, wait_for

ROOT = Path(__file__).parents[2]
SETTINGS = VideoSettings(width=64, height=32, fps=Fraction(16), frames_per_chunk=8)


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `tests.io.child` with pipes; it is killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.io.child", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(stream: IO[str] | None) -> dict[str, Any]:
    """Return the next JSON line."""
    assert stream is not None
    return dict(json.loads(stream.readline()))


def test_a_second_process_reads_all_but_the_newest_frame(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    part = tmp_path / "out.part.mp4"
    with child("grow", str(path), "3") as process:
        assert process.stdin is not None
        for k in range(3):
            process.stdin.write("\n")
            process.stdin.flush()
            said = read_line(process.stdout)
            assert said == {"chunk": k, "part": str(part)}
            assert len(decode(part)) == 24 * (k + 1) - 1  # the writer is alive
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not path.exists()
    frames = decode(part)
    assert len(frames) == 71
    truth = moving_clip(71, width=320, height=192)
    assert np.abs(frames.astype(int) - truth).mean() < 8  # chroma is halved; a wrong frame: 50
    assert count_frames(part) == (0, 71, False)  # the header of an unfinished file counts none


def test_file_cut_anywhere_gives_its_whole_frames(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "o.mp4", SETTINGS)
    for k in range(3):
        writer.write(moving_clip(8, start=8 * k))
    wait_for(writer, 24)
    data = writer.part_path.read_bytes()  # as a kill would leave it
    writer.abort()
    assert len(decode(_saved(tmp_path, data))) == 23
    ends = box_ends(tmp_path / "cut.mp4")
    fragments = [end for name, end in ends if name == "mdat"]
    assert len(fragments) == 23
    header = next(end for name, end in ends if name == "moov")
    for cut in range(header, len(data), 37):
        torn = _saved(tmp_path, data[:cut])
        whole = sum(end <= cut for end in fragments)
        before = max(end for _, end in ends if end <= cut)
        if cut - before > 8 and ("moof", before) in ends:  # inside a frame: it opens as it is
            assert whole <= len(decode(torn)) <= whole + 1
        assert len(decode(_saved(tmp_path, data[: whole_boxes(torn)]))) == whole


def _saved(folder: Path, data: bytes) -> Path:
    path = folder / "cut.mp4"
    path.write_bytes(data)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_kill_at_any_time(tmp_path: Path, seed: int) -> None:
    """All frames of all chunks but the newest one that was reported are in the file."""
    with child("stream", str(tmp_path / "o.mp4"), "100000") as process:
        reported = read_line(process.stdout)["chunk"]
        time.sleep(np.random.default_rng(seed).uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                reported = json.loads(line)["chunk"]
        process.wait()
    frames = decode(tmp_path / "o.part.mp4")
    assert len(frames) >= 8 * (reported + 1) - 1
    with VideoWriter(tmp_path / "o.mp4", SMALL, keep_frames=8 * reported) as writer:
        writer.write(moving_clip(8))
    assert writer.close().frames == 8 * reported + 8


def test_chunks_do_not_depend_on_each_other(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "all.mp4", SMALL) as writer:
        for k in range(3):
            writer.write(moving_clip(8, start=8 * k))
    with child("one", str(tmp_path / "one.mp4"), "1") as process:
        assert read_line(process.stdout) == {"done": True}
        assert process.wait(20) == 0
    assert np.array_equal(decode(tmp_path / "all.mp4")[8:16], decode(tmp_path / "one.mp4"))


class TestResume:
    @pytest.mark.parametrize("encoder", ["libx264", "libx265"])
    @pytest.mark.parametrize("finished", [True, False], ids=["closed part", "killed part"])
    def test_equal_to_a_run_in_one_go(self, tmp_path: Path, encoder: str, finished: bool) -> None:
        settings = replace(
            SETTINGS, encoder=encoder, fps=Fraction(24000, 1001), metadata={"sanawm": "{}"}
        )
        sizes = (1, 8, 8, 5)
        starts = (0, 1, 9, 17)
        chunks = [moving_clip(n, start=s) for n, s in zip(sizes, starts, strict=True)]
        whole, path = tmp_path / "whole.mp4", tmp_path / "out.mp4"
        with VideoWriter(whole, settings) as writer:
            for chunk in chunks:
                writer.write(chunk)
        first = VideoWriter(path, settings)
        for chunk in chunks[:3]:
            first.write(chunk)
        wait_for(first, 17)
        data = first.part_path.read_bytes()
        first.abort()
        if not finished:
            first.part_path.write_bytes(data)
        calls: list[tuple[int, ...]] = []
        with VideoWriter(
            path,
            settings,
            keep_frames=9,
            keep_chunks=2,
            on_chunk=lambda *a: calls.append(a[:3]),
        ) as second:
            for chunk in chunks[2:]:
                second.write(chunk)
        assert calls == [(2, 9, 8), (3, 17, 5)]
        assert path.read_bytes() == whole.read_bytes()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["out.mp4", "whole.mp4"]

    def test_too_few_frames(self, tmp_path: Path) -> None:
        part = self._part(tmp_path)
        before = part.read_bytes()
        with pytest.raises(OutputError, match="holds 8 frames, expected at least 16"):
            VideoWriter(tmp_path / "o.mp4", SETTINGS, keep_frames=16)
        assert part.read_bytes() == before

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"width": 128, "height": 64}, "it is 64x32 avc1 at 16 .* makes 128x64"),
            ({"fps": Fraction(24)}, "at 24 frames per second"),
            ({"encoder": "libx265"}, "makes 64x32 hvc1"),
            ({"encoder_preset": "ultrafast"}, "encoded with other settings"),
        ],
    )
    def test_other_settings(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        part = self._part(tmp_path)
        before = part.read_bytes()
        with pytest.raises(OutputError, match=message):
            VideoWriter(tmp_path / "o.mp4", replace(SETTINGS, **change), keep_frames=4)
        assert part.read_bytes() == before
        assert list(tmp_path.iterdir()) == [part]
        VideoWriter(tmp_path / "o.mp4", SETTINGS).abort()  # the lock is free again

    def test_no_part(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"cannot continue .*o\.part\.mp4 is gone"):
            VideoWriter(tmp_path / "o.mp4", SETTINGS, keep_frames=8)

    def _part(self, folder: Path) -> Path:
        writer = VideoWriter(folder / "o.mp4", SETTINGS)
        writer.write(moving_clip(8))
        part = writer.abort()
        assert part is not None
        return part


class TestOneRunAtATime:
    def test_second_run_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        with child("hold", str(path)) as process:
            part = Path(read_line(process.stdout)["part"])
            with pytest.raises(OutputError, match="being written by another run") as caught:
                VideoWriter(path, SETTINGS)
            assert str(part) in caught.value.message
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert part.exists()  # the stale part of the killed run does not block
        with VideoWriter(path, SETTINGS) as writer:
            writer.write(moving_clip(4))
        assert len(decode(path)) == 4

    def test_refused_run_does_not_disturb_the_first(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        with VideoWriter(path, SETTINGS) as writer:
            writer.write(moving_clip(8))
            with pytest.raises(OutputError, match="another run"):
                VideoWriter(path, SETTINGS, overwrite=True)
            writer.write(moving_clip(8, start=8))
        assert len(decode(path)) == 16

    def test_stale_part_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "o.part.mp4").write_bytes(b"\0\0\0\x24ftypisom")
        notes = Notes()
        with VideoWriter(tmp_path / "o.mp4", SETTINGS, notes=notes) as writer:
            writer.write(moving_clip(1))
        assert notes.infos == [
            f"replaced {tmp_path}/o.part.mp4, left by an unfinished run (12 bytes)"
        ]

    def test_lock_taken_just_after_a_rename(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever opened the part before it was renamed must not get the finished file."""
        target = tmp_path / "o.mp4"
        first = PartFile(target, notes=Notes())
        real_lock = PartFile._take_lock
        opened: list[int] = []

        def late(self: PartFile, fd: int) -> None:
            if not opened:
                opened.append(fd)
                first.commit(overwrite=False)
            real_lock(self, fd)

        monkeypatch.setattr(PartFile, "_take_lock", late)
        second = PartFile(target, notes=Notes())
        assert second.path.stat().st_ino != target.stat().st_ino
        second.discard()
        assert target.exists()

    def test_file_system_without_locks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_locks(*_: object) -> None:
            raise OSError(37, "No locks available")

        monkeypatch.setattr("sanawm.io.part.fcntl.flock", no_locks)
        notes = Notes()
        PartFile(tmp_path / "o.mp4", notes=notes).discard()
        assert "has no locks" in notes.warnings[0]


class TestFullDisk:
    def test_size_limits_keep_a_playable_part(self, tmp_path: Path) -> None:
        with child("limited", str(tmp_path), "3000") as process:
            assert process.stdout is not None
            lines = [json.loads(line) for line in process.stdout]
        assert len(lines) > 5
        kept = []
        for line in lines:
            path = Path(line["path"])
            part = path.with_name(f"{path.stem}.part.mp4")
            assert not line["ok"], line
            assert line["code"] == 5
            assert not path.exists()
            assert f"{part}: file size limit reached after " in line["message"]
            frames = len(decode(part)) if part.exists() else 0
            if frames:
                assert f"; {frames} frames are kept and playable" in line["message"]
                assert f"after {part.stat().st_size} bytes written" in line["message"]
                assert read_metadata(part) == {"sanawm": "{}"}
                assert count_frames(part) == (0, frames, False)
            else:
                assert "nothing was kept" in line["message"]
            kept.append(frames)
        assert kept == sorted(kept)
        assert kept[-1] == 31  # all but the last, although only the index did not fit

    def test_full_device(self, tmp_path: Path) -> None:
        (tmp_path / "o.part.mp4").symlink_to("/dev/full")
        with pytest.raises(OutputError, match=r"o\.part\.mp4: no space left on device"):
            VideoWriter(tmp_path / "o.mp4", SETTINGS)
        assert list(tmp_path.iterdir()) == []

    def test_sink_keeps_the_first_error_and_drops_the_rest(self, tmp_path: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as device:
            sink = Sink(device.fileno())
            assert sink.write(b"abc") == 3
            assert sink.error is not None
            assert sink.error.errno == 28
            first = sink.error
            assert sink.write(b"abc") == 3
            assert sink.error is first

    def test_sink_finishes_short_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stored = bytearray(10)

        def pwrite(_: int, data: memoryview, offset: int) -> int:
            part = bytes(data[:3])
            stored[offset : offset + len(part)] = part
            return len(part)

        monkeypatch.setattr("sanawm.io.growing.os.pwrite", pwrite)
        sink = Sink(0)
        sink.write(b"0123456789")
        sink.seek(2)
        sink.write(b"AB")
        assert bytes(stored) == b"01AB456789"

    def test_vanished_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "gone"
        folder.mkdir()
        writer = VideoWriter(folder / "o.mp4", SETTINGS)
        writer.write(moving_clip(8))
        shutil.rmtree(folder)
        with pytest.raises(OutputError, match=r"cannot be read back .*no such file"):
            writer.close()
        assert writer.abort() is None

    def test_hybrid_file_while_it_grows(self, tmp_path: Path) -> None:
        writer = VideoWriter(tmp_path / "o.mp4", SETTINGS)
        writer.write(moving_clip(8))
        wait_for(writer, 8)
        names = box_names(writer.part_path)
        assert names[0] == "ftyp"
        assert names.count("moof") == 7  # the newest frame is to come
        with av.open(str(writer.part_path)) as container:
            context = container.streams.video[0].codec_context
            assert (context.color_range, context.colorspace) == (1, 1)
        writer.abort()
