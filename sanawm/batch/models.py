"""Hand loaded models and a prompt's embeddings from one job to the next."""

from __future__ import annotations

from pathlib import Path

from sanawm.notes import Notes
from sanawm.pipeline import Pipeline
from sanawm.plan import Plan
from sanawm.prompting import Texts

from .check import digest

#: Models of a pipeline by attribute, with the settings that decide what is loaded.
MODELS = {
    # One sequence for the whole clip takes the weights as they are; blocks have them laid out.
    "refiner": ("model.refiner", "refiner.mode"),
    "decoder": ("model.vae",),
    "encoder": ("model.vae",),
    "stage1": ("model.stage1", "model.stage1_config"),
}
_TEXT_KEYS = (
    "model.text_encoder",
    "model.refiner",
    "model.stage1_text_encoder",
    "model.stage1_config",
    "stage1.instruction",
    "text.max_length",
)


class KeptModels:
    """What a worker keeps between jobs: the models, and the embeddings of the last prompt."""

    def __init__(self) -> None:
        self._pipeline: Pipeline | None = None
        self._texts: tuple[str, Texts] | None = None

    def pipeline(self, plan: Plan, *, notes: Notes) -> Pipeline:
        """Return a pipeline for a plan, with the kept models that it would load again.

        A model is kept while its location, the device, the precision and the place where idle
        models wait stay the same. Others are dropped, so that their memory is free.
        """
        later = Pipeline(plan.settings, notes=notes, components=plan.components)
        # The VAE encoder stays as well, unless models are to leave the device.
        later.keep_encoder = plan.settings.settings.runtime.offload != "all"
        earlier, self._pipeline = self._pipeline, later
        if earlier is None or _place(earlier) != _place(later):
            return later
        loaded = vars(earlier)
        for name, keys in MODELS.items():
            if name in loaded and all(
                earlier.settings.get(key) == later.settings.get(key) for key in keys
            ):
                vars(later)[name] = loaded[name]
        if "refiner" in vars(later):
            later.refiner_layout = earlier.refiner_layout
        return later

    def texts(self, plan: Plan) -> Texts | None:
        """Return the embeddings of a plan's prompt, if they are the last ones."""
        if self._texts is not None and self._texts[0] == _text_key(plan, self._pipeline):
            return self._texts[1]
        return None

    def keep_texts(self, plan: Plan, texts: Texts | None) -> None:
        """Remember the embeddings of a plan's prompt."""
        if texts is not None:
            self._texts = (_text_key(plan, self._pipeline), texts)

    def drop(self) -> None:
        """Let go of everything."""
        self._pipeline = None
        self._texts = None


def _place(pipeline: Pipeline) -> tuple[object, ...]:
    homes = [pipeline.home(model) for model in MODELS]
    return pipeline.device, pipeline.dtype, *homes, *pipeline.places.values()


def _text_key(plan: Plan, pipeline: Pipeline | None) -> str:
    place = None if pipeline is None else _place(pipeline)
    prompt, settings = plan.prompt, plan.settings
    source = [prompt.sha256, _shown(prompt.embeds), plan.has_stage1]
    return digest([*source, *(settings.get(key) for key in _TEXT_KEYS), str(place)])


def _shown(path: Path | None) -> str | None:
    return None if path is None else str(path)
