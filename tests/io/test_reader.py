"""Reading videos: honest counts, right colours, upright frames, broken files."""

from __future__ import annotations

import tracemalloc
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.io.image import fit_image
from sanawm.io.reader import VideoReader
from sanawm.io.remux import faststart
from sanawm.io.video import VideoSettings, VideoWriter
from sanawm.notes import Notes

from .clips import decode, encode_plain, moving_clip, wait_for

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (220, 170, 140)]


def bars(width: int = 64, height: int = 32) -> np.ndarray:
    """Return one frame of four colour bars, `(1, height, width, 3)`."""
    return np.repeat(np.array([[COLOURS]], np.uint8), width // 4, axis=2).repeat(height, axis=1)


def bar_error(pixels: np.ndarray) -> int:
    """Return the largest error at the bars' centres."""
    step = pixels.shape[1] // 4
    centres = pixels[pixels.shape[0] // 2, step // 2 :: step].astype(int)
    return int(np.abs(centres - COLOURS).max())


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 10 frames, 64x32, 16 fps, frame i a grey of 20 + 20 i."""
    path = tmp_path_factory.mktemp("reader") / "clip.mp4"
    grey = (20 + 20 * np.arange(10, dtype=np.uint8))[:, None, None, None]
    settings = VideoSettings(64, 32, Fraction(16), metadata={"sanawm": "{}"})
    with VideoWriter(path, settings) as writer:
        writer.write(np.broadcast_to(grey, (10, 32, 64, 3)))
    return path


def numbers(reader: VideoReader, **selection: object) -> list[int]:
    """Return the frame numbers that the grey levels of `clip` show."""
    return [round((f.mean() - 20) / 20) for f in reader.frames(**selection)]  # type: ignore[arg-type]


class TestFrames:
    def test_properties(self, clip: Path) -> None:
        reader = VideoReader(clip)
        assert (reader.width, reader.height, reader.fps) == (64, 32, 16)
        assert (reader.frame_count, reader.rotation, reader.variable_rate) == (10, 0, False)
        assert reader.metadata == {"sanawm": "{}"}

    def test_all(self, clip: Path) -> None:
        frames = list(VideoReader(clip).frames())
        assert [f.shape for f in frames] == [(32, 64, 3)] * 10
        assert {f.dtype for f in frames} == {np.dtype(np.uint8)}
        assert numbers(VideoReader(clip)) == list(range(10))

    def test_first_ones(self, clip: Path) -> None:
        assert numbers(VideoReader(clip), count=3) == [0, 1, 2]
        assert numbers(VideoReader(clip), count=0) == []
        assert numbers(VideoReader(clip), count=99) == list(range(10))

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.integers(0, 9), max_size=12).map(sorted))
    def test_chosen_ones(self, clip: Path, indices: list[int]) -> None:
        assert numbers(VideoReader(clip), indices=indices) == indices

    def test_chosen_and_counted(self, clip: Path) -> None:
        assert numbers(VideoReader(clip), indices=[0, 4, 8], count=2) == [0, 4]

    def test_descending_indices(self, clip: Path) -> None:
        for indices in ([3, 2], [-1]):
            with pytest.raises(UsageError, match="must not descend"):
                list(VideoReader(clip).frames(indices=indices))

    def test_index_behind_the_end(self, clip: Path) -> None:
        with pytest.raises(InputError, match="no frame 10, the video ends before it"):
            list(VideoReader(clip).frames(indices=[9, 10]))

    def test_fit(self, clip: Path, tmp_path: Path) -> None:
        source = moving_clip(3, width=90, height=160)
        path = encode_plain(tmp_path / "p.mp4", source)
        notes = Notes()
        frames = list(VideoReader(path, notes=notes).fit_frames(width=64, height=64, count=2))
        assert [f.shape for f in frames] == [(64, 64, 3)] * 2
        plain = next(iter(VideoReader(path).frames()))
        assert np.array_equal(frames[0], fit_image(plain, width=64, height=64, notes=Notes()))
        assert notes.changes == [
            f"{path}: resized 90x160 to 64x114, cropped to 64x64: 44 % is cut off"
        ]
        assert "44 %" in notes.warnings[0]

    def test_memory_is_flat(self, tmp_path: Path) -> None:
        path = tmp_path / "long.mp4"
        with VideoWriter(path, VideoSettings(256, 256, Fraction(16))) as writer:
            for _ in range(8):
                writer.write(np.zeros((24, 256, 256, 3), np.uint8))
        tracemalloc.start()
        assert sum(1 for _ in VideoReader(path).frames()) == 192
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10 * 256 * 256 * 3  # the clip has 192 frames


class TestColour:
    def test_own_files(self, tmp_path: Path) -> None:
        with VideoWriter(tmp_path / "o.mp4", VideoSettings(64, 32, Fraction(16))) as writer:
            writer.write(bars())
        assert bar_error(next(VideoReader(tmp_path / "o.mp4").frames())) <= 3

    @pytest.mark.parametrize(
        ("tag", "matrix", "color_range"),
        [(1, 1, 1), (1, 1, 2), (5, 5, 1), (6, 5, 1), (6, 5, 2), (7, 7, 1), (9, 9, 1)],
    )
    def test_tags_are_followed(
        self, tmp_path: Path, tag: int, matrix: int, color_range: int
    ) -> None:
        path = encode_plain(
            tmp_path / "t.mp4", bars(), colorspace=tag, matrix=matrix, color_range=color_range
        )
        assert bar_error(next(VideoReader(path).frames())) <= 4

    @pytest.mark.parametrize(
        ("size", "matrix"), [((64, 32), 5), ((720, 576), 5), ((1280, 704), 1), ((64, 578), 1)]
    )
    def test_untagged_by_size(self, tmp_path: Path, size: tuple[int, int], matrix: int) -> None:
        path = encode_plain(tmp_path / "u.mp4", bars(*size), matrix=matrix)
        with av.open(str(path)) as container:
            assert container.streams.video[0].codec_context.colorspace == 2
        assert bar_error(next(VideoReader(path).frames())) <= 4

    @pytest.mark.parametrize(
        ("codec", "pix_fmt", "name"),
        [("libx264rgb", "rgb24", "r.mp4"), ("png", "rgb24", "p.mov"), ("ffv1", "bgr0", "f.mkv")],
    )
    def test_rgb_is_exact(self, tmp_path: Path, codec: str, pix_fmt: str, name: str) -> None:
        path = encode_plain(tmp_path / name, bars(), codec=codec, pix_fmt=pix_fmt, crf=0)
        assert bar_error(next(VideoReader(path).frames())) == 0

    def test_grey(self, tmp_path: Path) -> None:
        ramp = np.linspace(0, 255, 64).astype(np.uint8)[None, None, :, None]
        ramp = np.broadcast_to(ramp, (1, 32, 64, 3))
        path = encode_plain(tmp_path / "g.mkv", ramp, codec="ffv1", pix_fmt="gray")
        assert np.abs(next(VideoReader(path).frames()).astype(int) - ramp[0]).max() <= 1

    def test_hdr_is_told(self, tmp_path: Path) -> None:
        with av.open(str(tmp_path / "h.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=16)
            stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
            stream.codec_context.color_trc = 16
            frame = av.VideoFrame.from_ndarray(bars()[0], format="rgb24")
            frame.pts = 0
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        notes = Notes()
        assert next(VideoReader(tmp_path / "h.mp4", notes=notes).frames()).dtype == np.uint8
        assert "HDR" in notes.warnings[0]


@pytest.mark.parametrize("rotation", [0, 90, 180, -90])
def test_rotation(tmp_path: Path, rotation: int) -> None:
    path = encode_plain(tmp_path / "r.mp4", bars(), rotation=rotation)
    reader = VideoReader(path)
    pixels = next(reader.frames())
    assert pixels.shape == (reader.height, reader.width, 3)
    assert (reader.width, reader.height) == ((32, 64) if rotation % 180 else (64, 32))
    stored = Image.fromarray(bars()[0])
    shown = np.asarray(stored.rotate(reader.rotation, expand=True)).astype(int)  # anticlockwise
    assert np.abs(pixels.astype(int) - shown).mean() < 12


def test_rotation_of_a_phone(tmp_path: Path) -> None:
    """A phone held upright stores the picture lying and a matrix that turns it clockwise."""
    path = encode_plain(tmp_path / "r.mp4", bars(), rotation=0)
    data = path.read_bytes()
    identity = b"".join(n.to_bytes(4, "big") for n in (65536, 0, 0, 0, 65536, 0, 0, 0, 0x40000000))
    turned = b"".join(
        n.to_bytes(4, "big", signed=True) for n in (0, 65536, 0, -65536, 0, 0, 0, 0, 0x40000000)
    )
    at = data.index(identity, data.index(b"tkhd"))
    path.write_bytes(data[:at] + turned + data[at + len(turned) :])
    reader = VideoReader(path)
    assert (reader.width, reader.height) == (32, 64)
    pixels = next(reader.frames())
    # clockwise: the left edge (red) becomes the top
    assert np.abs(pixels[8, 16].astype(int) - (255, 0, 0)).max() < 30
    assert np.abs(pixels[40, 16].astype(int) - (0, 0, 255)).max() < 30


class TestRates:
    @pytest.mark.parametrize(
        ("fps", "indices"),
        [
            (16, list(range(10))),
            (8, [0, 2, 4, 6, 8]),
            (32, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]),
            (12, [0, 1, 3, 4, 5, 7, 8]),
            (1, [0]),
        ],
    )
    def test_resampled(self, clip: Path, fps: int, indices: list[int]) -> None:
        assert VideoReader(clip).resampled(Fraction(fps)) == indices

    @settings(max_examples=30, deadline=None)
    @given(st.fractions(min_value=1, max_value=100, max_denominator=50))
    def test_resampled_is_nearest(self, clip: Path, fps: Fraction) -> None:
        indices = VideoReader(clip).resampled(fps)
        assert len(indices) == int(Fraction(9, 16) * fps) + 1
        for k, i in enumerate(indices):
            assert abs(Fraction(i, 16) - k / fps) <= Fraction(1, 32) + Fraction(1, 10**6)

    def test_sample_says_what_changes(self, clip: Path) -> None:
        notes = Notes()
        reader = VideoReader(clip, notes=notes)
        assert reader.sample("keep", fps=Fraction(8)) is None
        assert reader.sample("resample", fps=Fraction(16)) == list(range(10))
        assert notes.changes == []
        reader.sample("resample", fps=Fraction(8))
        assert notes.changes == [
            f"{clip}: 10 frames at 16 resampled to 5 at 8 (5 skipped, 0 repeated)"
        ]
        with pytest.raises(UsageError, match="expected keep or resample"):
            reader.sample("nearest", fps=Fraction(8))

    def test_variable_rate(self, tmp_path: Path) -> None:
        stamps = [0, 100, 150, 400, 500]
        path = encode_plain(tmp_path / "v.mp4", moving_clip(5), fps=Fraction(10), stamps=stamps)
        notes = Notes()
        reader = VideoReader(path, notes=notes)
        assert reader.variable_rate
        assert reader.sample("keep", fps=Fraction(10)) is None
        assert "unevenly spaced" in notes.warnings[0]
        # at 0, .1, .2, .3, .4, .5 s; .3 is nearer to .4 than to .15
        assert reader.resampled(Fraction(10)) == [0, 1, 2, 3, 3, 4]

    def test_fractional_rate(self, tmp_path: Path) -> None:
        path = encode_plain(tmp_path / "n.mp4", moving_clip(5), fps=Fraction(30000, 1001))
        assert VideoReader(path).fps == Fraction(30000, 1001)


class TestBroken:
    def test_missing(self, tmp_path: Path) -> None:
        for path in (tmp_path / "no.mp4", tmp_path):
            with pytest.raises(MissingFile) as caught:
                VideoReader(path)
            assert caught.value.exit_code == 3

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"", "the file is empty"), (b"no video" * 99, "not a video that can be read")],
    )
    def test_no_video(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "x.mp4"
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            VideoReader(path)
        assert str(path) in caught.value.message
        assert caught.value.exit_code == 2

    def test_sound_only(self, tmp_path: Path) -> None:
        with wave.open(str(tmp_path / "s.wav"), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(8000)
            sound.writeframes(bytes(8000))
        with pytest.raises(InputError, match=r"no video in this file \(it holds audio\)"):
            VideoReader(tmp_path / "s.wav")

    def test_cut_off_ordinary_file(self, clip: Path, tmp_path: Path) -> None:
        path = tmp_path / "cut.mp4"
        path.write_bytes(clip.read_bytes()[:-900])
        with pytest.raises(InputError, match="not a video that can be read") as caught:
            VideoReader(path)
        assert caught.value.fix is not None
        assert "has no index" in caught.value.fix

    def test_cut_off_growing_file(self, tmp_path: Path) -> None:
        writer = VideoWriter(tmp_path / "o.mp4", VideoSettings(64, 32, Fraction(16)))
        writer.write(moving_clip(20))
        wait_for(writer, 20)
        data = writer.part_path.read_bytes()
        writer.abort()
        path = tmp_path / "cut.mp4"
        path.write_bytes(data[:-40])
        notes = Notes()
        reader = VideoReader(path, notes=notes)
        frames = list(reader.frames())
        assert len(frames) == len(decode(path)) >= 17
        assert reader.fps == 16
        assert any("cut short or damaged" in line for line in notes.warnings)

    def test_growing_file_is_counted(self, tmp_path: Path) -> None:
        writer = VideoWriter(tmp_path / "o.mp4", VideoSettings(64, 32, Fraction(16)))
        writer.write(moving_clip(20))
        wait_for(writer, 20)
        reader = VideoReader(writer.part_path)
        assert (reader.frame_count, len(list(reader.frames()))) == (19, 19)
        writer.abort()

    def test_names_are_no_protocols(self, clip: Path, tmp_path: Path) -> None:
        for name in ("concat:a.mp4|b.mp4", "data:x.mp4", "%03d.mp4"):
            path = tmp_path / name
            path.write_bytes(clip.read_bytes())
            assert VideoReader(path).frame_count == 10


@pytest.mark.parametrize("name", ["c.mkv", "c.mp4", "c.avi"])
def test_a_cut_anywhere_is_told(tmp_path: Path, name: str) -> None:
    """Also between two packets, where nothing is torn: the header says how long it was."""
    path = encode_plain(tmp_path / name, moving_clip(48))
    if name == "c.mp4":
        faststart(path)  # else its index is the first thing to go
    data = path.read_bytes()
    whole = Notes()
    assert VideoReader(path, notes=whole).frame_count == 48
    assert not whole.warnings
    between = 0
    for size in range(len(data) // 4, len(data) - len(data) // 8, max(1, len(data) // 150)):
        path.write_bytes(data[:size])
        notes = Notes()
        try:
            reader = VideoReader(path, notes=notes)
            count = reader.frame_count
            found = len(list(reader.frames()))
        except InputError:
            continue
        assert found < 46
        assert any("cut short" in line for line in notes.warnings), (size, found)
        between += any("its header says 3.00 s" in line for line in notes.warnings)
        assert count >= found
    assert between or name != "c.mkv"


def test_a_last_frame_that_stands_long_is_no_cut(tmp_path: Path) -> None:
    path = encode_plain(tmp_path / "v.mkv", moving_clip(5), stamps=[0, 100, 150, 400, 1000])
    notes = Notes()
    assert VideoReader(path, notes=notes).frame_count == 5
    assert not [line for line in notes.warnings if "cut short" in line]
