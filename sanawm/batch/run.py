"""Run a batch: check the manifest, hand its jobs to an engine, and report each one.

from sanawm.batch.run import Batch
summary = Batch(request, notes=Notes()).run()
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sanawm.errors import MachineError, OutputError, SanawmError
from sanawm.events import Event, Listener, ignore
from sanawm.io.files import remove_abandoned, write_error
from sanawm.notes import Notes, counted

from .engine import Ended, Engine
from .engines import start_engine
from .index import Taste
from .jobs import Job, Outcome
from .progress import Progress, Running
from .reading import ManifestCheck
from .report import BatchReport
from .request import BatchRequest
from .share import share_outputs

#: Jobs in a row whose workers died, without one that ended, after which the batch gives up.
LOST_IN_A_ROW = 5
_POLL = 0.2


@dataclass(frozen=True)
class Summary:
    """What became of a batch: counts by status, and where its report is (None: a dry run)."""

    total: int
    done: int
    skipped: int
    shared: int
    failed: int
    bad: int
    not_run: int
    seconds: float
    report: Path | None
    output_dir: Path
    #: Exit code that stopped the batch early, if a signal did.
    stopped: int | None = None

    @property
    def exit_code(self) -> int:
        """0 when nothing failed, else 1; the signal's own when one came."""
        return self.stopped or (1 if self.failed else 0)


