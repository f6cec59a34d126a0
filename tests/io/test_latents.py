"""Latents and noise files: read by slices, checked, refused when they are something else."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sanawm.errors import CheckpointError, InputError, MissingFile, SanawmError
from sanawm.io.latents import LatentsSource, NoiseSource
from sanawm.shapes import LatentShape

from .clips import CASES

SHAPE = (1, 8, 7, 4, 6)


def values(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return latents that differ everywhere, `(1, 8, 7, 4, 6)`."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)


def save(path: Path, tensor: torch.Tensor) -> Path:
    """Save latents in the format of the ending."""
    if path.suffix == ".safetensors":
        save_file({"latents": tensor}, path, metadata={"fps": "16"})
    elif path.suffix == ".npy":
        np.save(path, tensor.numpy())
    elif path.name == "named.npz":
        np.savez_compressed(path, latents=tensor.numpy(), other=np.zeros(3))
    elif path.suffix == ".npz":
        np.savez(path, anything=tensor.numpy())
    elif path.name == "dict.pt":
        torch.save({"latents": tensor, "step": 3}, path)
    else:
        torch.save(tensor, path)
    return path


NAMES = ["a.safetensors", "a.npy", "one.npz", "named.npz", "tensor.pt", "dict.pt", "t.pth"]


class TestFormats:
    @pytest.mark.parametrize("name", NAMES)
    def test_slices(self, tmp_path: Path, name: str) -> None:
        source = LatentsSource.open(save(tmp_path / name, values()), channels=8)
        assert source.shape == LatentShape(*SHAPE)
        assert source.dtype == "float32"
        for start, stop in ((0, 1), (1, 4), (6, 7), (0, 7)):
            part = source.frames(start, stop)
            assert torch.equal(part, values()[:, :, start:stop])
            assert part.dtype == torch.float32

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    @pytest.mark.parametrize("name", ["a.safetensors", "t.pt"])
    def test_dtypes(self, tmp_path: Path, name: str, dtype: torch.dtype) -> None:
        source = LatentsSource.open(save(tmp_path / name, values(dtype)))
        assert source.dtype == str(dtype).removeprefix("torch.")
        assert torch.equal(source.frames(2, 5), values(dtype)[:, :, 2:5])

    def test_numpy_byte_order_and_layout(self, tmp_path: Path) -> None:
        array = np.asfortranarray(values().numpy().astype(">f4"))
        np.save(tmp_path / "f.npy", array)
        source = LatentsSource.open(tmp_path / "f.npy")
        assert source.dtype == "float32"
        assert torch.equal(source.frames(1, 3), values()[:, :, 1:3])

    def test_metadata(self, tmp_path: Path) -> None:
        source = LatentsSource.open(save(tmp_path / "a.safetensors", values()))
        assert source.metadata == {"fps": "16"}
        assert LatentsSource.open(save(tmp_path / "a.npy", values())).metadata == {}

    @settings(max_examples=40, deadline=None)
    @given(st.integers(-1, 8), st.integers(-1, 8))
    def test_any_slice(
        self, tmp_path_factory: pytest.TempPathFactory, start: int, stop: int
    ) -> None:
        folder = tmp_path_factory.getbasetemp()
        path = folder / "slices.safetensors"
        if not path.exists():
            save(path, values())
        source = LatentsSource.open(path)
        if 0 <= start < stop <= 7:
            assert torch.equal(source.frames(start, stop), values()[:, :, start:stop])
        else:
            with pytest.raises(InputError, match="holds frames 0 to 6"):
                source.frames(start, stop)

    def test_opening_reads_no_data(self, tmp_path: Path) -> None:
        """A sparse file of 8 GB opens, and gives its first frame, at once."""
        path = tmp_path / "sparse.npy"
        with path.open("wb") as f:
            header = {"descr": "<f4", "fortran_order": False, "shape": (1, 2, 10**6, 32, 32)}
            np.lib.format.write_array_header_1_0(f, header)
            f.truncate(f.tell() + 2 * 10**6 * 32 * 32 * 4)
        source = LatentsSource.open(path)
        assert source.shape.frames == 10**6
        assert source.frames(999_999, 1_000_000).shape == (1, 2, 1, 32, 32)


class TestNotFinite:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_frame_and_channel_are_named(self, tmp_path: Path, name: str, value: float) -> None:
        tensor = values()
        tensor[0, 5, 4, 2, 3] = value
        source = LatentsSource.open(save(tmp_path / name, tensor))
        source.frames(0, 4)
        with pytest.raises(InputError) as caught:
            source.frames(3, 6)
        text = caught.value.message
        shown = "infinity" if value == float("inf") else "NaN"
        assert f"{shown} in the latents, frame 4, channel 5 (row 2, column 3); 1 bad" in text
        assert str(tmp_path / name) in text


class TestShapes:
    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ((8, 7, 4, 6), r"shape (8, 7, 4, 6), expected five axes .*; add a batch axis"),
            ((1, 1, 8, 7, 4, 6), "expected five axes"),
            ((1, 7, 8, 4, 6), "expected 8 channels on axis 1 .* axis 2 has 8: was the axis order"),
            ((1, 7, 4, 6, 8), "axis 4 has 8: was the axis order changed"),
            ((1, 16, 7, 4, 6), "expected 8 channels on axis 1"),
            ((1, 8, 0, 4, 6), "one axis is empty"),
        ],
    )
    def test_refused(self, tmp_path: Path, shape: tuple[int, ...], message: str) -> None:
        path = save(tmp_path / "a.safetensors", torch.zeros(shape))
        with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")) as e:
            LatentsSource.open(path, channels=8)
        assert str(path) in e.value.message
        assert e.value.exit_code == 2

    def test_channels_are_optional(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.safetensors", torch.zeros(1, 16, 7, 4, 6))
        assert LatentsSource.open(path).shape.channels == 16

    @pytest.mark.parametrize("name", ["a.safetensors", "a.npy", "one.npz", "t.pt"])
    def test_integers_are_refused(self, tmp_path: Path, name: str) -> None:
        path = save(tmp_path / name, torch.zeros(SHAPE, dtype=torch.int32))
        with pytest.raises(InputError, match=r"(int32|I32), expected float16, bfloat16"):
            LatentsSource.open(path)


class TestBroken:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("truncated_data", "cut short: 390 bytes found, 440 expected"),
            ("truncated_header", "cut short"),
            ("empty", "the file is empty"),
            ("html_page", "looks like an HTML page"),
            ("trailing_junk", "size does not match header"),
            ("huge_header_length", "not a valid safetensors file"),
            ("torch_zip_renamed", "PyTorch zip file"),
            ("ok_reference", "no tensor `latents` in this file; it holds `proj_in"),
        ],
    )
    def test_safetensors(self, name: str, text: str) -> None:
        path = CASES / "C14_safetensors_broken" / f"{name}.safetensors"
        with pytest.raises(InputError, match=text) as caught:
            LatentsSource.open(path)
        assert str(path) in caught.value.message
        assert caught.value.exit_code == 2

    def test_pickles_run_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("has_namespace.pt", "marker_exec.pt"):
            with pytest.raises(CheckpointError) as caught:
                LatentsSource.open(CASES / "C17_pickle_checkpoint" / name)
            assert "weights_only" not in str(caught.value)
        with pytest.raises(InputError, match=r"ending in '\.pkl' are not read"):
            LatentsSource.open(CASES / "C17_pickle_checkpoint" / "raw_pickle.pkl")
        with pytest.raises(InputError, match="no `latents` in this dictionary; it holds"):
            LatentsSource.open(CASES / "C17_pickle_checkpoint" / "plain_state_dict.pt")
        assert list(tmp_path.iterdir()) == []

    def test_object_arrays_are_never_loaded(self, tmp_path: Path) -> None:
        objects = np.array([{"a": 1}], dtype=object)
        np.save(tmp_path / "o.npy", objects, allow_pickle=True)
        np.savez(tmp_path / "o.npz", latents=objects, allow_pickle=True)
        for name in ("o.npy", "o.npz"):
            with pytest.raises(InputError):
                LatentsSource.open(tmp_path / name)

    @pytest.mark.parametrize("name", ["a.npy", "one.npz", "t.pt"])
    @pytest.mark.parametrize("keep", [0, 30, 200])
    def test_cut_short(self, tmp_path: Path, name: str, keep: int) -> None:
        path = save(tmp_path / name, values())
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(SanawmError) as caught:
            LatentsSource.open(path)
        assert caught.value.exit_code in (2, 3)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) <= 3

    def test_npz_without_the_key(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
        with pytest.raises(InputError, match="2 arrays and none named `latents`: a, b"):
            LatentsSource.open(tmp_path / "two.npz")
        with zipfile.ZipFile(tmp_path / "none.npz", "w") as archive:
            archive.writestr("readme.txt", "x")
        with pytest.raises(InputError, match="0 arrays"):
            LatentsSource.open(tmp_path / "none.npz")

    def test_npz_named_npy(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, latents=np.zeros(SHAPE, np.float32))
        (tmp_path / "x.npy").write_bytes(buffer.getvalue())
        with pytest.raises(InputError, match=r"an \.npz file under the name \.npy"):
            LatentsSource.open(tmp_path / "x.npy")

    def test_pt_of_something_else(self, tmp_path: Path) -> None:
        torch.save([torch.zeros(3)], tmp_path / "list.pt")
        with pytest.raises(InputError, match="holds list, expected a dense tensor"):
            LatentsSource.open(tmp_path / "list.pt")

    def test_missing(self, tmp_path: Path) -> None:
        for path in (tmp_path / "no.npy", tmp_path):
            with pytest.raises(MissingFile, match=re.escape(str(path))):
                LatentsSource.open(path)


class TestNoise:
    def test_blocks_are_counted_from_the_clip(self, tmp_path: Path) -> None:
        path = tmp_path / "n.safetensors"
        save_file({"eps": values(), "stage1_noise": torch.ones(1, 8, 8, 4, 6)}, path)
        clip = LatentShape(1, 8, 8, 4, 6)
        noise = NoiseSource.open(path, shape=clip, first=1)
        assert torch.equal(noise.block(1, 4), values()[:, :, 0:3])
        assert torch.equal(noise.block(7, 8), values()[:, :, 6:7])
        stage1 = NoiseSource.open(path, shape=clip, first=0, key="stage1_noise")
        assert stage1.block(0, 8).shape == (1, 8, 8, 4, 6)
        with pytest.raises(InputError, match="no latent frames"):
            noise.block(0, 3)

    def test_other_shape(self, tmp_path: Path) -> None:
        path = tmp_path / "n.safetensors"
        save_file({"eps": values()}, path)
        with pytest.raises(InputError) as caught:
            NoiseSource.open(path, shape=LatentShape(1, 8, 7, 4, 6), first=1)
        assert "noise has shape (1, 8, 7, 4, 6), expected (1, 8, 6, 4, 6)" in caught.value.message

    def test_other_key(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.safetensors", values())
        with pytest.raises(InputError, match="no tensor `eps` in this file; it holds `latents`"):
            NoiseSource.open(path, shape=LatentShape(1, 8, 8, 4, 6), first=1)

    def test_not_finite(self, tmp_path: Path) -> None:
        eps = values()
        eps[0, 3, 2] = float("nan")
        save_file({"eps": eps}, tmp_path / "n.safetensors")
        noise = NoiseSource.open(
            tmp_path / "n.safetensors", shape=LatentShape(1, 8, 8, 4, 6), first=1
        )
        with pytest.raises(InputError, match="NaN in the noise, frame 2, channel 3"):
            noise.block(1, 8)


def test_a_path_may_be_a_text(tmp_path: Path) -> None:
    """As the library's users write it."""
    path = save(tmp_path / "a.safetensors", values())
    assert torch.equal(LatentsSource.open(str(path)).frames(0, 7), values())
    save_file({"eps": values()}, tmp_path / "n.safetensors")
    shape = LatentShape(*SHAPE)
    noise = NoiseSource.open(str(tmp_path / "n.safetensors"), shape=shape, first=0)
    assert noise.path == tmp_path / "n.safetensors"


def test_unfinished_noise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "n.safetensors"
    save_file({"eps": values()}, path, metadata={"frames_written": "0000000003"})
    with pytest.raises(InputError, match="unfinished: 3 of 7 latent frames are written"):
        NoiseSource.open(path, shape=LatentShape(*SHAPE), first=0)


def test_a_header_of_python_2_is_read_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = save(tmp_path / "a.npy", values())
    data = path.read_bytes()
    assert b"(1, 8, 7, 4, 6)" in data
    path.write_bytes(data.replace(b"(1, 8, 7, 4, 6), }  ", b"(1L, 8, 7, 4, 6), } "))
    assert torch.equal(LatentsSource.open(path).frames(0, 7), values())
    assert not recwarn.list
