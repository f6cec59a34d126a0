"""Giving a model its weights, and `.pt` files: strict, and never running code from a file."""

from __future__ import annotations

import io
import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sanawm.checkpoint import check_names, is_ignored, load_weights, read_pt
from sanawm.errors import CheckpointError, MissingFile, SanawmError
from sanawm.tensorfile import TensorFiles

CASES = Path(__file__).parent / "cases" / "C17_pickle_checkpoint"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj_in = nn.Linear(8, 8)
        self.register_buffer("scale", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def small() -> Small:
    with torch.device("meta"):
        return Small()


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "proj_in.weight": torch.randn(8, 8, generator=generator),
        "proj_in.bias": torch.randn(8, generator=generator),
        "scale": torch.tensor([1.0, 2.0, 1.0 / 3.0]),
        "steps": torch.tensor(7),
    }


def load(source: Any, **changes: Any) -> Small:
    model = small()
    settings: dict[str, Any] = {"device": "cpu", "dtype": torch.float32, "label": "here"}
    load_weights(model, source, **(settings | changes))
    return model


def test_mapping_and_file_load_equally(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "w.safetensors")
    for source in (weights(), TensorFiles(tmp_path)):
        model = load(source)
        for name, tensor in weights().items():
            assert torch.equal(model.state_dict()[name], tensor)
        assert isinstance(model.proj_in.weight, nn.Parameter)
        assert not model.proj_in.weight.requires_grad
        assert not model.training


def test_a_loaded_tensor_is_a_copy() -> None:
    source = weights()
    model = load(source)
    source["proj_in.bias"].zero_()
    assert model.proj_in.bias.abs().max() > 0


def test_dtype_and_the_names_kept_in_float32() -> None:
    model = load(weights(), dtype=torch.bfloat16, keep_float32=lambda name: name == "scale")
    assert model.proj_in.weight.dtype == torch.bfloat16
    assert torch.equal(model.scale, weights()["scale"])
    assert model.steps.dtype == torch.int64


def test_names_that_do_not_fit_are_counted_and_named() -> None:
    source = weights() | {f"extra.{i}": torch.zeros(1) for i in range(7)}
    del source["scale"]
    source["proj_in.bias"] = torch.zeros(9)
    with pytest.raises(CheckpointError) as caught:
        load(source)
    assert caught.value.message == (
        "here: weights do not fit the model; 1 missing: scale; "
        "1 of another shape: proj_in.bias is 9, expected 8; "
        "7 unexpected: extra.0, extra.1, extra.2, extra.3, extra.4 … (2 more)"
    )
    assert "same release" in (caught.value.fix or "")


def test_ignored_names_are_not_read(tmp_path: Path) -> None:
    broken = torch.full((1,), float("nan"))  # reading it would be an error
    save_file(weights() | {"audio.x": broken, "skip": broken.clone()}, tmp_path / "w.safetensors")
    model = load(TensorFiles(tmp_path), ignore=["audio.*", "skip"])
    assert torch.equal(model.scale, weights()["scale"])
    with pytest.raises(CheckpointError, match=r"1 unexpected: skip\."):
        load(weights() | {"skip.x": torch.zeros(1)}, ignore=["skip"])


def test_wanted_tensors_may_not_be_ignored_away() -> None:
    source = weights()
    del source["scale"]
    with pytest.raises(CheckpointError, match="1 missing: scale"):
        load(source, ignore=["scale", "*"])


@pytest.mark.parametrize("prefix", ["module.", "model.", "model.diffusion_model."])
def test_one_common_prefix_is_stripped(prefix: str) -> None:
    lines: list[str] = []
    model = load({prefix + n: t for n, t in weights().items()}, note=lines.append)
    assert torch.equal(model.scale, weights()["scale"])
    assert lines == [f"stripped the prefix `{prefix}` from the checkpoint's names"]


def test_compiled_and_wrapped_names() -> None:
    lines: list[str] = []
    load({f"model._orig_mod.{n}": t for n, t in weights().items()}, note=lines.append)
    assert len(lines) == 2
    assert "`_orig_mod.`" in lines[0]
    assert "`model.`" in lines[1]


def test_an_unknown_or_partial_prefix_is_not_stripped() -> None:
    for source in (
        {f"ema.{n}": t for n, t in weights().items()},
        {(f"model.{n}" if n == "scale" else f"x.{n}"): t for n, t in weights().items()},
    ):
        with pytest.raises(CheckpointError, match=r"4 missing: .*; 4 unexpected: "):
            load(source)


def test_a_name_with_and_without_the_compile_mark() -> None:
    with pytest.raises(CheckpointError, match="stored with and without"):
        load(weights() | {"_orig_mod.scale": torch.zeros(3)})


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_nan_is_named(value: float) -> None:
    source = weights()
    source["scale"][1] = value
    with pytest.raises(CheckpointError, match="here: tensor scale holds NaN or infinity"):
        load(source)


