"""Headers of weight files: every broken file is named, and nothing else is raised."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sanawm.errors import CheckpointError, MissingFile, SanawmError
from sanawm.tensorfile import TensorFiles, list_some, read_header, read_json

CASES = Path(__file__).parent / "cases" / "C14_safetensors_broken"
GOOD = CASES / "ok_reference.safetensors"
#: What the message must say of each file.
BROKEN = {
    "truncated_data": r"cut short: 390 bytes found, 440 expected",
    "truncated_header": r"cut short: the header needs 144 bytes, the file holds 20",
    "empty": r"the file is empty",
    "html_page": r"not a safetensors file: it looks like an HTML page",
    "trailing_junk": r"size does not match header: 444 bytes found, 440 expected",
    "huge_header_length": r"not a valid safetensors file",
    "torch_zip_renamed": r"not a safetensors file: it is a PyTorch zip file",
}


def raw(header: Any, data: bytes = b"") -> bytes:
    """Return the bytes of a file with this header (an object, or bytes as they are)."""
    blob = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(blob).to_bytes(8, "little") + blob + data


def test_every_published_file_is_covered() -> None:
    found = {p.stem for p in CASES.glob("*.safetensors")}
    assert found == {*BROKEN, "ok_reference"}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_file_is_named(name: str) -> None:
    path = CASES / f"{name}.safetensors"
    for opened in (read_header, TensorFiles):
        with pytest.raises(CheckpointError, match=BROKEN[name]) as caught:
            opened(path)
        assert str(path) in caught.value.message
        assert caught.value.fix
        assert len(str(caught.value).splitlines()) <= 3
        assert caught.value.exit_code == 3


def test_good_file() -> None:
    infos, metadata = read_header(GOOD)
    assert {k: (i.dtype, i.shape, i.nbytes) for k, i in infos.items()} == {
        "proj_in.weight": ("F32", (8, 8), 256),
        "proj_in.bias": ("F32", (8,), 32),
    }
    assert metadata == {}
    files = TensorFiles(GOOD)
    assert files.read("proj_in.bias").shape == (8,)
    assert files.fingerprint(component="x")["bytes"] == 440


NO_TORCH = """
import sys
from pathlib import Path
from sanawm.errors import CheckpointError
from sanawm.tensorfile import TensorFiles
refused = 0
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    try:
        TensorFiles(path).fingerprint(component="x")
    except CheckpointError:
        refused += 1
heavy = [m for m in ("torch", "numpy", "safetensors", "pickle") if m in sys.modules]
print(refused, heavy)
"""


def test_headers_are_read_without_torch_or_pickle() -> None:
    command = [sys.executable, "-c", NO_TORCH, str(CASES)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["7", "[]"]


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (raw(b"{]"), "header is damaged"),
        (raw(b"[1, 2]"), "header is damaged .header is no object"),
        (raw(b"[" * 50_000), "header is damaged"),
        (raw(b"\xff" * 20), "header is damaged"),
        (raw(b""), "header is damaged|cut short"),
        (raw({"a": 3}), "header is damaged"),
        (raw({"a": TENSOR | {"shape": [-2, -1]}}, b"." * 8), r"has shape \(-2, -1\)"),
        (raw({"a": TENSOR | {"shape": [3]}}, b"." * 8), "spans 8 bytes, not 12"),
        (raw(b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,8]}}'), "damaged"),
        (raw({"a": TENSOR | {"data_offsets": [8, 0]}}, b"." * 8), "damaged"),
        (raw({"a": TENSOR | {"data_offsets": [0]}}, b"." * 8), "damaged"),
        (raw({"a": TENSOR, "__metadata__": "text"}, b"." * 8), "__metadata__ is no object"),
        (raw({"a": TENSOR, "b": TENSOR}, b"." * 8), "overlap or leave a gap"),
        (raw({"a": TENSOR | {"data_offsets": [4, 12]}}, b"." * 12), "overlap or leave a gap"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00rest of a pickle", "looks like a pickle"),
        (b"\x07" * 40, r"not a safetensors file: header length \d+ in a file of 40 bytes"),
        (b"abc", "cut short: only 3 bytes"),
    ],
)
def test_damaged_headers(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert len(caught.value.message) < 400


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_flipped_bytes_raise_nothing_else(tmp_path: Path, seed: int, n: int, cut: bool) -> None:
    source = random.Random(seed)
    content = bytearray(GOOD.read_bytes())
    for _ in range(n):
        content[source.randrange(160)] = source.randrange(256)  # length and header
    path = tmp_path / "x.safetensors"
    path.write_bytes(content[: source.randrange(440)] if cut else content)
    try:
        files = TensorFiles(path)
        tensors = [files.read(name) for name in files]
    except SanawmError as e:
        message = e.message
    else:
        message = f"{path}: {len(tensors)} tensors"
    assert message.startswith(f"{path}: ")


def test_a_tensor_that_safetensors_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw({"a": TENSOR | {"dtype": "Q4_K"}}, b"." * 8))
    files = TensorFiles(path)  # known by name only, so its size cannot be checked
    with pytest.raises(CheckpointError, match=r"tensor a \(Q4_K\) cannot be read"):
        files.read("a")


def test_missing_files(tmp_path: Path) -> None:
    for call, words in (
        (lambda: read_header(tmp_path / "no.safetensors"), "no such file"),
        (lambda: read_header(tmp_path), "cannot be read"),
        (lambda: TensorFiles(tmp_path / "no"), "no such file or folder"),
        (lambda: TensorFiles(tmp_path), r"no \.safetensors file in this folder"),
        (lambda: read_json(tmp_path / "no.json"), "no such file"),
        (lambda: read_json(tmp_path), "cannot be read"),
    ):
        with pytest.raises(MissingFile, match=words) as caught:
            call()
        assert isinstance(caught.value, FileNotFoundError)
        assert str(tmp_path) in caught.value.message


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with two shards and an index."""
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, tmp_path / "w-1.safetensors")
    save_file({"c": torch.full((2,), 2.0)}, tmp_path / "w-2.safetensors")
    write_index(tmp_path, {"a": "w-1.safetensors", "b": "w-1.safetensors", "c": "w-2.safetensors"})
    return tmp_path


