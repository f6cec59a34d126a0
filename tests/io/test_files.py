"""Output names, checks before the work, atomic replacement."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sanawm.errors import OutputError, UsageError
from sanawm.io.files import (
    atomic_write,
    check_output,
    check_stem,
    free_space,
    part_path,
    remove_abandoned,
    remove_stale,
    write_error,
)

from .clips import CASES

NAMES = json.loads((CASES / "C21_output_names" / "names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", NAMES, ids=lambda c: c["id"])
def test_output_stems(case: dict[str, object], tmp_path: Path) -> None:
    name = str(case["name"])
    if case["accepted"]:
        assert check_stem(name) == name
        path = tmp_path / f"{name}.mp4"
        check_output(path, overwrite=False, suffixes=(".mp4",))
        path.write_bytes(b"x")
        assert [p.name for p in tmp_path.iterdir()] == [f"{name}.mp4"]
    else:
        with pytest.raises(UsageError) as caught:
            check_stem(name)
        assert caught.value.exit_code == 2
        assert "output name" in str(caught.value)
        assert len(str(caught.value).splitlines()) <= 3
        assert list(tmp_path.iterdir()) == []


def test_stem_is_counted_in_bytes_with_its_suffix() -> None:
    room = 255 - len(".part.mp4")
    assert check_stem("x" * room)
    with pytest.raises(UsageError, match=r"256 bytes with \.part\.mp4, expected at most 255"):
        check_stem("x" * (room + 1))
    assert check_stem("é" * (room // 2))
    with pytest.raises(UsageError, match="too long"):
        check_stem("é" * (room // 2 + 1))
    with pytest.raises(UsageError, match="not valid Unicode"):
        check_stem("bad\ud800")


def test_part_path() -> None:
    assert part_path(Path("a/out.mp4")) == Path("a/out.part.mp4")
    assert part_path(Path("v1.2.clip.mp4")) == Path("v1.2.clip.part.mp4")
    assert part_path(Path("x.safetensors")) == Path("x.part.safetensors")


class TestCheckOutput:
    def test_new_file_is_fine_and_not_created(self, tmp_path: Path) -> None:
        check_output(tmp_path / "out.mp4", overwrite=False)
        assert list(tmp_path.iterdir()) == []

    def test_existing_needs_overwrite(self, tmp_path: Path) -> None:
        path = tmp_path / "out.mp4"
        path.write_bytes(b"old")
        with pytest.raises(OutputError, match=r"out\.mp4 exists") as caught:
            check_output(path, overwrite=False)
        assert caught.value.exit_code == 5
        assert caught.value.fix is not None
        assert "--overwrite" in caught.value.fix
        check_output(path, overwrite=True)

    def test_dangling_link_counts_as_existing(self, tmp_path: Path) -> None:
        path = tmp_path / "out.mp4"
        path.symlink_to(tmp_path / "nowhere")
        with pytest.raises(OutputError, match="exists"):
            check_output(path, overwrite=False)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"folder .*/a/b does not exist") as caught:
            check_output(tmp_path / "a" / "b" / "out.mp4", overwrite=False)
        assert caught.value.fix == f"mkdir -p {tmp_path}/a/b"

    def test_folder_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("")
        with pytest.raises(OutputError, match="is a file, not a folder"):
            check_output(tmp_path / "f" / "out.mp4", overwrite=False)

    def test_target_is_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "out.mp4").mkdir()
        with pytest.raises(OutputError, match="is a folder"):
            check_output(tmp_path / "out.mp4", overwrite=True)

    def test_read_only_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *a: False)  # root may write anywhere
        with pytest.raises(OutputError, match="no permission to write"):
            check_output(tmp_path / "out.mp4", overwrite=False)

    def test_output_that_is_an_input(self, tmp_path: Path) -> None:
        source, link = tmp_path / "in.mp4", tmp_path / "link.mp4"
        source.write_bytes(b"x")
        link.hardlink_to(source)
        for path in (source, link):
            with pytest.raises(UsageError, match="also an input"):
                check_output(path, overwrite=True, inputs=[source])
        assert source.read_bytes() == b"x"

    def test_ending(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"ends in '\.avi', expected \.mp4"):
            check_output(tmp_path / "out.avi", overwrite=False, suffixes=(".mp4",))
        check_output(tmp_path / "OUT.MP4", overwrite=False, suffixes=(".mp4",))

    def test_name_length_counts_the_part_suffix(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="too long"):
            check_output(tmp_path / ("x" * 250 + ".mp4"), overwrite=False)
        check_output(tmp_path / ("x" * 246 + ".mp4"), overwrite=False)


class TestAtomicWrite:
    def test_replaces_when_done(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        path.write_text("old")
        with atomic_write(path) as temporary:
            assert temporary.parent == tmp_path
            assert temporary.suffix == ".json"
            temporary.write_text("new")
            assert path.read_text() == "old"
        assert path.read_text() == "new"
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_leaves_nothing_on_error(self, tmp_path: Path, error: type[BaseException]) -> None:
        path = tmp_path / "report.json"
        path.write_text("old")

        def fail_half_way() -> None:
            with atomic_write(path) as temporary:
                temporary.write_text("half")
                raise error

        with pytest.raises(error):
            fail_half_way()
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_system_errors_are_output_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        with pytest.raises(OutputError, match="no space left on device"), atomic_write(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert list(tmp_path.iterdir()) == []

    def test_what_a_killed_write_left_is_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        for name in ("report.json", "other.json"):
            with atomic_write(tmp_path / name) as temporary:
                temporary.write_text("half")
                kept = tmp_path / "kept"
                kept.write_bytes(temporary.read_bytes())
            kept.rename(temporary)  # as if the process had ended before the rename
        assert len(list(tmp_path.iterdir())) == 4
        remove_stale(path)
        left = sorted(p.name for p in tmp_path.iterdir())
        assert left[1:] == ["other.json", "report.json"]
        assert left[0] == temporary.name  # that of the other file
        remove_stale(tmp_path / "gone" / "x.json")

    def test_vanished_folder(self, tmp_path: Path) -> None:
        with (
            pytest.raises(OutputError, match="the folder is gone"),
            atomic_write(tmp_path / "gone" / "f.json") as temporary,
        ):
            temporary.write_text("x")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "no space left on device"),
        (errno.EDQUOT, "disk quota exceeded"),
        (errno.EFBIG, "file size limit reached"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.ENOTDIR, "Not a directory"),
    ],
)
def test_write_error_names_the_cause(code: int, text: str) -> None:
    error = write_error(Path("o.mp4"), OSError(code, os.strerror(code)), done="9 bytes", keep="k")
    assert error.message == f"o.mp4: {text} after 9 bytes; k"
    assert error.exit_code == 5


def test_free_space_looks_up_missing_folders(tmp_path: Path) -> None:
    assert free_space(tmp_path / "no" / "such" / "file.mp4") > 0


class TestRemoveAbandoned:
    def test_only_old_files_of_dead_processes(self, tmp_path: Path) -> None:
        """A real process is killed while it writes; its file goes, once it is old enough."""
        script = (
            "import os, pathlib, signal\n"
            "from sanawm.io.files import atomic_write\n"
            "with atomic_write(pathlib.Path('clip.mp4')) as temporary:\n"
            "    temporary.write_bytes(b'half')\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
        assert done.returncode == -signal.SIGKILL
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(".sanawm-")
        others = [tmp_path / name for name in ("clip.mp4", ".sanawm-keep-clip", ".sanawm-notes")]
        for path in others:
            path.write_bytes(b"mine")
            os.utime(path, (1, 1))
        with atomic_write(tmp_path / "other.mp4") as living:
            living.write_bytes(b"half")
            os.utime(living, (1, 1))
            remove_abandoned(tmp_path)
            assert left.exists()  # just written: its process might run elsewhere
            os.utime(left, (1, 1))
            remove_abandoned(tmp_path)
            assert not left.exists()
            assert living.exists()
        assert all(path.exists() for path in others)
