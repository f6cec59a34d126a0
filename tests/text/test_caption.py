"""The whole way from prompt and instruction to stage 1's caption."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from configs.tiny.make.tiny_gemma2 import make_tiny_gemma2, write_json
from sanawm.errors import CheckpointError, InputError, MissingFile, NumericsError, UsageError
from sanawm.notes import Notes
from sanawm.text import caption, gemma
from sanawm.text.caption import encode_caption
from sanawm.text.embeddings import Stage1Caption
from sanawm.text.instruction import read_instruction
from sanawm.text.store import PromptStore
from tests.conftest import GOLDEN
from tests.text.reference_caption import Reference, load_reference

PROMPT = "a red tower on green ground under a blue sky"
CHI = "Describe the scene:\nPrompt: "
RELEASE = [
    GOLDEN / "stage1" / "configs" / f"{name}.yaml"
    for name in ("sana_wm_streaming_1600m_720p", "sana_wm_1600m_720p")
]


def run(folder: Path, prompt: str = PROMPT, **changes: Any) -> Stage1Caption:
    settings: dict[str, Any] = {
        "instruction": CHI, "max_length": 24, "width": 32, "device": "cpu", "dtype": torch.float32,
        "notes": Notes(),
    } | changes  # fmt: skip
    return encode_caption(prompt, text_encoder=folder, **settings)


@pytest.fixture(scope="module")
def reference(gemma2_folder: Path) -> Reference:
    return load_reference(gemma2_folder, torch.float32)


def release_lines(path: Path) -> list[str]:
    lines: list[str] = yaml.safe_load(path.read_text())["text_encoder"]["chi_prompt"]
    return lines


@pytest.mark.oracle
@pytest.mark.parametrize("path", RELEASE, ids=lambda p: p.stem)
@pytest.mark.parametrize("words", [9, 600], ids=["short", "cut"])
def test_release_instruction(
    gemma2_folder: Path, reference: Reference, path: Path, words: int
) -> None:
    prompt = " ".join((PROMPT.split() * 100)[:words])
    expected, mask = reference.caption(prompt, "\n".join(release_lines(path)), 300)
    result = run(gemma2_folder, prompt, instruction=read_instruction(path), max_length=300)
    assert result.caption.shape == (1, 1, 300, 32)
    assert result.mask.shape == (1, 300)
    assert torch.equal(result.mask, mask)
    assert (result.caption - expected).abs().max() <= 1e-6
    assert int(mask.sum()) == (300 if words == 600 else mask[0].tolist().index(0))


@pytest.mark.oracle
@pytest.mark.parametrize("chi", ["", CHI, "x", "Go: ", "Zürich 🏰 "])
@pytest.mark.parametrize(
    ("prompt", "length"), [("a", 24), ("tower " * 40 + "end", 24), ("日本 🏰", 24), (PROMPT, 2)]
)
def test_any_instruction_and_prompt(
    gemma2_folder: Path, reference: Reference, chi: str, prompt: str, length: int
) -> None:
    expected, mask = reference.caption(prompt, chi, length)
    result = run(gemma2_folder, prompt, instruction=chi or None, max_length=length)
    assert result.caption.shape == (1, 1, length, 32)
    assert torch.equal(result.mask, mask)
    assert (result.caption - expected).abs().max() <= 1e-6


@pytest.mark.oracle
def test_bfloat16(gemma2_folder: Path) -> None:
    expected, mask = load_reference(gemma2_folder, torch.bfloat16).caption(PROMPT, CHI, 24)
    result = run(gemma2_folder, dtype=torch.bfloat16)
    assert result.caption.dtype == torch.bfloat16
    assert torch.equal(result.caption, expected)
    assert torch.equal(result.mask, mask)


@pytest.mark.oracle
def test_equal_to_the_pipeline_of_diffusers(gemma2_folder: Path, reference: Reference) -> None:
    from diffusers import SanaWMPipeline

    lines = release_lines(RELEASE[0])
    parts = SimpleNamespace(tokenizer=reference.tokenizer, text_encoder=reference.model)
    with torch.no_grad():
        expected, mask, negative, negative_mask = SanaWMPipeline.encode_prompt(
            parts, PROMPT, "fog", device="cpu", chi_prompt=lines
        )
    result = run(gemma2_folder, instruction="\n".join(lines), max_length=300)
    assert torch.equal(result.mask, mask)
    assert (result.caption - expected).abs().max() <= 1e-6
    plain = run(gemma2_folder, "fog", instruction=None, max_length=300)
    assert torch.equal(plain.mask, negative_mask)
    assert (plain.caption - negative).abs().max() <= 1e-6


def test_rows_by_hand(gemma2_folder: Path, reference: Reference) -> None:
    """A prompt that fits: bos, the instruction's last token, the prompt's tokens, padding."""
    chi = "Describe the scene:"  # its end does not join with the prompt
    tokenizer = reference.tokenizer
    head = tokenizer.encode(chi)
    body = tokenizer.encode(PROMPT, add_special_tokens=False)
    assert head + body == tokenizer.encode(chi + PROMPT)
    result = run(gemma2_folder, instruction=chi, max_length=len(body) + 6)
    assert result.mask.tolist() == [[1] * (len(body) + 2) + [0] * 4]
    with torch.no_grad():
        rows = reference.model.model(torch.tensor([head + body])).last_hidden_state[0]
    kept = [0, *range(len(head) - 1, len(rows))]
    torch.testing.assert_close(result.caption[0, 0, : len(kept)], rows[kept])


def mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make one known mistake of the prompt path."""
    tokenize, states, load = caption.tokenize, gemma.prompt_states, caption.load_gemma

    def loaded(change: Callable[[nn.Module], object]) -> Callable[..., nn.Module]:
        def patched(*args: Any, **settings: Any) -> nn.Module:
            backbone = load(*args, **settings)
            change(backbone)
            return backbone

        return patched

    changes: dict[str, tuple[str, Any]] = {
        "left padding": ("tokenize", lambda *a, **k: tokenize(*a, **k | {"side": "left"})),
        "one token too many": (
            "tokenize",
            lambda *a, max_length, **k: tokenize(*a, max_length=max_length + 1, **k),
        ),
        "without bos": ("select_rows", lambda rows, n, axis: rows.narrow(axis, -n, n)),
        "first rows": ("select_rows", lambda rows, n, axis: rows.narrow(axis, 0, n)),
        "without the final norm": ("last_state", lambda b, t: layer_output(b, t)),
        "state before the last": ("last_state", lambda b, t: states(b, t)[-2]),
        "no embedding scale": (
            "load_gemma", loaded(lambda b: b.embed_tokens.embed_scale.fill_(1.0))
        ),
        "no soft cap": (
            "load_gemma",
            loaded(lambda b: [setattr(m.self_attn, "attn_logit_softcapping", None)
                              for m in b.layers]),
        ),
        "characters for tokens": ("token_ids", lambda tokenizer, text: [0] * len(text)),
    }  # fmt: skip
    monkeypatch.setattr(caption, *changes[name])