def write_index(folder: Path, weight_map: Any, name: str = "w") -> None:
    index = folder / f"{name}.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def test_shards(shards: Path) -> None:
    files = TensorFiles(shards)
    assert sorted(files) == ["a", "b", "c"]
    assert [float(files.read(n)[0]) for n in "abc"] == [0.0, 1.0, 2.0]
    report = files.fingerprint(component="w")
    assert (report["files"], report["tensors"], report["dtypes"]) == (2, 3, {"F32": 3})
    files.close()
    assert float(files.read("c")[0]) == 2.0


def test_fingerprint_follows_the_content(shards: Path) -> None:
    before = TensorFiles(shards).fingerprint(component="w")["header_sha256"]
    save_file({"c": torch.full((2,), 3.0)}, shards / "w-2.safetensors")
    assert TensorFiles(shards).fingerprint(component="w")["header_sha256"] != before


def test_shard_missing(shards: Path) -> None:
    (shards / "w-2.safetensors").unlink()
    with pytest.raises(MissingFile, match=r"w-2\.safetensors: no such file"):
        TensorFiles(shards)


def test_tensor_missing_from_the_shards(shards: Path) -> None:
    write_index(shards, {"a": "w-1.safetensors"} | {f"x{i}": "w-2.safetensors" for i in range(7)})
    with pytest.raises(CheckpointError, match=r"7 tensors listed .* x0, .* x4 … \(2 more\)"):
        TensorFiles(shards)


def test_tensor_in_two_shards(shards: Path) -> None:
    save_file({"a": torch.zeros(2), "c": torch.zeros(2)}, shards / "w-2.safetensors")
    with pytest.raises(CheckpointError, match=r"w-2\.safetensors: tensor a is in two shards"):
        TensorFiles(shards)


@pytest.mark.parametrize("weight_map", [{}, [], None, "w-1.safetensors"])
def test_index_without_weight_map(shards: Path, weight_map: Any) -> None:
    write_index(shards, weight_map)
    with pytest.raises(CheckpointError, match="no weight_map in this index"):
        TensorFiles(shards)


@pytest.mark.parametrize("shard", ["../w.safetensors", "sub/w.safetensors", "/w.safetensors", "."])
def test_shard_outside_the_folder(shards: Path, shard: str) -> None:
    write_index(shards, {"a": shard})
    with pytest.raises(CheckpointError, match="points outside the folder"):
        TensorFiles(shards)


def test_several_files_or_indexes_are_ambiguous(shards: Path) -> None:
    write_index(shards, {"a": "w-1.safetensors"}, name="v")
    with pytest.raises(CheckpointError, match=r"2 shard indexes: v\.safetensors\.index\.json, w"):
        TensorFiles(shards)
    for index in shards.glob("*.json"):
        index.unlink()
    with pytest.raises(CheckpointError, match="2 safetensors files and no index: w-1"):
        TensorFiles(shards)
    shutil.rmtree(shards)


def test_lists_of_names() -> None:
    assert list_some(["a", "b"]) == "a, b"
    assert list_some(list("abcdefg")) == "a, b, c, d, e … (2 more)"
    assert list_some(list("abc"), limit=2) == "a, b … (1 more)"
