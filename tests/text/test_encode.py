"""The whole way from prompt to embeddings, and that the text encoder is gone afterwards."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sanawm.errors import CheckpointError, InputError, MissingFile, NumericsError, UsageError
from sanawm.notes import Notes
from sanawm.text import encode
from sanawm.text.embeddings import PromptEmbeds
from sanawm.text.encode import encode_prompt
from sanawm.text.store import PromptStore
from tests.text.tiny_connectors import make_tiny_connectors

PROMPT = "a red tower on green ground under a blue sky"


def run(gemma: Path, connectors: Path, prompt: str = PROMPT, **changes: Any) -> PromptEmbeds:
    settings: dict[str, Any] = {
        "max_length": 64, "device": "cpu", "dtype": torch.float32, "notes": Notes()
    } | changes  # fmt: skip
    return encode_prompt(prompt, text_encoder=gemma, connectors=connectors, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result(gemma_folder: Path, connectors_folder: Path, dtype: torch.dtype) -> None:
    notes = Notes()
    result = run(gemma_folder, connectors_folder, dtype=dtype, notes=notes)
    assert result.embeds.shape == (1, 64, 32)
    assert result.embeds.dtype == dtype
    assert not result.embeds.requires_grad
    assert result.mask is None
    assert notes == Notes()
    assert torch.equal(run(gemma_folder, connectors_folder, dtype=dtype).embeds, result.embeds)
    other = run(gemma_folder, connectors_folder, PROMPT + ".", dtype=dtype)
    assert not torch.equal(other.embeds, result.embeds)
    padded = run(gemma_folder, connectors_folder, f" \n{PROMPT}\t", dtype=dtype)
    assert torch.equal(padded.embeds, result.embeds)


@pytest.mark.oracle
def test_equal_to_transformers_and_diffusers(gemma_folder: Path, tmp_path: Path) -> None:
    """The public path by hand: tokenizer, whole model, stack, connectors that pack themselves."""
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
    from transformers import AutoTokenizer, Gemma3ForConditionalGeneration

    torch.manual_seed(8)
    sizes = {
        "num_attention_heads": 2, "attention_head_dim": 16, "num_learnable_registers": 8
    }  # fmt: skip
    both = {f"{half}_connector_{k}": v for half in ("video", "audio") for k, v in sizes.items()}
    connectors = LTX2TextConnectors(
        caption_channels=32, text_proj_in_factor=4, rope_type="split", **both
    ).eval()
    connectors.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(gemma_folder, local_files_only=True)
    batch = tokenizer([PROMPT], padding="max_length", max_length=64, return_tensors="pt")
    gemma = Gemma3ForConditionalGeneration.from_pretrained(gemma_folder, dtype=torch.float32)
    with torch.no_grad():
        states = gemma.eval()(**batch, output_hidden_states=True).hidden_states
        expected, _, _ = connectors(torch.stack(states, -1), batch["attention_mask"])
    result = run(gemma_folder, tmp_path)
    assert (result.embeds - expected).abs().max() < 1e-5


def test_text_encoder_is_gone_before_the_connectors_load(
    gemma_folder: Path, connectors_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: dict[str, weakref.ref[nn.Module]] = {}
    load_gemma, load_connectors = encode.load_gemma, encode.load_connectors

    def watched_gemma(*args: Any, **kwargs: Any) -> nn.Module:
        backbone = load_gemma(*args, **kwargs)
        alive["gemma"] = weakref.ref(backbone)
        alive["layer"] = weakref.ref(backbone.layers[0])
        return backbone

    def watched_connectors(*args: Any, **kwargs: Any) -> nn.Module:
        assert alive["gemma"]() is None
        assert alive["layer"]() is None
        model = load_connectors(*args, **kwargs)
        alive["connectors"] = weakref.ref(model)
        return model

    monkeypatch.setattr(encode, "load_gemma", watched_gemma)
    monkeypatch.setattr(encode, "load_connectors", watched_connectors)
    run(gemma_folder, connectors_folder)
    assert sorted(alive) == ["connectors", "gemma", "layer"]
    assert all(ref() is None for ref in alive.values())


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


def test_no_tensor_but_the_result_remains(gemma_folder: Path, connectors_folder: Path) -> None:
    run(gemma_folder, connectors_folder)
    before = tensors_alive()
    kept = [run(gemma_folder, connectors_folder) for _ in range(2)]
    assert tensors_alive() - before <= len(kept)


def test_store_hit_needs_no_model(
    gemma_folder: Path, connectors_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PromptStore(tmp_path)
    first = run(gemma_folder, connectors_folder, store=store)
    monkeypatch.setattr(encode, "load_gemma", None)
    monkeypatch.setattr(encode, "load_tokenizer", None)
    monkeypatch.setattr(encode, "load_connectors", None)
    notes = Notes()
    again = run(gemma_folder, connectors_folder, store=store, notes=notes)
    assert torch.equal(again.embeds, first.embeds)
    assert again.mask is None
    assert len(notes.infos) == 1
    assert "from the store" in notes.infos[0]
    with pytest.raises(TypeError):  # another prompt would have to be encoded
        run(gemma_folder, connectors_folder, PROMPT + ".", store=store)


def test_a_broken_entry_is_written_again(
    gemma_folder: Path, connectors_folder: Path, tmp_path: Path
) -> None:
    store = PromptStore(tmp_path)
    first = run(gemma_folder, connectors_folder, store=store)
    (entry,) = store.folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:100])
    notes = Notes()
    again = run(gemma_folder, connectors_folder, store=store, notes=notes)
    assert torch.equal(again.embeds, first.embeds)
    assert len(notes.warnings) == 1
    assert notes.infos == []
    notes = Notes()
    run(gemma_folder, connectors_folder, store=store, notes=notes)
    assert notes.warnings == []
    assert len(notes.infos) == 1


def test_a_cut_prompt_is_said(gemma_folder: Path, connectors_folder: Path) -> None:
    notes = Notes()
    run(gemma_folder, connectors_folder, "tower " * 50, max_length=16, notes=notes)
    assert len(notes.changes) == 1
    assert "the text encoder takes 16" in notes.changes[0]


def test_nothing_is_printed(
    gemma_folder: Path,
    connectors_folder: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(gemma_folder, connectors_folder, "tower " * 50, max_length=16)
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every load fail, so that a test sees that an error comes before it."""
    for name in ("load_gemma", "load_tokenizer", "load_connectors"):
        monkeypatch.setattr(encode, name, None)


