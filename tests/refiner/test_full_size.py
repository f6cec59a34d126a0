"""The released refiner on the meta device: exactly the tensors that the checkpoint holds."""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path

import pytest
import torch

from sanawm.checkpoint import check_names, is_ignored
from sanawm.refiner.config import RefinerConfig
from sanawm.refiner.model import RefinerModel
from sanawm.refiner.weights import IGNORED

KEYS = Path(__file__).parents[1] / "golden" / "keys" / "refiner_keys.tsv"
Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def listed() -> tuple[Shapes, Shapes]:
    """Return the tensors that the video pass uses, and the others."""
    used: Shapes = {}
    unused: Shapes = {}
    with KEYS.open() as f:
        for row in csv.DictReader(f, delimiter="\t"):
            shape = tuple(int(n) for n in row["shape"].split("x"))
            (used if row["used_by_video_only"] == "yes" else unused)[row["name"]] = shape
    return used, unused


@pytest.fixture(scope="module")
def built() -> Shapes:
    with torch.device("meta"):
        model = RefinerModel(RefinerConfig.released())
    assert {p.device.type for p in model.parameters()} == {"meta"}
    return {k: tuple(v.shape) for k, v in model.state_dict(keep_vars=True).items()}


def ignored(name: str) -> bool:
    return is_ignored(name, IGNORED)


def test_table_is_the_whole_release(listed: tuple[Shapes, Shapes]) -> None:
    used, unused = listed
    assert (len(used), len(unused)) == (1215, 2295)
    assert sum(prod(s) for s in used.values()) == 13_041_520_768
    assert sum(prod(s) for s in unused.values()) == 5_834_653_824


def test_model_has_exactly_the_used_tensors(built: Shapes, listed: tuple[Shapes, Shapes]) -> None:
    assert built == listed[0]


def test_ignore_list_covers_exactly_the_unused_tensors(listed: tuple[Shapes, Shapes]) -> None:
    used, unused = listed
    assert [n for n in unused if not ignored(n)] == []
    assert [n for n in used if ignored(n)] == []


def test_released_checkpoint_fits(built: Shapes, listed: tuple[Shapes, Shapes]) -> None:
    used, unused = listed
    check_names(built, used | unused, ignore=IGNORED, label="release")


@pytest.mark.parametrize(
    "name",
    [
        "transformer_blocks.0.attn1.to_q.lora_A.weight",
        "transformer_blocks.0.norm1.weight",
        "transformer_blocks.0.attn1.to_gate_logits.weight",
        "transformer_blocks.48.attn1.to_q.weight",
        "prompt_adaln.linear.weight",
        "video_to_audio_attn.to_q.weight",
        "xaudio_proj_in.weight",
        "transformer_blocks.0.attn1.audio_scale",
        "transformer_blocks.0.video_a2v_cross_attn_scale_shift_table.scale",
    ],
)
def test_other_tensors_are_not_ignored(name: str) -> None:
    assert not ignored(name)


def test_every_pattern_is_needed(listed: tuple[Shapes, Shapes]) -> None:
    for pattern in IGNORED:
        matched = [n for n in listed[1] if is_ignored(n, [pattern])]
        # Only the keyframe embedding is not in the release.
        assert matched or pattern == "keyframes_abs_pos_embedding"
