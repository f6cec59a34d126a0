"""Latents written while they are made."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sanawm.errors import InputError, NumericsError, OutputError, UsageError
from sanawm.io.latent_writer import LatentsWriter, save_tensors
from sanawm.io.latents import LatentsSource
from sanawm.notes import Notes
from sanawm.shapes import LatentShape

SHAPE = LatentShape(2, 3, 7, 4, 5)
META = {"fps": "16", "recipe": 'é "quoted" \\'}


def values() -> torch.Tensor:
    """Return latents that differ everywhere."""
    return torch.randn(tuple(SHAPE), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reads_like_save_file(tmp_path: Path, dtype: torch.dtype) -> None:
    path, reference = tmp_path / "a.safetensors", tmp_path / "reference.safetensors"
    with LatentsWriter(path, SHAPE, dtype, META) as writer:
        for start, stop in ((0, 1), (1, 4), (4, 7)):
            writer.write(start, values()[:, :, start:stop])
    save_file({"latents": values().to(dtype)}, reference, metadata=META)
    ours, theirs = load_file(path), load_file(reference)
    assert ours.keys() == theirs.keys()
    assert ours["latents"].dtype == dtype
    assert torch.equal(ours["latents"], theirs["latents"])
    with safe_open(path, framework="pt") as file:
        assert {k: v for k, v in file.metadata().items() if k in META} == META
    assert LatentsSource.open(path, channels=3).metadata == META
    assert path.stat().st_size % 8 == 0 or dtype != torch.float32


def test_strided_and_out_of_order_slices(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    source = values().permute(0, 1, 2, 4, 3).contiguous().permute(0, 1, 2, 4, 3)
    with LatentsWriter(path, SHAPE, torch.float32, {}) as writer:
        writer.write(4, source[:, :, 4:])
        assert writer.frames_written == 0
        writer.write(0, source[:, :, :4])
        assert writer.frames_written == 7
    assert torch.equal(load_file(path)["latents"], values())


def test_unfinished_file_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    writer = LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.float32, META)
    writer.write(0, values()[:, :, :4])
    part = writer.abort()
    assert part == tmp_path / "a.part.safetensors"
    with pytest.raises(InputError, match="unfinished: 4 of 7 latent frames are written"):
        LatentsSource.open(part)
    assert torch.equal(load_file(part)["latents"][:, :, :4], values()[:, :, :4])


def test_missing_frames_at_close(tmp_path: Path) -> None:
    writer = LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.float32, META)
    writer.write(0, values()[:, :, :4])
    writer.write(5, values()[:, :, 5:])
    with pytest.raises(OutputError, match="1 of 7 latent frames were not written, the first is 4"):
        writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.part.safetensors"]


class TestResume:
    def test_equal_to_a_run_in_one_go(self, tmp_path: Path) -> None:
        whole, path = tmp_path / "w.safetensors", tmp_path / "a.safetensors"
        with LatentsWriter(whole, SHAPE, torch.bfloat16, META) as writer:
            writer.write(0, values())
        first = LatentsWriter(path, SHAPE, torch.bfloat16, META)
        first.write(0, values()[:, :, :6])
        first.abort()
        with LatentsWriter(path, SHAPE, torch.bfloat16, META, keep_frames=4) as second:
            assert second.frames_written == 4
            second.write(4, values()[:, :, 4:])
        assert path.read_bytes() == whole.read_bytes()

    @pytest.mark.parametrize(
        ("shape", "dtype", "meta", "keep", "message"),
        [
            (SHAPE, torch.float32, META, 5, "holds 4 latent frames, expected at least 5"),
            (SHAPE._replace(width=6), torch.float32, META, 4, "of another clip or other settings"),
            (SHAPE, torch.float16, META, 4, "of another clip or other settings"),
            (SHAPE, torch.float32, {"fps": "24"}, 4, "of another clip or other settings"),
        ],
    )
    def test_refused(
        self,
        tmp_path: Path,
        shape: LatentShape,
        dtype: torch.dtype,
        meta: dict[str, str],
        keep: int,
        message: str,
    ) -> None:
        path = tmp_path / "a.safetensors"
        first = LatentsWriter(path, SHAPE, torch.float32, META)
        first.write(0, values()[:, :, :4])
        before = first.abort().read_bytes()
        with pytest.raises(OutputError, match=message):
            LatentsWriter(path, shape, dtype, meta, keep_frames=keep)
        assert first.part_path.read_bytes() == before

    def test_stale_part_is_emptied(self, tmp_path: Path) -> None:
        path, notes = tmp_path / "a.safetensors", Notes()
        LatentsWriter(path, SHAPE, torch.float32, META).abort()
        writer = LatentsWriter(path, SHAPE, torch.float32, META, notes=notes)
        assert "left by an unfinished run" in notes.infos[0]
        with pytest.raises(OutputError, match="another run"):
            LatentsWriter(path, SHAPE, torch.float32, META)
        writer.abort()


class TestRefused:
    @pytest.mark.parametrize(
        ("start", "shape"),
        [
            (0, (2, 3, 8, 4, 5)),
            (6, (2, 3, 2, 4, 5)),
            (-1, (2, 3, 1, 4, 5)),
            (0, (2, 3, 0, 4, 5)),
            (0, (1, 3, 1, 4, 5)),
            (0, (2, 3, 4, 5)),
        ],
    )
    def test_slices_that_do_not_fit(
        self, tmp_path: Path, start: int, shape: tuple[int, ...]
    ) -> None:
        writer = LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.float32, {})
        with pytest.raises(UsageError, match="do not fit a clip of shape"):
            writer.write(start, torch.zeros(shape))
        writer.abort()

    def test_not_finite(self, tmp_path: Path) -> None:
        writer = LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.float16, {})
        tensor = values()
        tensor[0, 2, 5, 0, 0] = 1e6  # fine in float32, infinite in float16
        with pytest.raises(NumericsError, match=r"as torch.float16 in frame 5, channel 2"):
            writer.write(0, tensor)
        writer.abort()

    def test_dtype(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot be saved as torch\.int8"):
            LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.int8, {})

    @pytest.mark.parametrize("meta", [{"seed": 3}, {"frames_written": "3"}])
    def test_metadata(self, tmp_path: Path, meta: dict[str, str]) -> None:
        with pytest.raises(UsageError, match="metadata"):
            LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.float32, meta)
        assert list(tmp_path.iterdir()) == []

    def test_existing(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        path.write_bytes(b"old")
        with pytest.raises(OutputError, match="exists"):
            LatentsWriter(path, SHAPE, torch.float32, {})
        with LatentsWriter(path, SHAPE, torch.float32, {}, overwrite=True) as writer:
            writer.write(0, values())
        assert torch.equal(load_file(path)["latents"], values())


LIMITED = """
import resource, sys, torch
from pathlib import Path
from sanawm.io.latent_writer import LatentsWriter
from sanawm.shapes import LatentShape
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
LatentsWriter(Path(sys.argv[1]), LatentShape(1, 8, 50, 4, 5), torch.float32, {})
"""


def test_room_is_claimed_at_the_start(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "a.safetensors")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "OutputError" in result.stderr
    assert "file size limit reached" in result.stderr
    assert "bytes are needed for all latents" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_failing_disk_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LatentsWriter(tmp_path / "a.safetensors", SHAPE, torch.float32, {})
    writer.write(0, values()[:, :, :3])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OutputError, match="no space left on device after 3 of 7 latent frames"):
        writer.write(3, values()[:, :, 3:])
    monkeypatch.undo()
    writer.abort()


def test_memory_is_flat(tmp_path: Path) -> None:
    """200 MB of latents pass through; the process grows by far less."""
    shape = LatentShape(1, 128, 400, 32, 32)
    block = torch.randn(1, 128, 4, 32, 32)
    with LatentsWriter(tmp_path / "a.safetensors", shape, torch.float32, {}) as writer:
        writer.write(0, block)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for start in range(4, 400, 4):
            writer.write(start, block)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert (tmp_path / "a.safetensors").stat().st_size > 200e6
    assert grown < 40


class TestSaveTensors:
    def test_round_trip(self, tmp_path: Path) -> None:
        path = tmp_path / "p.safetensors"
        tensors = {"prompt_embeds": torch.randn(1, 3, 4), "prompt_mask": torch.ones(1, 3).T}
        assert save_tensors(path, tensors, {"prompt_sha256": "x"}) == path
        loaded = load_file(path)
        assert all(torch.equal(loaded[k], v) for k, v in tensors.items())
        with pytest.raises(OutputError, match="exists"):
            save_tensors(path, tensors, {})
        save_tensors(path, tensors, {}, overwrite=True)
        assert list(tmp_path.iterdir()) == [path]

    def test_metadata_is_text(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="metadata 'seed' is int"):
            save_tensors(tmp_path / "p.safetensors", {}, {"seed": 3})  # type: ignore[dict-item]