def test_errors_come_before_anything_is_loaded(
    gemma_folder: Path, connectors_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_load(monkeypatch)
    for prompt in ("", " \n", "\u200b"):
        with pytest.raises(UsageError, match="prompt"):
            run(gemma_folder, connectors_folder, prompt)
    with pytest.raises(InputError):
        run(gemma_folder, connectors_folder, "")
    with pytest.raises(UsageError, match="60 is not a multiple of the 8 registers"):
        run(gemma_folder, connectors_folder, max_length=60)
    with pytest.raises(UsageError, match="max_length 0"):
        run(gemma_folder, connectors_folder, max_length=0)
    with pytest.raises(MissingFile):
        run(tmp_path / "nowhere", connectors_folder)
    with pytest.raises(MissingFile):
        run(gemma_folder, tmp_path / "nowhere")
    more = make_tiny_connectors(tmp_path / "more", states=5)
    with pytest.raises(CheckpointError, match=r"gives 4 hidden states .*expect 5 "):
        run(gemma_folder, more)
    wide = make_tiny_connectors(tmp_path / "wide", width=48)
    with pytest.raises(CheckpointError, match="hidden size is 32, the connectors expect 48"):
        run(gemma_folder, wide)


def test_states_are_counted_after_the_pass_too(
    gemma_folder: Path, connectors_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = encode.prompt_states
    monkeypatch.setattr(encode, "prompt_states", lambda b, t: states(b, t)[:-1])
    with pytest.raises(CheckpointError, match=r"gives 3 hidden states .*expect 4 "):
        run(gemma_folder, connectors_folder)


def test_overflow_is_an_error(
    gemma_folder: Path, connectors_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = encode.prompt_states
    monkeypatch.setattr(encode, "prompt_states", lambda b, t: [s * torch.inf for s in states(b, t)])
    with pytest.raises(NumericsError, match="hidden states hold NaN or infinity in float16") as e:
        run(gemma_folder, connectors_folder, dtype=torch.float16)
    assert "bf16" in str(e.value)


def test_broken_weights_are_named(
    gemma_folder: Path, connectors_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(gemma_folder, tmp_path / "g"))
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=str(shard)):
        run(folder, connectors_folder)


def test_import_loads_no_transformers() -> None:
    script = (
        "import sys, sanawm.text; assert 'torch' not in sys.modules\n"
        "import sanawm.text.prompt, sanawm.text.instruction; assert 'torch' not in sys.modules\n"
        "import sanawm.text.encode, sanawm.text.gemma, sanawm.text.embeddings, sanawm.text.store\n"
        "import sanawm.text.caption\n"
        "names = ('transformers', 'diffusers', 'tokenizers', 'sanawm.refiner', 'sanawm.vae',\n"
        "         'sanawm.stage1', 'sanawm.io')\n"
        "assert not [n for n in names if n in sys.modules]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_embeddings_file_needs_no_transformers(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['transformers'] = None; sys.modules['tokenizers'] = None\n"
        "from pathlib import Path; import torch\n"
        "from sanawm.text.embeddings import *\n"
        f"path = Path({str(tmp_path)!r}) / 'e.safetensors'\n"
        "save_prompt_embeds(path, PromptEmbeds(torch.ones(1, 2, 3), None))\n"
        "assert load_prompt_embeds(path).prompt.embeds.shape == (1, 2, 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