def layer_output(backbone: nn.Module, tokens: Any) -> Tensor:
    kept: list[Tensor] = []
    handle = backbone.layers[-1].register_forward_hook(lambda _m, _i, out: kept.append(out))
    gemma.last_state(backbone, tokens)
    handle.remove()
    return kept[0]


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("left padding", 0.5),
        ("one token too many", 0.5),
        ("without bos", 0.5),
        ("first rows", 0.5),
        ("without the final norm", 0.5),
        ("state before the last", 0.5),
        ("no embedding scale", 0.5),
        ("no soft cap", 1e-3),
        ("characters for tokens", 0.5),
    ],
)
def test_a_known_mistake_is_noticed(
    gemma2_folder: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    floor: float,
) -> None:
    expected, mask = reference.caption(PROMPT, CHI, 24)
    mistake(monkeypatch, name)
    result = run(gemma2_folder)
    words = mask[0].bool()
    error = (result.caption - expected)[0, 0, words].abs().max()
    assert error > floor


def test_the_instruction_changes_the_caption(gemma2_folder: Path) -> None:
    texts = ("Describe the scene:\nPrompt: ", "Describe the scene: Prompt: ", CHI.rstrip(), None)
    results = [run(gemma2_folder, instruction=text).caption for text in texts]
    for i, first in enumerate(results):
        for second in results[i + 1 :]:
            assert (first - second).abs().max() > 0.01


def test_lines_that_a_run_owes(gemma2_folder: Path) -> None:
    notes = Notes()
    result = run(gemma2_folder, notes=notes)
    assert notes == Notes()
    assert not result.caption.requires_grad
    assert result.mask.dtype == torch.int64
    padded = run(gemma2_folder, f" \n{PROMPT}\t")
    assert torch.equal(padded.caption, result.caption)
    for empty in (None, ""):
        notes = Notes()
        run(gemma2_folder, instruction=empty, notes=notes)
        assert notes.infos == ["stage 1: no instruction in front of the prompt"]
        assert notes.changes == notes.warnings == []
    notes = Notes()
    run(gemma2_folder, "tower " * 50, notes=notes)
    (line,) = notes.changes
    assert line.startswith("the stage-1 prompt with its instruction has ")
    found, taken, lost = (int(word) for word in line.replace(":", "").split() if word.isdigit())
    assert lost == found - taken > 0


def test_the_text_encoder_is_freed(gemma2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[nn.Module]] = []
    load = caption.load_gemma

    def watched(*args: Any, **settings: Any) -> nn.Module:
        backbone = load(*args, **settings)
        alive.extend(weakref.ref(part) for part in (backbone, backbone.layers[0]))
        return backbone

    monkeypatch.setattr(caption, "load_gemma", watched)
    gc.disable()  # or the test would pass by chance
    try:
        run(gemma2_folder)
    finally:
        gc.enable()
    assert len(alive) == 2
    assert all(ref() is None for ref in alive)


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


