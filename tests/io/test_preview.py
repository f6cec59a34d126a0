"""Contact sheet and PNG frames."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sanawm.errors import OutputBusy, OutputError, UsageError
from sanawm.io import preview
from sanawm.io.frames_dir import FramesDir
from sanawm.io.preview import ContactSheet

from .clips import moving_clip


def flat(count: int, level: int, *, height: int = 32, width: int = 64) -> np.ndarray:
    """Return frames of one grey."""
    return np.full((count, height, width, 3), level, np.uint8)


def boundaries(sheet: np.ndarray) -> list[int]:
    """Return the tops of the full-width orange lines."""
    orange = (sheet == preview._BOUNDARY).all(axis=2).all(axis=1)
    return [int(y) for y in np.flatnonzero(orange) if not orange[y - 1]]


class TestContactSheet:
    def test_one_row_a_block(self, tmp_path: Path) -> None:
        sheet = ContactSheet(per_row=4)
        for block in range(3):
            sheet.add_block(block, 8 * block, flat(8, 60 + 60 * block))
        path = sheet.save(tmp_path / "s.png")
        pixels = np.asarray(Image.open(path))
        lines = boundaries(pixels)
        assert len(lines) == 2
        for block, level in enumerate((60, 120, 180)):
            top = 0 if block == 0 else lines[block - 1]
            bottom = lines[block] if block < 2 else len(pixels)
            row = pixels[top:bottom]
            shown = (row == level).all(axis=2).sum()
            assert shown == 4 * 192 * 96  # four pictures, enlarged to 192 wide
            others = [v for v in (60, 120, 180) if v != level]
            assert all((row == v).all(axis=2).sum() < 200 for v in others)
        assert list(tmp_path.iterdir()) == [path]

    def test_first_and_last_frame_are_shown(self) -> None:
        sheet = ContactSheet(per_row=3)
        sheet.add_block(0, 100, moving_clip(24))
        row = sheet._rows[0]
        assert row.numbers == [100, 112, 123]
        assert (row.first, row.last) == (100, 123)

    def test_short_blocks(self, tmp_path: Path) -> None:
        sheet = ContactSheet(per_row=6)
        sheet.add_block(0, 0, flat(1, 99))
        sheet.add_block(1, 1, flat(3, 99))
        assert [r.numbers for r in sheet._rows] == [[0], [1, 2, 3]]
        sheet.save(tmp_path / "s.png")

    def test_long_clips_are_thinned_out(self, tmp_path: Path) -> None:
        sheet = ContactSheet()
        for block in range(200):
            sheet.add_block(block, 2 * block, flat(2, 90))
        blocks = [r.block for r in sheet._rows]
        assert len(blocks) <= preview.MAX_ROWS
        assert blocks == list(range(0, 200, 4))
        assert sheet._title() == "200 blocks, 400 frames; one block in 4 is shown"

    def test_says_what_is_shown(self, tmp_path: Path) -> None:
        """Two lines make room for themselves; the one that is too long ends inside the sheet."""
        plain, told = ContactSheet(per_row=4), ContactSheet(per_row=4, about=["short", "w" * 999])
        for sheet in (plain, told):
            sheet.add_block(0, 0, flat(8, 200))
        pictures = [
            np.asarray(Image.open(s.save(tmp_path / f"{i}.png")))
            for i, s in enumerate((plain, told))
        ]
        more = pictures[1].shape[0] - pictures[0].shape[0]
        assert more == 2 * preview._LINE_HEIGHT
        assert np.array_equal(pictures[0][40:], pictures[1][40 + more :])
        inked = (pictures[1][:70] != preview._BACKGROUND).any(axis=2)
        columns = np.flatnonzero(inked.any(axis=0))
        width = inked.shape[1]
        assert width - 40 < columns[-1] < width - 8

    def test_keeps_only_thumbnails(self) -> None:
        sheet = ContactSheet(per_row=4)
        tracemalloc.start()
        for block in range(10):
            sheet.add_block(block, 24 * block, flat(24, block, height=360, width=640))
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept < 10 * 4 * 192 * 108 * 3 * 1.2

    def test_errors(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="contact sheet is empty"):
            ContactSheet().save(tmp_path / "s.png")
        with pytest.raises(UsageError, match="2 or more"):
            ContactSheet(per_row=1)
        sheet = ContactSheet()
        sheet.add_block(0, 0, flat(2, 0))
        with pytest.raises(UsageError, match=r"expected \.png"):
            sheet.save(tmp_path / "s.jpg")
        (tmp_path / "s.png").write_bytes(b"old")
        with pytest.raises(OutputError, match="exists"):
            sheet.save(tmp_path / "s.png")
        sheet.save(tmp_path / "s.png", overwrite=True)
        assert Image.open(tmp_path / "s.png").format == "PNG"


class TestFramesDir:
    def test_lossless_and_numbered(self, tmp_path: Path) -> None:
        clip = moving_clip(5)
        frames = FramesDir(tmp_path / "f", width=64, height=32)
        frames.write(clip[:3])
        frames.write(clip[3:])
        assert frames.close() == 5
        paths = sorted((tmp_path / "f").iterdir())
        assert [p.name for p in paths] == [f"frame_{i:06d}.png" for i in range(5)]
        for path, frame in zip(paths, clip, strict=True):
            assert np.array_equal(np.asarray(Image.open(path)), frame)

    def test_folder_with_files_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "note.txt").write_text("mine")
        with pytest.raises(OutputError, match=r"not empty \(1 files\)"):
            FramesDir(tmp_path, width=64, height=32)

    def test_overwrite_removes_earlier_frames_only(self, tmp_path: Path) -> None:
        (tmp_path / "note.txt").write_text("mine")
        (tmp_path / "frame_000099.png").write_bytes(b"")
        frames = FramesDir(tmp_path, width=64, height=32, overwrite=True)
        frames.write(moving_clip(1))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["frame_000000.png", "note.txt"]

    def test_resume_cuts_back(self, tmp_path: Path) -> None:
        first = FramesDir(tmp_path / "f", width=64, height=32)
        first.write(moving_clip(6))
        with pytest.raises(OutputBusy, match="being written by another run"):
            FramesDir(tmp_path / "f", width=64, height=32, keep_frames=4)
        first.release()
        second = FramesDir(tmp_path / "f", width=64, height=32, keep_frames=4)
        assert len(list((tmp_path / "f").iterdir())) == 4
        second.write(moving_clip(3))
        assert second.close() == 7
        with pytest.raises(OutputError, match="frame 7 of the 9 frames to keep is missing"):
            FramesDir(tmp_path / "f", width=64, height=32, keep_frames=9)
        assert len(list((tmp_path / "f").iterdir())) == 7
        torn = tmp_path / "f" / "frame_000002.png"
        torn.write_bytes(torn.read_bytes()[:-3])
        with pytest.raises(OutputError, match="frame 2 of the 4 frames to keep is cut short"):
            FramesDir(tmp_path / "f", width=64, height=32, keep_frames=4)

    def test_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="is a file"):
            FramesDir(tmp_path / "file", width=64, height=32)
        with pytest.raises(OutputError, match="does not exist"):
            FramesDir(tmp_path / "a" / "b", width=64, height=32)
        frames = FramesDir(tmp_path / "f", width=64, height=32)
        with pytest.raises(UsageError, match="float32"):
            frames.write(np.zeros((1, 32, 64, 3), np.float32))
        with pytest.raises(UsageError, match="no frames"):
            frames.close()

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        frames = FramesDir(tmp_path / "f", width=64, height=32)
        frames.write(moving_clip(2))
        frames.path_of(2).symlink_to("/dev/full")
        with pytest.raises(OutputError, match=r"frame_000002\.png: no space left .* 2 frames"):
            frames.write(moving_clip(1))
        assert len(list((tmp_path / "f").iterdir())) == 2
