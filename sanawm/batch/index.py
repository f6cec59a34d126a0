"""The jobs of a manifest in a private database on disk, so that a manifest may be of any length.

It finds jobs with one id, one output file or one recipe, and hands jobs out so that equal models
and prompts meet. `sqlite3` deletes the file by itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .asked import Asked
from .jobs import Job

_SCHEMA = """
CREATE TABLE ids (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID;
CREATE TABLE claims (path TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE jobs (
    position INTEGER PRIMARY KEY, id TEXT, line INTEGER, state TEXT, twin TEXT, model TEXT,
    prompt TEXT, work INTEGER, output TEXT, asked TEXT, report TEXT, frames INTEGER,
    recipe TEXT, lead INTEGER DEFAULT 1,
    model_rank INTEGER DEFAULT 0, prompt_rank INTEGER DEFAULT 0
);
"""
# Models and prompts rank by where they appear first, so that the order stays near the manifest's.
_ORDER = """
CREATE INDEX by_twin ON jobs (twin);
CREATE TABLE prompts AS
    SELECT model, prompt, min(position) AS first FROM jobs GROUP BY model, prompt;
CREATE TABLE models AS SELECT model, min(first) AS first FROM prompts GROUP BY model;
UPDATE jobs SET prompt_rank = p.first FROM prompts AS p
    WHERE p.model = jobs.model AND p.prompt = jobs.prompt;
UPDATE jobs SET model_rank = m.first FROM models AS m WHERE m.model = jobs.model;
CREATE INDEX by_rank ON jobs (state, lead, model_rank, prompt_rank, position);
CREATE INDEX by_state ON jobs (state, lead, model, prompt, position);
"""
_DONE = "SELECT twin FROM jobs WHERE state = 'done'"
_RANKED = "model_rank, prompt_rank, position"
_FIELDS = "position, id, line, asked, model, prompt, work, output, report, frames, recipe"


class Taste(NamedTuple):
    """Models and prompt of a job: a worker keeps to its own while it can."""

    model: str
    prompt: str


class JobIndex:
    """Jobs by state: `ready` (to be made), `done` (made before), `taken`, `over`, `held` (limit).

    Of several ready jobs with one recipe only the first is handed out; the others are its twins.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        # The file is private and temporary: nothing has to survive a crash.
        self._db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)

    def claim_id(self, id_: str, line: int) -> int | None:
        """Give an id to a line; return the line that has it already, if any."""
        if self._db.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (id_, line)).rowcount:
            return None
        return int(self._db.execute("SELECT line FROM ids WHERE id = ?", (id_,)).fetchone()[0])

    def claim_paths(self, paths: Iterable[str], id_: str) -> tuple[str, str] | None:
        """Give output paths to a job; return one that another job has, with its id, if any."""
        paths = list(paths)
        for path in paths:
            found = self._db.execute("SELECT id FROM claims WHERE path = ?", (path,)).fetchone()
            if found is not None:
                return path, found[0]
        rows = ((path, id_) for path in paths)
        self._db.executemany("INSERT OR IGNORE INTO claims VALUES (?, ?)", rows)
        return None

    def add(self, job: Job, *, twin: str, done: bool) -> None:
        """Take in a checked job; `twin` is equal for jobs with one recipe."""
        asked = json.dumps((job.asked.configs, job.asked.sets, dict(job.asked.flags)))
        state = "done" if done else "ready"
        row = (job.position, job.id, job.line, state, twin, job.model, job.prompt, job.work)
        self._db.execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0, 0)",
            (*row, job.output, asked, job.report, job.frames, job.recipe),
        )

    def settle(self, *, limit: int | None) -> None:
        """Choose the leads among equal jobs, hold back what is over `limit`, and set the order."""
        self._db.execute(
            "UPDATE jobs SET lead = 0 WHERE state = 'ready' AND (position NOT IN "
            "(SELECT min(position) FROM jobs WHERE state = 'ready' GROUP BY twin) "
            f"OR twin IN ({_DONE}))"
        )
        if limit is not None:
            self._db.execute(
                "UPDATE jobs SET state = 'held' WHERE state = 'ready' AND twin NOT IN (SELECT twin "
                "FROM jobs WHERE state = 'ready' AND lead = 1 ORDER BY position LIMIT ?) "
                f"AND twin NOT IN ({_DONE})",
                (limit,),
            )
        self._db.executescript(_ORDER)

    def take(self, taste: Taste | None, busy: Iterable[Taste]) -> Job | None:
        """Take the next job for a worker whose last one had `taste`, or None when all are taken.

        Preferred are jobs of that taste, then tastes that no other worker is `busy` with.
        """
        if taste is not None:
            job = self._first("AND model = ? AND prompt = ?", taste, order="position")
            if job is not None:
                return job
        others = set(busy)
        if others:
            away = " AND ".join("NOT (model = ? AND prompt = ?)" for _ in others)
            job = self._first(f"AND {away}", [part for other in others for part in other])
            if job is not None:
                return job
        return self._first("", ())

    def _first(self, condition: str, values: Iterable[str], order: str = _RANKED) -> Job | None:
        row = self._db.execute(
            f"SELECT {_FIELDS} FROM jobs WHERE state = 'ready' AND lead = 1 {condition} "
            f"ORDER BY {order} LIMIT 1",
            tuple(values),
        ).fetchone()
        if row is None:
            return None
        self.mark(row[0], "taken")
        return _job(row)

    def mark(self, position: int, state: str) -> None:
        """Set the state of a job."""
        self._db.execute("UPDATE jobs SET state = ? WHERE position = ?", (state, position))

    def twins(self, position: int) -> list[Job]:
        """Return the ready jobs that have the recipe of a job and wait for it."""
        rows = self._db.execute(
            f"SELECT {_FIELDS} FROM jobs WHERE state = 'ready' AND position != ? AND twin = "
            "(SELECT twin FROM jobs WHERE position = ?) ORDER BY position",
            (position, position),
        ).fetchall()
        return [_job(row) for row in rows]

    def with_finished_twin(self) -> Iterator[tuple[Job, Job]]:
        """Return ready jobs that have the recipe of one that was made before, with that one."""
        rows = self._db.execute(
            "SELECT min(position), twin FROM jobs WHERE state = 'done' AND twin IN "
            "(SELECT twin FROM jobs WHERE state = 'ready') GROUP BY twin"
        ).fetchall()
        for position, _ in rows:
            made = self._db.execute(
                f"SELECT {_FIELDS} FROM jobs WHERE position = ?", (position,)
            ).fetchone()
            for job in self.twins(position):
                yield job, _job(made)

    def each(self, *states: str) -> Iterator[Job]:
        """Return the jobs in the given states, in the order of the manifest."""
        marks = ", ".join("?" for _ in states)
        last = -1
        while True:
            row = self._db.execute(
                f"SELECT {_FIELDS} FROM jobs WHERE state IN ({marks}) AND position > ? "
                "ORDER BY position LIMIT 1",
                (*states, last),
            ).fetchone()
            if row is None:
                return
            last = row[0]
            yield _job(row)

    def count(self, *states: str) -> int:
        """Return how many jobs are in the given states."""
        return self._sum("count(*)", states)

    def leads(self) -> int:
        """Return how many ready jobs have to be made (twins not counted)."""
        return self._sum("total(lead)", ("ready",))

    def work(self, *states: str) -> int:
        """Return the work of the jobs in the given states; twins cost nothing."""
        return self._sum("total(work * lead)", states)

    def tastes(self) -> int:
        """Return how many different pairs of models and prompt are ready."""
        query = (
            "SELECT count(*) FROM (SELECT DISTINCT model, prompt FROM jobs WHERE state = 'ready')"
        )
        return int(self._db.execute(query).fetchone()[0])

    def _sum(self, what: str, states: tuple[str, ...]) -> int:
        marks = ", ".join("?" for _ in states)
        query = f"SELECT {what} FROM jobs WHERE state IN ({marks})"
        return int(self._db.execute(query, states).fetchone()[0])

    def close(self) -> None:
        """Delete the database."""
        self._db.close()


def _job(row: tuple[Any, ...]) -> Job:
    position, id_, line, asked, *rest = row
    configs, sets, flags = json.loads(asked)
    whole = Asked(tuple(configs), tuple(sets), {key: (f[0], f[1]) for key, f in flags.items()})
    return Job(position, id_, line, whole, *rest)