def test_no_tensor_but_the_result_remains(gemma2_folder: Path) -> None:
    run(gemma2_folder)
    before = tensors_alive()
    kept = [run(gemma2_folder) for _ in range(2)]
    assert tensors_alive() - before <= 2 * len(kept)
    storage = kept[0].caption.untyped_storage()
    assert storage.nbytes() == kept[0].caption.nbytes  # no view of all the encoder's rows


def test_nothing_is_printed(
    gemma2_folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run(gemma2_folder, "tower " * 3000, instruction="look " * 50)
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every load fail, so that a test sees that nothing is loaded."""
    for name in ("load_gemma", "load_tokenizer"):
        monkeypatch.setattr(caption, name, None)


def test_store(gemma2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PromptStore(tmp_path)
    first = run(gemma2_folder, store=store)
    plain = run(gemma2_folder, store=store, instruction=None)
    assert len(list(store.folder.iterdir())) == 2
    no_load(monkeypatch)
    for kept, instruction in ((first, CHI), (plain, None), (plain, "")):
        notes = Notes()
        again = run(gemma2_folder, store=store, instruction=instruction, notes=notes)
        assert torch.equal(again.caption, kept.caption)
        assert torch.equal(again.mask, kept.mask)
        assert "stage-1 caption taken from the store" in notes.infos[-1]
        assert len(notes.infos) == (1 if instruction else 2)
    for change in ({"instruction": CHI.rstrip()}, {"max_length": 25}, {"dtype": torch.bfloat16}):
        with pytest.raises(TypeError):  # it would have to be encoded
            run(gemma2_folder, store=store, **change)
    with pytest.raises(TypeError):
        run(gemma2_folder, PROMPT + ".", store=store)


def test_a_broken_entry_is_written_again(gemma2_folder: Path, tmp_path: Path) -> None:
    store = PromptStore(tmp_path)
    first = run(gemma2_folder, store=store)
    (entry,) = store.folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-9])
    notes = Notes()
    again = run(gemma2_folder, store=store, notes=notes)
    assert torch.equal(again.caption, first.caption)
    assert len(notes.warnings) == 1
    notes = Notes()
    run(gemma2_folder, store=store, notes=notes)
    assert notes.warnings == []
    assert len(notes.infos) == 1


def changed_config(source: Path, target: Path, **values: object) -> Path:
    folder = Path(shutil.copytree(source, target))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | values)
    return folder


def test_errors_come_before_anything_is_loaded(
    gemma2_folder: Path, gemma_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_load(monkeypatch)
    for prompt in ("", " \n", "\u200b"):
        with pytest.raises(InputError, match="prompt"):
            run(gemma2_folder, prompt)
    with pytest.raises(CheckpointError, match=r"hidden size is 32, .* captions of width 2304") as e:
        run(gemma2_folder, width=2304)
    assert e.value.exit_code == 3
    for length in (1, 0, -3):
        with pytest.raises(UsageError, match=f"caption of {length} tokens; expected 2 or more"):
            run(gemma2_folder, max_length=length)
    with pytest.raises(CheckpointError, match="model_type is 'gemma3', expected 'gemma2'"):
        run(gemma_folder)
    with pytest.raises(MissingFile, match=r"nowhere/config\.json"):
        run(tmp_path / "nowhere")


def test_errors_come_before_the_weights(
    gemma2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caption, "load_gemma", None)
    short = changed_config(gemma2_folder, tmp_path / "a", max_position_embeddings=26)
    with pytest.raises(InputError, match=r"need \d\d token positions, .* has 26 \(max_pos"):
        run(short)
    without = tmp_path / "b" / "text_encoder"
    shutil.copytree(gemma2_folder, without, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(MissingFile, match=r"no tokenizer\.json or tokenizer\.model"):
        run(without)


def test_a_tokenizer_of_another_model(gemma2_folder: Path, tmp_path: Path) -> None:
    folder = make_tiny_gemma2(tmp_path / "small", vocab=500)
    shutil.copy(gemma2_folder / "tokenizer.json", folder)
    with pytest.raises(CheckpointError, match=r"gives id \d+, the text encoder has 500 embeddings"):
        run(folder)


def test_broken_weights_are_named(gemma2_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gemma2_folder, tmp_path / "g"))
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=str(shard)):
        run(folder)


def test_overflow_is_an_error(gemma2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = caption.last_state
    monkeypatch.setattr(caption, "last_state", lambda b, t: state(b, t) * torch.inf)
    with pytest.raises(NumericsError, match="stage-1 text encoder's hidden states hold NaN") as e:
        run(gemma2_folder, dtype=torch.float16)
    assert "bf16" in str(e.value)
