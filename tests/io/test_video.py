"""The video writer: what goes in comes out, in an ordinary file, and errors leave no file."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from sanawm.errors import OutputError, SanawmError, UsageError
from sanawm.io import growing, video
from sanawm.io.remux import FrameCount
from sanawm.io.video import (
    VideoFile,
    VideoSettings,
    VideoWriter,
    check_chunk,
    faststart,
    parse_fps,
    read_metadata,
)
from sanawm.notes import Notes

from .clips import CASES, box_names, decode, moving_clip, wait_for

C20 = CASES / "C20_frames_to_mp4"
SETTINGS = VideoSettings(width=64, height=32, fps=Fraction(16), frames_per_chunk=8)


def write(path: Path, *chunks: np.ndarray, **changes: object) -> VideoFile:
    """Write chunks with settings of their size."""
    height, width = chunks[0].shape[1:3]
    settings = replace(SETTINGS, width=width, height=height, **changes)  # type: ignore[arg-type]
    with VideoWriter(path, settings) as writer:
        for chunk in chunks:
            writer.write(chunk)
    return writer.close()


class TestFile:
    def test_ordinary_mp4(self, tmp_path: Path) -> None:
        path = tmp_path / "out.mp4"
        result = write(path, moving_clip(8), moving_clip(8, start=8), moving_clip(3, start=16))
        assert result == VideoFile(path, 19, Fraction(16), path.stat().st_size)
        assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
        names = box_names(path)
        assert names.count("moov") == 1
        assert "moof" not in names
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            context = stream.codec_context
            assert (stream.frames, stream.average_rate) == (19, 16)
            assert (context.codec_tag, context.pix_fmt) == ("avc1", "yuv420p")
            assert (stream.width, stream.height) == (64, 32)
            tags = (
                context.color_range,
                context.colorspace,
                context.color_primaries,
                context.color_trc,
            )
            assert tags == (1, 1, 1, 1)
            keys = [p.pts for p in container.demux(stream) if p.is_keyframe]
            unit = stream.time_base
        assert unit is not None
        assert [k * unit * 16 for k in keys if k is not None] == [0, 8, 16]

    def test_colour_bars(self, tmp_path: Path) -> None:
        bars = np.load(C20 / "colour_bars_u8.npy")
        write(tmp_path / "bars.mp4", bars)
        frames = decode(tmp_path / "bars.mp4").astype(int)
        assert frames.shape == bars.shape
        for frame in frames:
            for x in (8, 24, 40, 56):
                assert np.abs(frame[16, x] - bars[0, 16, x]).max() <= 3

    @pytest.mark.parametrize("count", [1, 2, 3, 49])
    @pytest.mark.parametrize("chunk", [8, 49])
    def test_frame_counter(self, tmp_path: Path, count: int, chunk: int) -> None:
        frames = np.load(C20 / "frame_counter_49.npy")[:count]
        path = tmp_path / "count.mp4"
        write(path, *(frames[i : i + chunk] for i in range(0, count, chunk)))
        bits = decode(path)[:, 8, 2:24:4, 1] > 128
        assert [sum(int(b) << i for i, b in enumerate(row)) for row in bits] == list(range(count))

    @pytest.mark.parametrize("size", [(36, 64), (40, 56), (2, 2), (18, 34)])
    def test_size_is_kept(self, tmp_path: Path, size: tuple[int, int]) -> None:
        write(tmp_path / "s.mp4", moving_clip(2, height=size[0], width=size[1]))
        assert decode(tmp_path / "s.mp4").shape == (2, *size, 3)

    @pytest.mark.parametrize(
        "case",
        [c for c in json.loads((C20 / "fps.json").read_text()) if "rate" in c],
        ids=lambda c: c["fps"],
    )
    def test_rate_in_the_file(self, tmp_path: Path, case: dict[str, str]) -> None:
        path = tmp_path / "r.mp4"
        write(path, moving_clip(24), fps=parse_fps(case["fps"]), frames_per_chunk=24)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.average_rate == Fraction(case["rate"])
            assert stream.duration is not None
            assert stream.time_base is not None
            assert stream.duration * stream.time_base == 24 / Fraction(case["rate"])

    def test_metadata(self, tmp_path: Path) -> None:
        tags = {
            "sanawm": json.dumps({"seed": 42, "prompt": 'é "港" \\ {x}'}),
            "title": "港の朝",
            "comment": "two\nlines",
        }
        path = tmp_path / "m.mp4"
        write(path, moving_clip(2), metadata=tags)
        assert read_metadata(path) == tags

    def test_h265_is_tagged_for_all_players(self, tmp_path: Path) -> None:
        write(tmp_path / "h.mp4", moving_clip(8), encoder="libx265")
        with av.open(str(tmp_path / "h.mp4")) as container:
            assert container.streams.video[0].codec_context.codec_tag == "hvc1"
        assert len(decode(tmp_path / "h.mp4")) == 8

    def test_same_frames_same_bytes(self, tmp_path: Path) -> None:
        chunks = [moving_clip(8, start=8 * k) for k in range(3)]
        for name in ("a.mp4", "b.mp4"):
            write(tmp_path / name, *chunks)
        assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()

    def test_the_array_may_be_reused(self, tmp_path: Path) -> None:
        clip = moving_clip(8)
        write(tmp_path / "a.mp4", clip)
        buffer = clip.copy()
        with VideoWriter(tmp_path / "b.mp4", SETTINGS) as writer:
            writer.write(buffer)
            buffer[:] = 0
        assert np.array_equal(decode(tmp_path / "a.mp4"), decode(tmp_path / "b.mp4"))

    def test_views_are_taken_in_their_order(self, tmp_path: Path) -> None:
        clip = moving_clip(4)
        write(tmp_path / "a.mp4", np.ascontiguousarray(clip[:, :, ::-1]))
        write(tmp_path / "b.mp4", clip[:, :, ::-1])
        assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


class TestRefusedChunks:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("float01", ["float32", "(3, 32, 64, 3)", "0.0 to 1.0"]),
            ("float_minus1_1", ["float32", "-1.0 to 1.0"]),
            ("float_0_255", ["float", "255"]),
            ("float01_nan_over", ["float32", "values ", " and 1 NaN"]),
            ("TCHW_u8", ["uint8", "(3, 3, 32, 64)", "move the colour axis last"]),
            ("gray_THW", ["uint8", "(3, 32, 64)"]),
            ("rgba_u8", ["uint8", ", 4)", "alpha"]),
            ("zero_frames", ["uint8", "(0, 32, 64, 3)", "no values"]),
            ("odd_33x65_u8", ["(3, 33, 65, 3)", "expected uint8 (1 or more frames, 32, 64, 3)"]),
        ],
    )
    def test_cases(self, tmp_path: Path, name: str, parts: list[str]) -> None:
        array = np.load(C20 / f"{name}.npy")
        writer = VideoWriter(tmp_path / "out.mp4", SETTINGS)
        with pytest.raises(UsageError) as caught:
            writer.write(array)
        for part in parts:
            assert part in str(caught.value)
        assert writer.abort() is None
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "array",
        [
            [[1]],
            np.zeros((1, 32, 64, 3), np.int8),
            np.zeros((1, 32, 64, 3), bool),
            np.array([None]),
            np.zeros((1, 32, 64, 3), "S1"),
            np.full((1, 32, 64, 3), np.nan),
        ],
    )
    def test_others(self, array: np.ndarray) -> None:
        with pytest.raises(UsageError, match="expected"):
            check_chunk(array, width=64, height=32)

    def test_a_refused_chunk_does_not_end_the_video(self, tmp_path: Path) -> None:
        with VideoWriter(tmp_path / "o.mp4", SETTINGS) as writer:
            writer.write(moving_clip(2))
            with pytest.raises(UsageError):
                writer.write(moving_clip(2).astype(np.float32))
            writer.write(moving_clip(2))
        assert writer.close().frames == 4

    def test_odd_size_leaves_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"65x33 .* must be even"):
            VideoWriter(tmp_path / "o.mp4", replace(SETTINGS, width=65, height=33))
        assert list(tmp_path.iterdir()) == []

    def test_no_frames(self, tmp_path: Path) -> None:
        writer = VideoWriter(tmp_path / "o.mp4", SETTINGS)
        with pytest.raises(OutputError, match="no frames were written"):
            writer.close()
        assert list(tmp_path.iterdir()) == []

    def test_closed_writer(self, tmp_path: Path) -> None:
        with VideoWriter(tmp_path / "o.mp4", SETTINGS) as writer:
            writer.write(moving_clip(1))
        with pytest.raises(UsageError, match="closed"):
            writer.write(moving_clip(1))


class TestExistingFile:
    def test_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        path.write_bytes(b"old")
        with pytest.raises(OutputError, match="exists"):
            VideoWriter(path, SETTINGS)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_replaced_only_at_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        path.write_bytes(b"old")
        with VideoWriter(path, SETTINGS, overwrite=True) as writer:
            writer.write(moving_clip(4))
            assert path.read_bytes() == b"old"
        assert len(decode(path)) == 4

    def test_kept_when_the_run_fails(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        path.write_bytes(b"old")
        writer = VideoWriter(path, SETTINGS, overwrite=True)
        writer.write(moving_clip(4))
        part = writer.abort()
        assert path.read_bytes() == b"old"
        assert part is not None
        assert len(decode(part)) == 4

    def test_one_that_appears_meanwhile(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        writer = VideoWriter(path, SETTINGS)
        writer.write(moving_clip(4))
        path.write_bytes(b"other")
        with pytest.raises(OutputError, match=r"appeared .* kept as .*o\.part\.mp4"):
            writer.close()
        assert path.read_bytes() == b"other"
        assert len(decode(tmp_path / "o.part.mp4")) == 4

    def test_wrong_ending(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"expected \.mp4"):
            VideoWriter(tmp_path / "o.mkv", SETTINGS)


class TestThread:
    def test_on_chunk_reports_in_order(self, tmp_path: Path) -> None:
        calls: list[tuple[int, int, int, float]] = []
        path = tmp_path / "o.mp4"
        with VideoWriter(path, SETTINGS, on_chunk=lambda *a: calls.append(a)) as writer:
            for size in (1, 8, 8, 3):
                writer.write(moving_clip(size))
        assert [c[:3] for c in calls] == [(0, 0, 1), (1, 1, 8), (2, 9, 8), (3, 17, 3)]
        assert all(c[3] > 0 for c in calls)

    def test_queue_is_bounded(self, tmp_path: Path) -> None:
        gate = threading.Event()
        path = tmp_path / "o.mp4"
        writer = VideoWriter(path, SETTINGS, queue_chunks=1, on_chunk=lambda *a: gate.wait(20))

        def feed() -> None:
            for _ in range(3):  # one in work, one queued, the third has to wait
                writer.write(moving_clip(1))

        feeder = threading.Thread(target=feed)
        feeder.start()
        feeder.join(0.5)
        assert feeder.is_alive()
        gate.set()
        feeder.join(10)
        assert not feeder.is_alive()
        assert writer.close().frames == 3

    def test_an_error_in_the_thread_surfaces_as_it_is(self, tmp_path: Path) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError("from the callback")

        writer = VideoWriter(tmp_path / "o.mp4", SETTINGS, on_chunk=fail)
        writer.write(moving_clip(8))
        with pytest.raises(ZeroDivisionError, match="from the callback"):
            writer.close()
        with pytest.raises(UsageError, match="closed"):
            writer.write(moving_clip(1))
        assert len(decode(tmp_path / "o.part.mp4")) == 8
        assert not (tmp_path / "o.mp4").exists()

    def test_a_failing_encoder_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> None:
            raise av.error.ExternalError(0x20545845, "Generic error in an external library")

        writer = VideoWriter(tmp_path / "o.mp4", SETTINGS)
        writer.write(moving_clip(8))
        wait_for(writer, 8)
        monkeypatch.setattr(video, "encode_chunk", broken)
        writer.write(moving_clip(8))
        with pytest.raises(OutputError, match="encoder libx264 failed after 8 frames"):
            writer.close()
        assert len(decode(tmp_path / "o.part.mp4")) == 8

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
    def test_an_exception_in_the_block_keeps_the_part(
        self, tmp_path: Path, error: type[BaseException]
    ) -> None:
        def interrupted() -> None:
            with VideoWriter(tmp_path / "o.mp4", SETTINGS) as writer:
                writer.write(moving_clip(8))
                writer.write(moving_clip(8))
                raise error

        with pytest.raises(error):
            interrupted()
        assert [p.name for p in tmp_path.iterdir()] == ["o.part.mp4"]
        assert "moof" not in box_names(tmp_path / "o.part.mp4")
        assert len(decode(tmp_path / "o.part.mp4")) == 16
        assert all(t.name != "sanawm-video-writer" for t in threading.enumerate())

    def test_close_and_abort_may_be_repeated(self, tmp_path: Path) -> None:
        writer = VideoWriter(tmp_path / "o.mp4", SETTINGS)
        writer.write(moving_clip(2))
        first = writer.close()
        assert writer.close() == first
        assert writer.abort() == tmp_path / "o.mp4"


class TestAfterClosing:
    def test_wrong_count_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(video, "count_frames", lambda path: FrameCount(7, 7, False))
        writer = VideoWriter(tmp_path / "o.mp4", SETTINGS)
        writer.write(moving_clip(8))
        with pytest.raises(OutputError, match=r"holds 7 frames .* expected 8"):
            writer.close()
        assert [p.name for p in tmp_path.iterdir()] == ["o.part.mp4"]

    def test_older_ffmpeg_falls_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(growing, "movflags", lambda: growing.MOVFLAGS[1])
        notes = Notes()
        with VideoWriter(tmp_path / "o.mp4", SETTINGS, notes=notes) as writer:
            writer.write(moving_clip(8))
            writer.write(moving_clip(8))
        assert writer.close().frames == 16
        assert "stays fragmented" in notes.warnings[0]
        assert len(decode(tmp_path / "o.mp4")) == 16

    def test_movflags_probe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert growing.movflags() == growing.MOVFLAGS[0]
        monkeypatch.setattr(growing, "MOVFLAGS", ("no_such_flag", "frag_every_frame+empty_moov"))
        assert growing.movflags.__wrapped__() == "frag_every_frame+empty_moov"

    def test_faststart(self, tmp_path: Path) -> None:
        path = tmp_path / "o.mp4"
        tags = {"sanawm": '{"a": "é"}', "title": "t"}
        write(path, moving_clip(8), moving_clip(8), metadata=tags, fps=Fraction(24000, 1001))
        before, names = decode(path), box_names(path)
        assert names.index("mdat") < names.index("moov")
        faststart(path)
        names = box_names(path)
        assert names.index("moov") < names.index("mdat")
        assert np.array_equal(decode(path), before)
        assert read_metadata(path) == tags
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert (stream.average_rate, stream.frames) == (Fraction(24000, 1001), 16)
            assert stream.codec_context.color_range == 1
            assert stream.codec_context.colorspace == 1
        assert list(tmp_path.iterdir()) == [path]

    def test_faststart_failure_leaves_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "o.mp4"
        write(path, moving_clip(4))
        before = path.read_bytes()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("sanawm.io.remux._copy_index_first", full)
        with pytest.raises(OutputError, match="no space left"):
            faststart(path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_metadata_of_no_video(self, tmp_path: Path) -> None:
        (tmp_path / "x.mp4").write_text("text")
        with pytest.raises(SanawmError, match=r"x\.mp4: not a video"):
            read_metadata(tmp_path / "x.mp4")
