"""A worker: makes jobs one after the other and keeps its models between them.

One class for every engine; it knows nothing of processes or clusters.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch

from sanawm.errors import OutputBusy, SanawmError
from sanawm.events import Event
from sanawm.io.files import part_path
from sanawm.job import RefineJob
from sanawm.notes import Notes
from sanawm.plan import Plan, make_plan
from sanawm.report import Record, describe_inputs, describe_weights
from sanawm.resume import recipe_sha256, why_not_resumable
from sanawm.states import UnusableState
from sanawm.stopping import Interrupted
from sanawm.text.encode import release_memory

from .jobs import Job, Outcome, WorkerSetup
from .made import made_recipe, state_of
from .models import KeptModels

#: How long to wait for another run to let go of an output, in seconds: when a batch was killed, its
#: workers on other machines may go on for a moment.
BUSY_SECONDS = 60.0
_POLL = 0.5

#: Told the number of finished blocks, and of all.
OnBlock = Callable[[int, int], None]


class Worker:
    """Make jobs. `stop` asks the one in hand to end after its block."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._threads = setup.threads or torch.get_num_threads()
        self._kept = KeptModels()
        self._stop: int | None = None

    def stop(self, code: int) -> None:
        """End the job in hand after its block; `code` is what the batch will exit with."""
        self._stop = code

    def run(self, job: Job, on_block: OnBlock | None = None) -> Outcome:
        """Make a job and say how it ended; whatever goes wrong in it is in the outcome."""
        began = time.monotonic()
        notes = Notes()
        try:
            outcome = self._make(job, notes, on_block)
        except Interrupted as e:
            outcome = _ended(job, e, e.exit_code, e.message, interrupted=True)
        except SanawmError as e:
            outcome = _ended(job, e, e.exit_code, str(e))
        except Exception as e:  # one job's failure never stops the others
            outcome = _unexpected(job, e)
        if outcome.error_code in (4, 70):
            self._kept.drop()
            release_memory("cuda" if torch.cuda.is_available() else "cpu")
        return replace(
            outcome,
            seconds=round(time.monotonic() - began, 3),
            worker=self.name,
            changes=list(notes.changes),
            warnings=list(notes.warnings),
        )

    def _make(self, job: Job, notes: Notes, on_block: OnBlock | None) -> Outcome:
        patience = time.monotonic() + BUSY_SECONDS
        while True:
            # An earlier job may have set another number.
            torch.set_num_threads(self._threads)
            plan = _plan(job, notes)
            recipe = _recipe(plan)
            if made_recipe(plan) == recipe:  # a worker that died just then had made it
                return _made(job, plan, recipe)
            try:
                return self._refine(job, plan, notes, on_block)
            except UnusableState as e:
                notes.change(f"{e.message}; the job starts at the beginning")
                _forget_state(plan)
            except OutputBusy:
                if self._stop is not None or time.monotonic() > patience:
                    raise
                time.sleep(_POLL)

    def _refine(self, job: Job, plan: Plan, notes: Notes, on_block: OnBlock | None) -> Outcome:
        def listen(event: Event) -> None:
            if event.name == "block_done" and on_block is not None:
                on_block(int(event.data["index"]) + 1, int(event.data["blocks"]))

        run = RefineJob(
            plan,
            notes=notes,
            listener=listen,
            cache=self.setup.cache,
            stop=lambda: self._stop,
            command=list(self.setup.command),
            pipeline=self._kept.pipeline(plan, notes=notes),
            texts=self._kept.texts(plan),
        )
        result = run.run()
        self._kept.keep_texts(plan, run.known_texts)
        made = _made(job, plan, run.record.recipe_sha256)
        return replace(made, resumed_after_blocks=result.data["resumed_after_blocks"])


def _plan(job: Job, notes: Notes) -> Plan:
    """Return the plan of a job, which continues its own state if it left a usable one."""
    plan = make_plan(job.asked.resolve(), notes=notes, download=True)
    keeps = state_of(plan) is not None and why_not_resumable(plan) is None
    video = plan.outputs.video
    if not keeps or (video is not None and not (video.exists() or part_path(video).exists())):
        _forget_state(plan)
    if keeps:
        return plan
    again = job.asked.with_flags({"output.resume": ("batch", False)})
    return make_plan(again.resolve(), notes=notes, download=True)


def _recipe(plan: Plan) -> str:
    record = Record(inputs=describe_inputs(plan), weights=describe_weights(plan.components))
    return recipe_sha256(plan, record)


def _forget_state(plan: Plan) -> None:
    state = state_of(plan)
    if state is not None:
        state.unlink(missing_ok=True)


def _made(job: Job, plan: Plan, recipe: str | None) -> Outcome:
    report = plan.outputs.report
    return Outcome(
        job.id,
        job.line,
        "done",
        output=str(plan.outputs.main),
        report=str(report) if report is not None and report.exists() else None,
        frames=plan.frames.written,
        video_seconds=plan.seconds,
        recipe_sha256=recipe,
    )


def _ended(
    job: Job, error: BaseException, code: int, message: str, *, interrupted: bool = False
) -> Outcome:
    return Outcome(
        job.id,
        job.line,
        "interrupted" if interrupted else "failed",
        error_code=code,
        error=message,
        error_type=type(error).__name__,
    )


def _unexpected(job: Job, error: Exception) -> Outcome:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return _ended(job, error, 4, "out of memory; use a smaller size, window or precision")
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    text = "".join(traceback.format_exception(error))
    return replace(_ended(job, error, 70, f"unexpected {what}; this is a bug"), traceback=text)
