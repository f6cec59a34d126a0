"""Settings of a checkpoint: the release files, TOML, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.notes import Notes
from sanawm.shapes import LatentShape
from sanawm.stage1.config import Stage1Config

from . import cases

CONFIGS = cases.GOLDEN / "configs"
STREAMING = CONFIGS / "sana_wm_streaming_1600m_720p.yaml"
BIDIRECTIONAL = CONFIGS / "sana_wm_1600m_720p.yaml"

TOML = """
[model]
hidden_size = 64
depth = 5
num_heads = 4
linear_head_dim = 32
in_channels = 8
caption_channels = 32
chunk_size = 3
[vae]
vae_stride = [8, 32, 32]
[text_encoder]
model_max_length = 12
"""


def test_released_values_are_those_of_the_release_yaml() -> None:
    notes = Notes()
    config = Stage1Config.from_file(STREAMING, notes=notes)
    assert config == Stage1Config.released()
    assert notes.warnings == []
    assert (config.width, config.depth, config.heads, config.cross_heads) == (2240, 20, 20, 20)
    assert [i for i in range(20) if config.is_softmax(i)] == [3, 7, 11, 15, 19]
    assert config.chunk_size == 3


def test_bidirectional_yaml_differs_in_chunks_and_shift_only() -> None:
    config = Stage1Config.from_file(BIDIRECTIONAL)
    assert not config.streaming
    assert config.flow_shift == 9.8
    assert replace(config, chunk_size=3, flow_shift=8.0) == Stage1Config.released()


def test_toml_holds_the_same_sections(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(TOML)
    assert Stage1Config.from_file(path) == cases.tiny_config()


def test_config_and_plan_do_not_import_torch() -> None:
    code = "import sys, sanawm.stage1.config, sanawm.stage1.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_keys_are_named() -> None:
    notes = Notes()
    model = {"model": "X_1600M_P1_D20", "window_kind": "ring", "chunk_size": 3, None: 0, 7: 1}
    config = Stage1Config.from_mapping(
        {"model": model, "vae": {"vae_latent_dim": 128}}, where="m.yaml", notes=notes
    )
    assert config == Stage1Config.released()
    assert notes.warnings == ["m.yaml: not understood and ignored in [model]: 7, None, window_kind"]


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model", "patch_size", [1, 2, 2], r"patch_size is \[1, 2, 2\]; only \[1, 1, 1\]"),
        ("model", "k_conv_only", False, "k_conv_only is False"),
        ("model", "pos_embed_type", "sincos", "'casual_wan_rope' or 'wan_rope'"),
        ("model", "cross_norm", False, "cross_norm is False"),
        ("model", "hidden_size", "wide", "hidden_size is 'wide', expected an integer"),
        ("model", "hidden_size", 65, "width 65 is no multiple of head size 32"),
        ("model", "linear_head_dim", 4, "head size 4 is no multiple of 8"),
        ("model", "depth", 0, "depth is 0; expected 1 or more"),
        ("model", "chunk_size", 0, "chunk_size is 0"),
        ("text_encoder", "y_norm", False, "y_norm is False"),
        ("scheduler", "predict_flow_v", False, "predict_flow_v is False"),
        ("scheduler", "inference_flow_shift", 10**400, "inference_flow_shift is 10+, expected"),
        ("scheduler", "inference_flow_shift", "fast", "inference_flow_shift is 'fast'"),
        ("vae", "vae_stride", [8, 32, 16], "vae_stride is"),
    ],
)
def test_other_arithmetic_is_refused(section: str, key: str, value: object, message: str) -> None:
    model = {"hidden_size": 64, "depth": 5, "num_heads": 4, "linear_head_dim": 32,
             "in_channels": 8, "caption_channels": 32}  # fmt: skip
    data: dict[str, dict[str, object]] = {"model": {**model}}
    data.setdefault(section, {})[key] = value
    with pytest.raises(InputError, match=message) as caught:
        Stage1Config.from_mapping(data, where="m.yaml")
    assert caught.value.exit_code == 2


def test_a_model_without_sizes_is_refused() -> None:
    with pytest.raises(InputError, match=r"m\.yaml: hidden_size is missing"):
        Stage1Config.from_mapping({"model": {"model": "New_9B", "in_channels": 8}}, where="m.yaml")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no such file"):
        Stage1Config.from_file(tmp_path / "none.yaml")
    for name, text, message in (
        ("a.yaml", "model: [1, 2", "not valid YAML"),
        ("b.yaml", "just words", "found no mapping"),
        ("c.toml", "model =", "not valid TOML"),
        ("d.yaml", "model: 3", "model is int, expected a section"),
        ("e.yaml", "model: !!python/object/apply:os.system ['true']", "not valid YAML"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            Stage1Config.from_file(tmp_path / name)


def test_latent_shape_of_the_release() -> None:
    shape = Stage1Config.released().latent_shape(frames=241, height=704, width=1280)
    assert shape == LatentShape(1, 128, 31, 22, 40)


@pytest.mark.parametrize(
    ("frames", "height", "width", "message"),
    [
        (241, 700, 1280, "height 700 is no multiple of 32.*\n.*use 672 or 704"),
        (241, 704, 1281, "width 1281 is no multiple of 32"),
        (241, 0, 1280, "height 0"),
        (240, 704, 1280, r"240 frames cannot be encoded"),
    ],
)
def test_sizes_that_do_not_divide(frames: int, height: int, width: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Stage1Config.released().latent_shape(frames=frames, height=height, width=width)
