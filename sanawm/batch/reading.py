"""Check every line of a manifest before anything runs, and index the good ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from sanawm.errors import InputError, OutputError, SanawmError, UsageError
from sanawm.notes import Notes, counted

from .asked import Asked, Reader, job_id
from .check import Checker
from .index import JobIndex
from .jobs import Job, Outcome
from .manifest import Line, Manifest, open_manifest
from .report import report_path
from .request import BatchRequest

#: Bad lines that are shown; the report names all.
SHOWN = 20
#: The least that a job is, by kind of manifest.
EXAMPLES = {
    "json": '{"id": "clip_01", "prompt": "a red tower"}',
    "csv": "clip_01,a red tower",
    "toml": '[[job]] with id = "clip_01"',
}
#: Seconds between two lines about a long check.
TELL_EVERY = 10.0


class ManifestCheck:
    """Read a manifest: `index` has its good jobs, and `on_bad` is told the others."""

    def __init__(self, request: BatchRequest, *, notes: Notes) -> None:
        self.request = request
        self.notes = notes
        self.index = JobIndex()
        self.bad = 0
        self.jobs = 0
        #: Jobs in the whole manifest, not in this shard alone.
        self.total = 0
        self.manifest = open_manifest(request.manifest)
        self._reader = Reader(request.options, request.manifest)
        self._base = self._settings(self.manifest)
        self.folder = self._folder()
        self.checker: Checker | None = None

    def _settings(self, manifest: Manifest) -> Asked:
        """Return what holds for all jobs; an error in it refuses the manifest."""
        try:
            self._reader.check_names(manifest.columns)
            defaults = self._reader.asked(manifest.defaults, where="defaults")
        except UsageError as e:
            where = "its first line" if manifest.columns else "defaults"
            raise UsageError(f"manifest {manifest.path}, {where}: {e.message}", fix=e.fix) from None
        base = self.request.base.under(defaults)
        base.resolve()
        return base

    def _folder(self) -> Path:
        """Return the absolute output folder."""
        chosen = self.request.output_dir
        if chosen is None:
            found = self._base.resolve().settings.output.output_dir
            if found is None:
                raise UsageError("no output: where should the videos go?", fix="add --output-dir")
            chosen = Path(found)
        if chosen.exists() and not chosen.is_dir():
            raise OutputError(f"--output-dir {chosen} is a file", fix="name a folder")
        return chosen.absolute()

    @property
    def report(self) -> Path:
        """Where the batch's report goes."""
        return self.request.report or report_path(self.folder, self.request.shard)

    def run(self, folder: Path, on_bad: Callable[[Outcome], None]) -> None:
        """Check all lines; outputs are looked for in `folder`.

        Raises `UsageError` with `strict` and a bad line, or when there is no job at all.
        """
        request = self.request
        self.checker = Checker(
            folder,
            overwrite=request.overwrite,
            local=request.engine == "local",
            download=not request.dry_run,
            cpus=request.cpus_per_job,
            tried=tried_before(self.report),
        )
        told = time.monotonic()
        position = -1
        for position, line in enumerate(self.manifest.lines()):
            if request.shard.holds(position):
                self.jobs += 1
                self._take(self.checker, position, line, on_bad)
            else:
                self._remember(line)
            if time.monotonic() - told > TELL_EVERY:
                told = time.monotonic()
                self.notes.info(f"checked {position + 1} lines, {self.bad} of them bad")
        if position < 0:
            raise UsageError(
                f"manifest {request.manifest}: it holds no job",
                fix=f"write one job {'a table' if self.manifest.kind == 'toml' else 'a line'}, "
                f"like {EXAMPLES[self.manifest.kind]}",
            )
        self.total = position + 1
        if self.bad > SHOWN:
            self.notes.warn(f"{counted(self.bad - SHOWN, 'more bad line')}")
        if self.bad and request.strict:
            verb, them = ("is", "it") if self.bad == 1 else ("are", "them")
            raise UsageError(
                f"manifest {request.manifest}: {self.bad} of {counted(self.jobs, 'job')} {verb} "
                "bad, and --strict refuses it",
                fix=f"correct {them}, or leave --strict out to run the others",
            )
        self.index.settle(limit=request.limit)

    def _take(
        self, checker: Checker, position: int, line: Line, on_bad: Callable[[Outcome], None]
    ) -> None:
        id_: str | None = None
        try:
            id_ = self._claim(line)
            job, twin, done = self._check(checker, position, line, id_)
        except SanawmError as e:
            self._bad(line, id_, e, e.exit_code, str(e), on_bad)
        except Exception as e:  # one job's failure never stops the others
            self._bad(line, id_, e, 70, f"unexpected {type(e).__name__}: {e}", on_bad)
        else:
            self.index.add(job, twin=twin, done=done)

    def _claim(self, line: Line) -> str:
        """Return the id of a line, which no earlier line may have."""
        if line.error is not None:
            raise InputError(line.error, fix=line.fix)
        id_ = job_id(line.values)
        earlier = self.index.claim_id(id_, line.number)
        if earlier is not None:
            raise InputError(
                f"id {id_!r} is that of {self._where(earlier)} already",
                fix="give every job a name of its own",
            )
        return id_

    def _remember(self, line: Line) -> None:
        """Take note of the id of a line in another shard."""
        try:
            self._claim(line)
        except SanawmError:
            return

    def _check(
        self, checker: Checker, position: int, line: Line, id_: str
    ) -> tuple[Job, str, bool]:
        where = self._where(line.number)
        asked = self._base.under(self._reader.asked(line.values, where=where))
        checked = checker.check(asked, id_)
        clash = self.index.claim_paths(checked.paths, id_)
        if clash is not None:
            raise UsageError(
                f"it would write {clash[0]}, as job {clash[1]!r} does",
                fix="give it another id, or another name for this file",
            )
        job = Job(
            position,
            id_,
            line.number,
            checked.asked,
            checked.model,
            checked.prompt,
            checked.work,
            checked.main,
            checked.report,
            checked.frames,
            checked.recipe,
        )
        return job, checked.twin, checked.done

    def _bad(
        self,
        line: Line,
        id_: str | None,
        error: Exception,
        code: int,
        message: str,
        on_bad: Callable[[Outcome], None],
    ) -> None:
        self.bad += 1
        if id_ is None and isinstance(line.values.get("id"), str):
            id_ = str(line.values["id"])[:200]
        if self.bad <= SHOWN:
            name = "" if id_ is None else f" (id {ascii(id_)[1:-1]})"
            self.notes.warn(f"{self._where(line.number)}{name} is bad: {message}")
        kind = type(error).__name__
        on_bad(Outcome(id_, line.number, "failed", error_code=code, error=message, error_type=kind))

    def _where(self, number: int) -> str:
        return f"job {number}" if self.manifest.kind == "toml" else f"line {number}"


def tried_before(report: Path) -> frozenset[str]:
    """Return the ids that an earlier batch with this report began and did not finish."""
    found: set[str] = set()
    try:
        with report.open(encoding="utf-8") as f:
            for text in f:
                row = json.loads(text)
                if row["worker"] is not None and row["status"] in ("failed", "interrupted"):
                    found.add(row["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset(found)
    return frozenset(found)