class Batch:
    """One batch. `stop` returns an exit code once it should end; `progress` is kept up to date."""

    def __init__(
        self,
        request: BatchRequest,
        *,
        notes: Notes,
        listener: Listener = ignore,
        stop: Callable[[], int | None] = lambda: None,
    ) -> None:
        request.check()
        self.request = request
        self.notes = notes
        self.listener = listener
        self.stop = stop
        self.progress = Progress()
        self.check = ManifestCheck(request, notes=notes)
        self.index = self.check.index
        self.shared = 0
        self.not_run = 0
        self._report: BatchReport | None = None
        self._halted = False
        self._stopped: int | None = None
        self._lost = 0

    def run(self) -> Summary:
        """Do it all. Raises `UsageError` and `OutputError` before, `MachineError` while it runs."""
        began = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self.index.close)
            if self.request.dry_run:
                self._dry_run(stack)
            else:
                self._make_folder(self.check.folder, stack)
                self._run(stack)
            return self._summary(time.monotonic() - began)

    def _run(self, stack: ExitStack) -> None:
        report = self.check.report
        if not self.request.strict:
            self._open_report(stack, report)
        self.check.run(self.check.folder, self._bad)
        if self._report is None:
            self._open_report(stack, report)
        self._count()
        self._say_start()
        self._skip_and_share()
        failure: MachineError | None = None
        if self.index.leads():
            try:
                self._work()
            except MachineError as e:  # the report is finished all the same
                failure = e
        for job in self.index.each("ready", "held", "taken"):
            self.not_run += 1
            self._write(Outcome(job.id, job.line, "not-run", output=job.output))
        # Of a job whose worker was killed with its video finished, nobody else cleans up.
        remove_abandoned(self.check.folder)
        assert self._report is not None
        self._report.close()
        if failure is not None:
            raise failure

    def _open_report(self, stack: ExitStack, path: Path) -> None:
        self._report = stack.enter_context(
            BatchReport(path, overwrite=self.request.overwrite, notes=self.notes)
        )

    def _dry_run(self, stack: ExitStack) -> None:
        folder = self.check.folder
        if not folder.is_dir():  # nothing is written: not even the folder
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sanawm-")))
        self.check.run(folder, lambda outcome: None)
        self._count()
        self._say_start()
        self.progress.failed = self.check.bad
        self.not_run = self.index.count("ready", "held")

    def _make_folder(self, folder: Path, stack: ExitStack) -> None:
        """Make the output folder; a new one goes again when the manifest is refused."""
        if not folder.exists():

            def remove_empty() -> None:
                with suppress(OSError):
                    folder.rmdir()

            stack.callback(remove_empty)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise write_error(folder, e) from None

    def _count(self) -> None:
        index, progress = self.index, self.progress
        progress.total = self.check.jobs
        progress.bad = self.check.bad
        progress.failed = self.check.bad
        progress.skipped = index.count("done")
        progress.left = index.count("ready")
        progress.work_left = index.work("ready")

    def _say_start(self) -> None:
        progress, index, shard = self.progress, self.index, self.request.shard
        share = f", shard {shard}" if shard.count > 1 else ""
        leads = index.leads()
        counts = [f"{leads} to make", f"{progress.skipped} done already", f"{progress.bad} bad"]
        twins = progress.left - leads
        if twins:
            counts.insert(1, f"{twins} that share another's result")
        if held := index.count("held"):
            counts.append(f"{held} held back by --limit")
        jobs = counted(progress.total, "job")
        lines = [f"batch  {self.request.manifest}{share}: {jobs}: "]
        lines[0] += ", ".join(counts)
        if leads:
            pairs = index.tastes()
            after = ", one after the other" if pairs > 1 else ""
            lines.append(f"order  {counted(pairs, 'pair')} of models and prompt{after}")
        else:
            lines.append(self._why_nothing(twins))
        grows = f" (growing as {self._report.part_path.name})" if self._report else ""
        lines.append(f"report {self.check.report}{grows}")
        self.listener(Event("run_start", data={"lines": lines, "jobs": progress.total}))

    def _why_nothing(self, twins: int) -> str:
        """Say why no job has to be made; `twins` share the result of one that was."""
        progress = self.progress
        if not progress.total:
            whole = counted(self.check.total, "job")
            return f"nothing to do: the manifest has {whole}, none of them is in this shard"
        if progress.bad == progress.total:
            every = "the job is" if progress.bad == 1 else "all jobs are"
            return f"nothing to do: {every} bad"
        if twins:
            return "nothing to make: every good job is done already, or shares the result of one"
        good = "every good job is" if progress.bad else "every job is"
        return f"nothing to do: {good} done already"

    def _skip_and_share(self) -> None:
        """Report what was made before, and link it to jobs with the same recipe."""
        for job in self.index.each("done"):
            self._write(job.made_before("skipped"))
        for job, made in self.index.with_finished_twin():
            self._share(job, made, made.made_before("done"))

    def _work(self) -> None:
        self.progress.began = time.monotonic()
        assert self.check.checker is not None
        engine = start_engine(
            self.request,
            devices=self.check.checker.devices,
            threads=self.check.checker.threads,
            most=self.index.leads(),
            notes=self.notes,
            on_block=self._block,
        )
        self.progress.workers = engine.slots
        try:
            for ended in self._dispatch(engine):
                self._end(ended)
        finally:
            engine.close()

    def _dispatch(self, engine: Engine) -> Iterator[Ended]:
        """Keep every slot busy, one job each, and yield jobs as they end."""
        running: dict[int, Taste] = {}
        last: dict[int, Taste] = {}
        while True:
            code = self.stop()
            if code is not None and self._stopped is None:
                self._stopped = code
                engine.stop(code)
            for slot in range(engine.slots):
                if slot in running or self._halted or self._stopped is not None:
                    continue
                job = self.index.take(last.get(slot), running.values())
                if job is None:
                    break
                running[slot] = last[slot] = Taste(job.model, job.prompt)
                engine.submit(slot, job)
                self._start(job, engine.name(slot), slot)
            if not running:
                return
            for ended in engine.wait(_POLL):
                del running[ended.slot]
                yield ended

    def _start(self, job: Job, worker: str, slot: int) -> None:
        running = Running(job.id, worker, time.monotonic())
        self.progress.running[str(slot)] = running
        self.listener(Event("job_start", data={"id": job.id, "worker": worker}))

    def _block(self, slot: int, block: int, blocks: int) -> None:
        running = self.progress.running.get(str(slot))
        if running is not None:
            running.block, running.blocks = block, blocks

    def _end(self, ended: Ended) -> None:
        job, outcome, progress = ended.job, ended.outcome, self.progress
        progress.running.pop(str(ended.slot), None)
        if outcome.status == "interrupted":
            self.index.mark(job.position, "over")
            self.not_run += 1
            self._write(replace(outcome, error_code=self._stopped))
            return
        self.index.mark(job.position, "over")
        progress.work_left -= job.work
        progress.work_done += job.work
        progress.video_seconds += outcome.video_seconds
        self._settled(outcome)
        for twin in self.index.twins(job.position):
            self._share(twin, job, outcome)
        self._lost = self._lost + 1 if ended.lost else 0
        if self._lost >= LOST_IN_A_ROW:
            raise MachineError(
                f"{self._lost} jobs in a row lost their workers; the batch gives up",
                fix=f"see {self.check.report}; try one job with `sanawm refine`",
            )

    def _share(self, job: Job, made: Job, outcome: Outcome) -> None:
        """Give a job the result of `made`, which has the same recipe, or its failure."""
        self.index.mark(job.position, "over")
        own = replace(
            outcome, id=job.id, line=job.line, seconds=0.0, output=job.output, report=None
        )
        own = replace(own, shared_with=made.id, video_seconds=0.0, traceback=None)
        if outcome.status == "done":
            try:
                report = share_outputs(made, job).report
                own = replace(own, report=None if report is None else str(report))
                self.shared += 1
            except (SanawmError, OSError) as e:
                code = e.exit_code if isinstance(e, SanawmError) else OutputError.exit_code
                own = replace(own, status="failed", error_code=code, error=str(e))
        self._settled(own)

    def _settled(self, outcome: Outcome) -> None:
        """Count a job that is over, and report it."""
        self.progress.left -= 1
        if outcome.status == "done":
            self.progress.done += 1
        else:
            self.progress.failed += 1
            self._halted = self._halted or self.request.fail_fast
        self._write(outcome)

    def _bad(self, outcome: Outcome) -> None:
        if self._report is not None:
            self._report.add(outcome)

    def _write(self, outcome: Outcome) -> None:
        assert self._report is not None
        self._report.add(outcome)
        if outcome.status in ("skipped", "not-run"):
            return
        level = "info" if outcome.status == "done" else "warning"
        self.listener(Event("job_done", level, {**outcome.row(), **self._counts(outcome)}))

    def _counts(self, outcome: Outcome) -> dict[str, Any]:
        """Return the line of an ended job and how far the batch is."""
        progress = self.progress
        over = progress.total - progress.left - self.index.count("held")
        head = f"[{over}/{progress.total}] {outcome.id}: {outcome.status}"
        if outcome.status == "done" and outcome.shared_with:
            text = f"{head}, shared with {outcome.shared_with} -> {outcome.output}"
        elif outcome.status == "done":
            rate = outcome.video_seconds / outcome.seconds if outcome.seconds else 0.0
            text = f"{head} in {outcome.seconds:.1f} s ({rate:.2f}x) -> {outcome.output}"
        else:
            text = f"{head}: {(outcome.error or '').splitlines()[0]}" if outcome.error else head
        return {"message": text, "done": progress.done, "failed": progress.failed,
                "left": progress.left, "seconds_left": progress.seconds_left,
                "realtime_factor": progress.realtime_factor}  # fmt: skip

    def _summary(self, seconds: float) -> Summary:
        progress = self.progress
        return Summary(
            total=progress.total,
            done=progress.done,
            skipped=progress.skipped,
            shared=self.shared,
            failed=progress.failed,
            bad=progress.bad,
            not_run=self.not_run,
            seconds=seconds,
            report=None if self.request.dry_run else self.check.report,
            output_dir=self.check.folder,
            stopped=self._stopped,
        )
