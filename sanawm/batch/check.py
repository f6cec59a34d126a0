"""Check a job before anything runs: a whole plan is made of it, but no weight is loaded."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sanawm.components import Component, choose_device
from sanawm.notes import Notes
from sanawm.placement import choose_places, parse_places
from sanawm.plan import Plan, make_plan
from sanawm.report import Record, describe_inputs, describe_weights
from sanawm.resume import recipe_sha256

from .asked import Asked
from .made import check_free, files_of, made_recipe

#: Settings of the machine: they belong to no recipe, but jobs that differ in them are no twins.
MACHINE_KEYS = (
    "runtime.device",
    "runtime.threads",
    "runtime.schedule",
    "runtime.offload",
    "runtime.place",
)
_MODEL_KEYS = ("runtime.device", "runtime.precision", "runtime.offload", "runtime.place")


class Checked(NamedTuple):
    """What a checked job is: hashes of its recipe, of equal jobs, of models and prompt."""

    asked: Asked
    recipe: str
    twin: str
    model: str
    prompt: str
    work: int
    done: bool
    paths: list[str]
    main: str
    report: str | None
    frames: int


@dataclass
class Checker:
    """Check jobs whose outputs go to `folder`.

    local: the jobs run on this machine, so it must have their devices. download: fetch `hf://`
    components now, so that their weights are known. cpus: CPU threads of jobs that do not say.
    tried: ids that an earlier batch has begun.
    """

    folder: Path
    overwrite: bool
    local: bool
    download: bool
    cpus: int | None
    tried: frozenset[str]
    #: Devices and numbers of threads that the jobs ask for.
    devices: set[str] = field(default_factory=set)
    threads: set[int | None] = field(default_factory=set)
    _weights: dict[tuple[tuple[str, str], ...], list[dict[str, object]]] = field(
        default_factory=dict
    )

    def check(self, asked: Asked, id_: str) -> Checked:
        """Return what a job is; raises the errors of planning and of `made.check_free`."""
        asked = asked.with_flags(
            {
                "output.output_dir": ("--output-dir", str(self.folder)),
                "output.name": ("id", id_),
                # What may be replaced is decided here, not by the plan.
                "output.overwrite": ("batch", True),
                "output.resume": ("batch", True),
            }
        )
        settings = asked.resolve()
        if self.cpus is not None and settings.settings.runtime.threads is None:
            asked = asked.with_flags({"runtime.threads": ("--cpus-per-job", self.cpus)})
            settings = asked.resolve()
        if self.local:
            device = choose_device(settings.settings.runtime.device)
            choose_places(settings.settings.runtime.place, device)
            self.devices |= set(parse_places(settings.settings.runtime.place).values())
        plan = make_plan(settings, notes=Notes(), download=self.download)
        recipe = self._recipe(plan)
        if not self.overwrite:
            check_free(plan, recipe, tried=id_ in self.tried)
        self.devices.add(settings.settings.runtime.device)
        self.threads.add(settings.settings.runtime.threads)
        model = {k: settings.get(k) for k in settings.origins if k.startswith("model.")}
        model |= {k: settings.get(k) for k in _MODEL_KEYS}
        shape = plan.shape
        return Checked(
            asked,
            recipe,
            twin=digest([recipe, *(settings.get(k) for k in MACHINE_KEYS)]),
            model=digest(model),
            prompt=digest([plan.prompt.sha256, plan.has_stage1]),
            work=shape.frames * shape.height * shape.width,
            done=made_recipe(plan) == recipe,
            paths=[str(path.absolute()) for path in files_of(plan)],
            main=str(plan.outputs.main),
            report=None if plan.outputs.report is None else str(plan.outputs.report),
            frames=plan.frames.written,
        )

    def _recipe(self, plan: Plan) -> str:
        record = Record(inputs=describe_inputs(plan), weights=self._weights_of(plan.components))
        return recipe_sha256(plan, record)

    def _weights_of(self, components: dict[str, Component]) -> list[dict[str, object]]:
        key = tuple((name, str(component.path)) for name, component in components.items())
        if key not in self._weights:
            self._weights[key] = describe_weights(components)
        return self._weights[key]


def digest(value: object) -> str:
    """Return a short hash of JSON-able values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
