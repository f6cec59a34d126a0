"""The prompt embeddings file: round trip, strict reading, whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.errors import InputError, MissingFile, OutputError
from sanawm.text import embeddings
from sanawm.text.embeddings import (
    PromptEmbeds,
    Stage1Caption,
    load_caption,
    load_prompt_embeds,
    save_caption,
    save_prompt_embeds,
    write_whole,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "embeds.safetensors"


def good() -> dict[str, Tensor]:
    return {
        "prompt_embeds": torch.arange(24.0).view(2, 3, 4),
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
    }


CAPTION = Stage1Caption(torch.arange(20.0).view(1, 1, 4, 5), torch.tensor([[1, 1, 0, 0]]))


def test_stage1_alone(file: Path) -> None:
    half = CAPTION.to("cpu", torch.bfloat16)
    save_caption(file, half._replace(mask=half.mask.bool()), metadata={"recipe": "x"})
    assert sorted(load_file(file)) == ["stage1_caption", "stage1_mask"]
    caption, metadata = load_caption(file)
    assert torch.equal(caption.caption, CAPTION.caption.bfloat16())
    assert torch.equal(caption.mask, CAPTION.mask)
    assert caption.mask.dtype == torch.int64
    assert metadata == {"recipe": "x"}
    with pytest.raises(InputError, match=r"expected prompt_embeds and .* found stage1_"):
        load_prompt_embeds(file)
    with pytest.raises(OutputError, match="exists already"):
        save_caption(file, CAPTION)
    save_caption(file, CAPTION, overwrite=True)
    assert load_caption(file).caption.caption.dtype == torch.float32


def test_stage1_of_a_whole_file(file: Path) -> None:
    save_prompt_embeds(file, PromptEmbeds(torch.ones(1, 2, 3), None), stage1=CAPTION)
    assert torch.equal(load_caption(file).caption.caption, CAPTION.caption)
    save_prompt_embeds(file, PromptEmbeds(torch.ones(1, 2, 3), None), overwrite=True)
    with pytest.raises(InputError, match="expected stage1_caption and stage1_mask, found prompt_"):
        load_caption(file)


@pytest.mark.parametrize(
    ("caption", "message"),
    [
        (CAPTION._replace(caption=torch.ones(1, 4, 5)), "expected 4 axes"),
        (CAPTION._replace(caption=torch.ones(1, 2, 4, 5)), "1x2x4x5, expected 1x1 x tokens"),
        (CAPTION._replace(caption=CAPTION.caption / 0), "NaN or infinity"),
        (CAPTION._replace(mask=torch.ones(1, 3)), "stage1_mask is 1x3, expected 1x4"),
        (CAPTION._replace(mask=torch.zeros(1, 4)), "masks every token"),
    ],
)
def test_only_good_captions_are_written(file: Path, caption: Stage1Caption, message: str) -> None:
    with pytest.raises(InputError, match=message):
        save_caption(file, caption)
    assert not file.exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(file: Path, dtype: torch.dtype) -> None:
    prompt = PromptEmbeds(torch.randn(1, 3, 4).to(dtype), None)
    save_prompt_embeds(file, prompt, metadata={"recipe": "x"})
    stored = load_file(file)
    assert {k: (tuple(v.shape), v.dtype) for k, v in stored.items()} == {
        "prompt_embeds": ((1, 3, 4), dtype),
        "prompt_mask": ((1, 3), torch.int64),
    }
    assert stored["prompt_mask"].tolist() == [[1, 1, 1]]
    read = load_prompt_embeds(file)
    assert torch.equal(read.prompt.embeds, prompt.embeds)
    assert read.prompt.mask is None
    assert read.stage1 is None
    assert read.metadata == {"recipe": "x"}


def test_a_real_mask_is_kept(file: Path) -> None:
    save_prompt_embeds(file, PromptEmbeds(good()["prompt_embeds"], good()["prompt_mask"].bool()))
    mask = load_prompt_embeds(file).prompt.mask
    assert mask is not None
    assert mask.tolist() == [[0, 1, 1], [1, 1, 1]]
    assert mask.dtype == torch.int64


def test_stage1_tensors_pass_through(file: Path) -> None:
    caption = Stage1Caption(torch.randn(1, 1, 5, 6), torch.tensor([[1, 1, 1, 0, 0]]))
    save_prompt_embeds(file, PromptEmbeds(torch.randn(1, 3, 4), None), stage1=caption)
    read = load_prompt_embeds(file).stage1
    assert read is not None
    assert torch.equal(read.caption, caption.caption)
    assert torch.equal(read.mask, caption.mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32, torch.uint8])
def test_masks_of_other_dtypes(file: Path, dtype: torch.dtype) -> None:
    save_file(good() | {"prompt_mask": good()["prompt_mask"].to(dtype)}, file)
    mask = load_prompt_embeds(file).prompt.mask
    assert mask is not None
    assert mask.dtype == torch.int64


def nan(tensors: dict[str, Tensor]) -> None:
    tensors["prompt_embeds"][0, 1, 2] = torch.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nan, "prompt_embeds holds NaN or infinity"),
        (lambda t: t.pop("prompt_mask"), "expected prompt_embeds and prompt_mask.*found prompt_e"),
        (lambda t: t.pop("prompt_embeds"), "expected prompt_embeds and prompt_mask.*found prompt"),
        (lambda t: t.update(other=torch.ones(1)), "found other, prompt_embeds, prompt_mask"),
        (lambda t: t.update(prompt_embeds=torch.ones(3, 4)), "prompt_embeds is 3x4.*3 axes"),
        (lambda t: t.update(prompt_embeds=torch.ones(2, 3, 4).long()), "2x3x4 torch.int64"),
        (lambda t: t.update(prompt_embeds=torch.ones(2, 3, 0)), "prompt_embeds is 2x3x0"),
        (lambda t: t.update(prompt_mask=torch.ones(2, 4)), "prompt_mask is 2x4, expected 2x3"),
        (lambda t: t["prompt_mask"].add_(1), "prompt_mask holds other values than 0 and 1"),
        (lambda t: t["prompt_mask"].zero_(), "prompt_mask masks every token"),
        (lambda t: t.update(stage1_mask=torch.ones(1, 5)), "must come together"),
        (
            lambda t: t.update(stage1_caption=torch.ones(2, 1, 5, 6), stage1_mask=torch.ones(2, 5)),
            "stage1_caption is 2x1x5x6, expected 1x1",
        ),
        (
            lambda t: t.update(stage1_caption=torch.ones(1, 1, 5, 6), stage1_mask=torch.ones(1, 4)),
            "stage1_mask is 1x4, expected 1x5",
        ),
    ],
)
def test_malformed_files_are_refused(
    file: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    tensors = good()
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(InputError, match=message) as e:
        load_prompt_embeds(file)
    assert str(e.value).startswith(f"{file}: ")
    assert e.value.exit_code == 2


def test_files_that_are_no_embeddings(file: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no such file"):
        load_prompt_embeds(file)
    with pytest.raises(MissingFile, match="is a folder"):
        load_prompt_embeds(tmp_path)
    save_file(good(), file)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(InputError, match=str(file)):
        load_prompt_embeds(file)
    file.write_bytes(b"<!doctype html><html></html>")
    with pytest.raises(InputError, match="HTML"):
        load_prompt_embeds(file)


def test_only_good_tensors_are_written(file: Path) -> None:
    with pytest.raises(InputError, match="NaN"):
        save_prompt_embeds(file, PromptEmbeds(torch.full((1, 2, 3), torch.inf), None))
    assert list(file.parent.iterdir()) == []


def test_an_existing_file_is_refused(file: Path) -> None:
    file.write_bytes(b"mine")
    prompt = PromptEmbeds(torch.ones(1, 2, 3), None)
    with pytest.raises(OutputError, match="exists already") as e:
        save_prompt_embeds(file, prompt)
    assert e.value.exit_code == 5
    assert file.read_bytes() == b"mine"
    save_prompt_embeds(file, prompt, overwrite=True)
    assert load_prompt_embeds(file).prompt.embeds.shape == (1, 2, 3)
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_a_file_that_appears_meanwhile_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    file.write_bytes(b"theirs")
    with pytest.raises(OutputError, match="exists already"):
        write_whole(file, b"ours", overwrite=False)
    assert file.read_bytes() == b"theirs"
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_a_failed_write_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embeddings.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_whole(file, b"new", overwrite=True)
    assert file.read_bytes() == b"old"
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_without_hard_links(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(embeddings.os, "link", unsupported)
    write_whole(file, b"data", overwrite=False)
    assert file.read_bytes() == b"data"
    with pytest.raises(OutputError, match="exists already"):
        write_whole(file, b"data", overwrite=False)


def test_a_missing_folder_and_usual_permissions(file: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(file.parent / "no" / "x.safetensors", b"", overwrite=False)
    write_whole(file, b"data", overwrite=False)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask
