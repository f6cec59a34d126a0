"""What a worker keeps between jobs: models and embeddings, while their settings stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sanawm.batch.models import MODELS, KeptModels
from sanawm.config import resolve
from sanawm.notes import Notes
from sanawm.plan import Plan, make_plan
from sanawm.prompting import Texts
from sanawm.text.embeddings import PromptEmbeds


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    """Make the plan of a tiny run with some settings changed."""

    def make(**flags: Any) -> Plan:
        given = {"output.output": tmp_path / "o.mp4", "video.num_frames": 25, "input.prompt": "x"}
        given |= {key.replace("__", "."): value for key, value in flags.items()}
        settings = resolve(["tiny"], flags={k: (k, _plain(v)) for k, v in given.items()})
        return make_plan(settings, notes=Notes(), download=False)

    return make


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def loaded(kept: KeptModels, plan: Plan) -> dict[str, Any]:
    """Return the models that a pipeline for `plan` has without loading anything."""
    return {k: v for k, v in vars(kept.pipeline(plan, notes=Notes())).items() if k in MODELS}


def fill(kept: KeptModels, plan: Plan) -> None:
    """Pretend that every model was loaded."""
    pipeline = kept.pipeline(plan, notes=Notes())
    for name in MODELS:
        vars(pipeline)[name] = f"the {name}"
    pipeline.refiner_layout = (18, False)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"runtime__seed": 7},
        {"input__prompt": "another"},
        {"video__crf": 30, "refiner__kv_max_frames": 5, "refiner__sigmas": (0.9, 0.0)},
        {"video__height": 32, "video__width": 48},
        {"runtime__threads": 2, "runtime__schedule": "overlap"},
    ],
    ids=str,
)
def test_models_stay_while_they_are_the_same(flags: dict[str, Any], plan_of: Any) -> None:
    kept = KeptModels()
    fill(kept, plan_of())
    assert loaded(kept, plan_of(**flags)) == {name: f"the {name}" for name in MODELS}
    assert kept.pipeline(plan_of(**flags), notes=Notes()).refiner_layout == (18, False)


@pytest.mark.parametrize(
    ("flags", "dropped"),
    [
        ({"runtime__precision": "bf16"}, ("encoder", "decoder", "refiner", "stage1")),
        ({"refiner__mode": "single-shot"}, ("refiner",)),
        ({"model__vae": "copy of vae"}, ("encoder", "decoder")),
    ],
    ids=str,
)
def test_models_that_would_be_others_are_dropped(
    flags: dict[str, Any], dropped: tuple[str, ...], plan_of: Any, tmp_path: Path
) -> None:
    import shutil

    if "model__vae" in flags:
        shutil.copytree(plan_of().components["vae"].local, tmp_path / "copy of vae")
        flags = {"model__vae": tmp_path / "copy of vae"}
    kept = KeptModels()
    fill(kept, plan_of())
    assert set(loaded(kept, plan_of(**flags))) == set(MODELS) - set(dropped)


def test_embeddings_are_those_of_the_last_prompt(plan_of: Any) -> None:
    import torch

    texts = Texts(PromptEmbeds(torch.zeros(1, 4, 8), None), None)
    kept, plan = KeptModels(), plan_of()
    kept.pipeline(plan, notes=Notes())
    assert kept.texts(plan) is None
    kept.keep_texts(plan, texts)
    assert kept.texts(plan_of(runtime__seed=3)) is texts
    assert kept.texts(plan_of(input__prompt="another")) is None
    assert kept.texts(plan_of(text__max_length=32)) is None
    kept.drop()
    assert kept.texts(plan) is None
