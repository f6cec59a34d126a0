"""Encoder settings are checked here because FFmpeg does not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sanawm.errors import MachineError, UsageError
from sanawm.io import encoder
from sanawm.io.encoder import ENCODERS, VideoSettings, check_encoder, check_settings, encode_chunk
from sanawm.io.video import VideoWriter
from sanawm.notes import Notes

from .clips import decode, moving_clip

SETTINGS = VideoSettings(width=64, height=32, fps=Fraction(16))


@pytest.mark.parametrize("name", ENCODERS)
def test_every_option_name_is_known_to_ffmpeg(name: str) -> None:
    # An unknown name is ignored silently: a misspelt `crf` would go unnoticed.
    context = av.CodecContext.create(name, "w")
    known = context.supported_options
    names = {o.name for o in (*known.private, *known.generic)}
    options = encoder._options(replace(SETTINGS, encoder=name))
    assert set(options) <= names


@pytest.mark.parametrize("name", ENCODERS)
def test_every_preset_is_known_to_ffmpeg(name: str) -> None:
    preset = next(
        o for o in av.CodecContext.create(name, "w").supported_options.private if o.name == "preset"
    )
    if preset.choices:
        assert set(ENCODERS[name].presets) <= {c.name for c in preset.choices}
    else:  # free text: the encoder itself looks it up and fails on opening
        for value in ENCODERS[name].presets:
            context: Any = av.CodecContext.create(name, "w")
            settings = replace(SETTINGS, encoder=name, encoder_preset=value)
            encoder.configure(context, settings, rate=settings.fps)
            context.open()


@pytest.mark.parametrize("name", ["libx264", "libx265"])
def test_check_encoder_opens_it(name: str) -> None:
    check_encoder(name)
    check_encoder(name, width=1280, height=704)


@pytest.mark.parametrize("name", ["nosuch", "mpeg4", "", "libx264 "])
def test_unknown_encoder(name: str) -> None:
    for check in (
        lambda: check_encoder(name),
        lambda: check_settings(replace(SETTINGS, encoder=name)),
    ):
        with pytest.raises(MachineError) as caught:
            check()
        assert caught.value.exit_code == 4
        assert repr(name) in caught.value.message
        assert "usable here: libx264, libx265" in caught.value.message


def test_encoder_that_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    real = av.CodecContext.create

    def create(name: str, mode: str) -> Any:
        if name == "libx265":
            raise PermissionError(1, "Operation not permitted")
        return real(name, mode)

    monkeypatch.setattr(av.CodecContext, "create", create)
    with pytest.raises(MachineError) as caught:
        check_encoder("libx265")
    assert "libx265 does not work on this machine" in caught.value.message
    assert "Operation not permitted" in caught.value.message
    assert "usable here: libx264" in caught.value.message
    assert caught.value.message.count("libx265") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 65, "height": 33}, "65x33 cannot be encoded: width and height must be even"),
        ({"width": 0}, "0x32 is out of range"),
        ({"height": 20000}, "64x20000 is out of range"),
        ({"crf": 52}, "crf 52 is out of range: expected 0"),
        ({"crf": -1}, "crf -1"),
        ({"crf": float("nan")}, "crf nan"),
        ({"crf": True}, "crf True"),
        ({"encoder_preset": "mediun"}, "preset 'mediun' is unknown to libx264: expected one of"),
        ({"frames_per_chunk": 0}, "frames per chunk is 0"),
        ({"fps": Fraction(0)}, "frame rate 0 is not above zero"),
        ({"metadata": {"sanawm": 3}}, "metadata 'sanawm' is no text"),
        ({"metadata": {"title": "a\0b"}}, "metadata 'title' holds a NUL"),
        ({"metadata": {"title": "\ud800"}}, "metadata 'title' holds a NUL or text that is not"),
    ],
)
def test_settings_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_settings(replace(SETTINGS, **change))


def test_odd_size_names_both_neighbours() -> None:
    with pytest.raises(UsageError) as caught:
        check_settings(replace(SETTINGS, width=65, height=33))
    assert caught.value.fix == "use 64x32 or 66x34"


def test_lossless_is_told() -> None:
    notes = Notes()
    check_settings(replace(SETTINGS, crf=0), notes=notes)
    assert "High 4:4:4" in notes.warnings[0]


@pytest.mark.parametrize("name", ["libx264", "libx265"])
def test_no_frame_is_held_back_and_chunks_are_closed(name: str) -> None:
    settings = replace(SETTINGS, encoder=name, frames_per_chunk=8)
    packets = list(encode_chunk(settings, moving_clip(8), first_frame=40))
    assert [p.pts for p in packets] == list(range(40, 48))
    assert [p.dts for p in packets] == list(range(40, 48))  # no reordering
    assert [p.is_keyframe for p in packets] == [True] + [False] * 7


@pytest.mark.parametrize("name", ["libx264", "libx265"])
def test_same_chunk_gives_same_bytes_at_any_place(name: str) -> None:
    settings = replace(SETTINGS, encoder=name)
    clip = moving_clip(8)
    first, later = (
        [bytes(p) for p in encode_chunk(settings, clip, first_frame=start)] for start in (0, 800)
    )
    assert first == later


@pytest.mark.parametrize("name", ["libx264", "libx265"])
def test_the_rate_changes_no_pixel(name: str, tmp_path: Path) -> None:
    """x264 and x265 choose quantisers by a frame's duration; ours depend on frames and crf alone.

    The container and the stream's own header both tell the clip's rate.
    """
    clip = moving_clip(24)
    pictures = []
    for number, rate in enumerate(("16", "1", "12", "24000/1001", "60", "240")):
        fps, path = Fraction(rate), tmp_path / f"{number}.mp4"
        settings = replace(SETTINGS, encoder=name, fps=fps, frames_per_chunk=12)
        with VideoWriter(path, settings) as writer:
            writer.write(clip[:12])
            writer.write(clip[12:])
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.average_rate == stream.guessed_rate == fps
            assert stream.codec_context.framerate == fps
            assert stream.duration * stream.time_base == 24 / fps
            times = [f.pts * stream.time_base for f in container.decode(stream)]
        assert times == [n / fps for n in range(24)]
        pictures.append(decode(path))
    for other in pictures[1:]:
        np.testing.assert_array_equal(other, pictures[0])
