"""Text connectors against the reference implementation's tensors and names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanawm.errors import CheckpointError, MissingFile, UsageError
from sanawm.notes import Notes
from sanawm.ops.rope import RopeTable
from sanawm.tensorfile import TensorFiles
from sanawm.text import connectors as module
from sanawm.text.connectors import (
    ConnectorsConfig,
    TextConnectors,
    check_connectors,
    load_connectors,
    place_registers,
    read_connectors_config,
)
from sanawm.text.packing import pack_states

VARIANTS = ["split_reg", "inter_gated_reg", "split_noreg"]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> TextConnectors:
    return load_connectors(folder, device="cpu", dtype=dtype, notes=Notes())


def case(golden: Path, variant: str) -> tuple[TextConnectors, dict[str, Tensor], Tensor]:
    """Return the loaded connectors, the golden tensors and the packed input."""
    model = load(golden / f"refiner/connectors_{variant}")
    tensors = load_file(golden / f"refiner/connectors_{variant}.safetensors")
    packed = pack_states(tensors["hidden_states"].unbind(-1), tensors["attention_mask"])
    return model, tensors, packed


def error(golden: Path, variant: str) -> float:
    """Largest difference of the embeddings from the reference."""
    model, tensors, packed = case(golden, variant)
    embeds = model(packed, tensors["attention_mask"])
    return float((embeds - tensors["video_embeds"]).abs().max())


@pytest.mark.parametrize("variant", VARIANTS)
def test_projection_and_registers_equal_the_reference(golden: Path, variant: str) -> None:
    model, tensors, packed = case(golden, variant)
    projected = model.text_proj_in(packed)
    assert (projected - tensors["after_text_proj"]).abs().max() < 5e-5
    registers = model.video_connector.learnable_registers
    placed = projected
    if registers is not None:
        placed = place_registers(projected, tensors["attention_mask"], registers)
    assert (placed - tensors["after_registers"]).abs().max() < 5e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_equal_the_reference(golden: Path, variant: str) -> None:
    assert error(golden, variant) < 5e-5


def test_bfloat16_stays_close(golden: Path) -> None:
    tensors = load_file(golden / "refiner/connectors_split_reg.safetensors")
    model = load(golden / "refiner/connectors_split_reg", torch.bfloat16)
    states = tensors["hidden_states"].bfloat16().unbind(-1)
    embeds = model(pack_states(states, tensors["attention_mask"]), tensors["attention_mask"])
    assert embeds.dtype == torch.bfloat16
    difference = embeds.float() - tensors["video_embeds"]
    assert difference.square().mean().sqrt() < 0.02 * tensors["video_embeds"].square().mean().sqrt()


class TestMistakesAreSeen:
    """Each usual mistake moves the embeddings far beyond the limit of 5e-5."""

    def check(self, golden: Path, variant: str) -> None:
        assert error(golden, variant) > 5e-3

    def test_registers_in_place_of_padding(
        self, golden: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def in_place(x: Tensor, mask: Tensor, registers: Tensor) -> Tensor:
            tiled = registers.repeat(x.shape[1] // registers.shape[0], 1)
            return torch.where(mask.bool().unsqueeze(-1), x, tiled)

        monkeypatch.setattr(module, "place_registers", in_place)
        self.check(golden, "split_reg")

    def test_registers_counted_from_the_last_word(
        self, golden: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def shifted(x: Tensor, mask: Tensor, registers: Tensor) -> Tensor:
            placed = place_registers(x, mask, registers)
            for row, n in zip(placed, mask.sum(1).tolist(), strict=True):
                row[n:] = registers.repeat(4, 1)[: len(row) - n]
            return placed

        monkeypatch.setattr(module, "place_registers", shifted)
        self.check(golden, "split_reg")

    @pytest.mark.parametrize("variant", ["split_reg", "inter_gated_reg"])
    def test_the_other_pairing(
        self, golden: Path, monkeypatch: pytest.MonkeyPatch, variant: str
    ) -> None:
        other = "interleaved" if variant == "split_reg" else "split"
        rotate: Callable[..., Tensor] = module.apply_rope
        monkeypatch.setattr(module, "apply_rope", lambda x, table, kind: rotate(x, table, other))
        self.check(golden, variant)

    def test_no_rotation(self, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "apply_rope", lambda x, table, kind: x)
        self.check(golden, "split_noreg")

    def test_padding_seen_without_registers(
        self, golden: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "padding_bias", lambda mask, dtype: None)
        self.check(golden, "split_noreg")

    def test_gates_without_the_factor_two(
        self, golden: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sigmoid = torch.sigmoid
        monkeypatch.setattr(torch, "sigmoid", lambda x: sigmoid(x) / 2)
        self.check(golden, "inter_gated_reg")


def test_rope_table_of_the_release() -> None:
    with torch.device("meta"):
        model = TextConnectors(ConnectorsConfig(rope_type="split"))
    table: RopeTable = model.video_connector.rope_table(1024)
    assert table.cos.shape == (30, 1024, 64)
    # position 0 is the fraction 0, so the first angle is (2*0 - 1) * pi/2
    torch.testing.assert_close(table.sin[0, 0, 0], torch.tensor(-1.0))
    # position 1023: (2*1023/4096 - 1) * pi/2
    angle = torch.tensor((2 * 1023 / 4096 - 1) * torch.pi / 2)
    torch.testing.assert_close(table.cos[0, 1023, 0], angle.cos())


def test_full_size_names_and_shapes(golden: Path) -> None:
    rows = (golden / "keys/connectors_keys.tsv").read_text(encoding="utf-8").splitlines()[1:]
    table = [row.split("\t") for row in rows]
    used = {r[0]: tuple(map(int, r[1].split("x"))) for r in table if r[3] == "yes"}
    with torch.device("meta"):
        model = TextConnectors(ConnectorsConfig(rope_type="split"))
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == used
    assert len(used) == 30
    assert sum(v.numel() for v in model.state_dict().values()) == 1_077_004_800
    unused = [r[0] for r in table if r[3] == "no"]
    assert len(unused) == 29
    assert all(name.startswith("audio_connector.") for name in unused)


def copied(golden: Path, tmp_path: Path) -> Path:
    """Return a copy of one connectors folder that a test may damage."""
    return Path(shutil.copytree(golden / "refiner/connectors_split_reg", tmp_path / "connectors"))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_audio_tensors_are_not_read(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = golden / "refiner/connectors_split_reg"
    read: list[str] = []
    original = TensorFiles.read

    def spy(self: TensorFiles, name: str) -> Tensor:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(TensorFiles, "read", spy)
    model = load(folder)
    assert sorted(read) == sorted(model.state_dict())
    assert any(name.startswith("audio_connector.") for name in TensorFiles(folder))
    assert not any(name.startswith("audio_connector.") for name in read)


@pytest.mark.parametrize("check", [load, check_connectors])
def test_any_other_tensor_is_an_error(
    golden: Path, tmp_path: Path, check: Callable[[Path], object]
) -> None:
    folder = copied(golden, tmp_path)
    edit_weights(folder, lambda w: w.update({"video_connector.extra": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"1 unexpected: video_connector\.extra"):
        check(folder)


@pytest.mark.parametrize("check", [load, check_connectors])
def test_a_missing_tensor_is_an_error(
    golden: Path, tmp_path: Path, check: Callable[[Path], object]
) -> None:
    folder = copied(golden, tmp_path)
    edit_weights(folder, lambda w: w.pop("text_proj_in.weight"))
    with pytest.raises(CheckpointError, match=r"1 missing: text_proj_in\.weight") as e:
        check(folder)
    assert e.value.exit_code == 3


def test_audio_tensors_may_be_absent(golden: Path, tmp_path: Path) -> None:
    folder = copied(golden, tmp_path)
    for name in [n for n in TensorFiles(folder) if n.startswith("audio_connector.")]:
        edit_weights(folder, lambda w, name=name: w.pop(name))
    assert len(load(folder).state_dict()) == 30


def test_a_wrapper_prefix_is_stripped_with_a_line(golden: Path, tmp_path: Path) -> None:
    folder = copied(golden, tmp_path)
    path = folder / "diffusion_pytorch_model.safetensors"
    save_file({f"module.{k}": v for k, v in load_file(path).items()}, path)
    notes = Notes()
    check_connectors(folder)
    load_connectors(folder, device="cpu", dtype=torch.float32, notes=notes)
    assert notes.changes == ["stripped the prefix `module.` from the checkpoint's names"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per_modality_projections": True}, "per_modality_projections is true"),
        ({"rope_type": "twisted"}, "rope_type is 'twisted', expected 'split' or 'interleaved'"),
        ({"caption_channels": 20}, "2 heads of 8 make a width of 16, but caption_channels is 20"),
        ({"caption_channels": "16"}, "caption_channels is '16', expected a whole number"),
        (
            {"caption_channels": 10, "video_connector_attention_head_dim": 5},
            "video_connector_attention_head_dim 5 is odd",
        ),
        ({"text_proj_in_factor": 0}, "text_proj_in_factor is 0, expected more than 0"),
    ],
)
def test_unusable_settings_are_refused_by_name(
    golden: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    folder = copied(golden, tmp_path)
    edit_config(folder, **values)
    with pytest.raises(CheckpointError) as e:
        read_connectors_config(folder)
    assert message in str(e.value)
    assert str(folder / "config.json") in str(e.value)


def test_unknown_and_missing_keys_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "X", "new_key": {"a": 1}}')
    config = read_connectors_config(tmp_path)
    assert config == ConnectorsConfig()
    assert (config.rope_type, config.text_proj_in_factor) == ("interleaved", 49)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"nowhere/config\.json: no such file"):
        check_connectors(tmp_path / "nowhere")


def test_length_must_fit_the_registers() -> None:
    config = ConnectorsConfig()
    config.check_length(1024)
    with pytest.raises(UsageError, match="1000 is not a multiple of the 128 registers") as e:
        config.check_length(1000)
    assert e.value.fix == "use max_length 1024"
    with pytest.raises(UsageError, match="6 text tokens are not a multiple of the 4 registers"):
        place_registers(torch.zeros(1, 6, 2), torch.ones(1, 6), torch.zeros(4, 2))


@pytest.mark.oracle
@pytest.mark.parametrize("registers", [8, None])
def test_equal_to_diffusers(tmp_path: Path, registers: int | None) -> None:
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

    torch.manual_seed(11)
    reference = LTX2TextConnectors(
        caption_channels=24,
        text_proj_in_factor=5,
        video_connector_num_attention_heads=3,
        video_connector_attention_head_dim=8,
        video_connector_num_learnable_registers=registers,
        audio_connector_num_attention_heads=3,
        audio_connector_attention_head_dim=8,
        audio_connector_num_learnable_registers=registers,
        rope_type="split",
    ).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reference.save_pretrained(tmp_path)
    states = torch.randn(2, 32, 24, 5) * torch.tensor([1.0, 3.0, 10.0, 30.0, 100.0])
    mask = (torch.arange(32) >= torch.tensor([[20], [3]])).long()
    with torch.no_grad():
        expected, _, out_mask = reference(states, mask)
        ours = load(tmp_path)(pack_states(states.unbind(-1), mask), mask)
    assert bool(out_mask.all())
    assert (ours - expected).abs().max() < 1e-5