def test_a_value_too_large_for_the_dtype_is_named() -> None:
    source = weights()
    source["scale"][1] = 1e6
    with pytest.raises(CheckpointError, match=r"scale holds NaN or infinity as torch\.float16"):
        load(source, dtype=torch.float16)


def test_integers_for_floats_are_refused() -> None:
    source = weights() | {"scale": torch.ones(3, dtype=torch.int8)}
    with pytest.raises(CheckpointError, match=r"scale is stored as torch\.int8, expected floating"):
        load(source)


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("audio_*", ["audio_x", "audio_x.weight"], ["x.audio_y", "xaudio_y", "audio"]),
        ("b.*.audio_*", ["b.0.audio_x", "b.12.audio_x.to_q.bias"], ["b.0.c.audio_x", "b.audio_x"]),
        ("vision.*", ["vision.a", "vision.a.b.c"], ["vision", "visions.a", "x.vision.a"]),
        ("lm_head.weight", ["lm_head.weight"], ["lm_head.weight.x", "lm_head", "x.lm_head.weight"]),
        ("b.*.table", ["b.0.table"], ["b.0.table.scale", "b.0.c.table"]),
    ],
)
def test_ignore_patterns(pattern: str, matched: list[str], not_matched: list[str]) -> None:
    assert all(is_ignored(name, ["other", pattern]) for name in matched)
    assert not any(is_ignored(name, [pattern]) for name in not_matched)


def test_check_names_alone() -> None:
    check_names({"a": (1,)}, {"a": (1,), "b.c": (2,)}, ignore=["b.*"], label="x")
    with pytest.raises(CheckpointError, match="a is scalar, expected 1x2"):
        check_names({"a": (1, 2)}, {"a": ()}, ignore=[], label="x")


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, in which no unsafe load may leave its marker."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "PWNED_MARKER").exists()


def test_plain_pt_file(empty_folder: Path) -> None:
    data = read_pt(CASES / "plain_state_dict.pt")
    assert data["epoch"] == 3
    assert {k: tuple(v.shape) for k, v in data["state_dict"].items()} == {
        "proj_in.weight": (8, 8),
        "proj_in.bias": (8,),
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("has_namespace.pt", r"refused, it holds more than tensors \(argparse\.Namespace\)"),
        ("marker_exec.pt", r"refused, it holds more than tensors \(io\.open\)"),
        ("raw_pickle.pkl", r"suffix \.pkl is not supported; expected \.pt or \.pth"),
    ],
)
def test_pickles_are_refused_and_never_run(name: str, words: str, empty_folder: Path) -> None:
    for path in (CASES / name, empty_folder / "renamed.pt"):
        if path.parent == empty_folder:
            shutil.copyfile(CASES / name, path)
            words = "refused|not a readable .pt file"
        with pytest.raises(CheckpointError, match=words) as caught:
            read_pt(path)
        text = str(caught.value)
        assert str(path) in text
        assert "safetensors" in text
        assert len(text.splitlines()) <= 3
        for advice in ("weights_only", "add_safe_globals", "trust", "unsafe"):
            assert advice not in text
        assert not (empty_folder / "PWNED_MARKER").exists()


def test_the_marker_would_be_seen(empty_folder: Path) -> None:
    """The case is alive: an unsafe load of it does leave the marker."""
    torch.load(CASES / "marker_exec.pt", weights_only=False)
    assert (empty_folder / "PWNED_MARKER").exists()
    (empty_folder / "PWNED_MARKER").unlink()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02.", b"<html></html>"])
def test_files_that_are_no_pt(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not a readable \.pt file|refused") as caught:
        read_pt(path)
    assert str(path) in caught.value.message


def test_no_pt_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"x\.pt: no such file"):
        read_pt(tmp_path / "x.pt")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_damaged_pickles_raise_nothing_else(empty_folder: Path) -> None:
    """Random bytes in the pickle of a good file: an answer or a `SanawmError`, never more."""
    with zipfile.ZipFile(CASES / "plain_state_dict.pt") as good:
        entries = {n: good.read(n) for n in good.namelist()}
    name = next(n for n in entries if n.endswith("data.pkl"))
    source = random.Random(0)
    messages: list[str] = []
    for _ in range(300):
        pickle = bytearray(entries[name])
        for _ in range(source.randint(1, 3)):
            pickle[source.randrange(len(pickle))] = source.randrange(256)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as damaged:
            for entry, content in (entries | {name: bytes(pickle)}).items():
                damaged.writestr(entry, content)
        path = empty_folder / "x.pt"
        path.write_bytes(buffer.getvalue())
        try:
            read_pt(path)
        except SanawmError as e:
            messages.append(e.message)
    assert len(messages) > 200
    assert all(str(empty_folder) in m for m in messages)
