"""`sanawm inspect --convert`: a pickle becomes safetensors bit for bit, the run stays the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sanawm.camera import roll_out_actions
from sanawm.camera.framing import ImageSize
from sanawm.camera.intrinsics import intrinsics_of_fov
from sanawm.camera.rays import camera_rays
from sanawm.errors import InputError
from sanawm.io.tensor_writer import PIECE, write_tensors
from sanawm.pipeline import Pipeline
from sanawm.shapes import LatentShape, VAERatios
from sanawm.stage1.weights import read_generator
from tests.cli.command import TINY, sanawm

CASES = Path(__file__).parents[1] / "cases"


def test_the_tensors_are_the_same_bits(tmp_path: Path) -> None:
    target = tmp_path / "stage1.safetensors"
    done = sanawm("inspect", TINY / "sana_dit", "--convert", target)
    assert (done.code, done.out.strip()) == (0, str(target))
    found, expected = load_file(target), read_generator(TINY / "sana_dit/model.pt")
    assert set(found) == set(expected)
    assert not any(name.startswith("model.") for name in found)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_a_run_from_the_converted_file_equals_one_from_the_pickle(tmp_path: Path) -> None:
    shutil.copytree(TINY / "sana_dit", tmp_path / "sana_dit")
    (tmp_path / "sana_dit/model.pt").unlink()
    target = tmp_path / "sana_dit/model.safetensors"
    assert sanawm("inspect", TINY / "sana_dit/model.pt", "--convert", target).code == 0
    assert sanawm("inspect", tmp_path / "sana_dit").code == 0
    size, ratios = ImageSize(96, 64), VAERatios(4, 8)
    lens = np.repeat(intrinsics_of_fov(90.0, size), 25, axis=0)
    rays = camera_rays(roll_out_actions("w-12,d-12").poses, lens, size=size, ratios=ratios)
    first = torch.randn(1, 16, 1, 8, 12, generator=torch.Generator().manual_seed(3))
    clips = []
    for sets in ([], [f"model.stage1={tmp_path / 'sana_dit'}"]):
        pipe = Pipeline.from_config("tiny", sets=sets)
        caption = pipe.encode_caption("a red tower")
        shape = LatentShape(1, 16, 7, 8, 12)
        clips.append(torch.cat(list(pipe.generate(first, caption, rays, shape=shape)), dim=2))
    assert torch.equal(*clips)
    assert (clips[0][:, :, 1:] - first).abs().max() > 0.1


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    target = tmp_path / "out.safetensors"
    target.write_bytes(b"precious")
    done = sanawm("inspect", TINY / "sana_dit/model.pt", "--convert", target)
    assert (done.code, target.read_bytes()) == (5, b"precious")
    assert "--overwrite" in done.error
    done = sanawm("inspect", TINY / "sana_dit/model.pt", "--convert", target, "--overwrite")
    assert done.code == 0
    assert len(load_file(target)) == 246
    assert [p.name for p in tmp_path.iterdir()] == ["out.safetensors"]


REFUSED = {
    "unsafe": (CASES / "C17_pickle_checkpoint/marker_exec.pt", 3, "refused"),
    "no pickle": (TINY / "latents.safetensors", 2, "only .pt files are converted"),
    "missing": (Path("nowhere.pt"), 3, "no such file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, code, text = REFUSED[name]
    done = sanawm("inspect", path, "--convert", "out.safetensors")
    assert done.code == code
    assert text in done.error
    assert list(tmp_path.iterdir()) == []


def test_two_files_and_other_flags_do_not_go_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    file = TINY / "sana_dit/model.pt"
    assert sanawm("inspect", file, file, "--convert", out).code == 2
    assert sanawm("inspect", file, "--stats", "--convert", out).code == 2
    assert sanawm("inspect", file, "--convert", tmp_path / "out.pt").code == 2


def test_every_dtype_and_shape_is_written_as_it_is(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(6, 4, generator=generator)
    tensors = {
        "f32": wide,
        "turned": wide.T,
        "strided": wide[::2],
        "f64": wide.double(),
        "f16": wide[:1, :3].half(),
        "bf16": wide[0, :3].bfloat16(),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 4),
        "i64": torch.arange(5),
        "u8": torch.arange(5, dtype=torch.uint8),
        "yes": torch.tensor([True, False, True]),
    }
    size = write_tensors(tmp_path / "x.safetensors", tensors, {"a": "b"})
    assert size == (tmp_path / "x.safetensors").stat().st_size
    found = load_file(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    with pytest.raises(InputError, match="complex64"):
        write_tensors(tmp_path / "y.safetensors", {"c": torch.zeros(1, dtype=torch.complex64)}, {})
    assert not (tmp_path / "y.safetensors").exists()


def test_large_tensors_are_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sanawm.io import tensor_writer

    assert PIECE % 8 == 0
    monkeypatch.setattr(tensor_writer, "PIECE", 24)
    tensors = {"a": torch.arange(31.0), "b": torch.arange(7, dtype=torch.int16)}
    write_tensors(tmp_path / "x.safetensors", tensors, {})
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
