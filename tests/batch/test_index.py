"""The index: ids, files and recipes are found again, and jobs come in a good order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.batch.asked import Asked
from sanawm.batch.index import JobIndex, Taste
from sanawm.batch.jobs import Job


@pytest.fixture
def index() -> Iterator[JobIndex]:
    index = JobIndex()
    yield index
    index.close()


def job(position: int, model: str = "m", prompt: str = "p") -> Job:
    asked = Asked(("tiny",), (), {"runtime.seed": ("seed", position)})
    return Job(position, f"j{position}", position + 1, asked, model, prompt, 10, f"j{position}.mp4")


def fill(index: JobIndex, jobs: list[Job], *, limit: int | None = None) -> None:
    for one in jobs:
        index.add(one, twin=one.id, done=False)
    index.settle(limit=limit)


def take_all(index: JobIndex, workers: int = 1) -> list[list[Job]]:
    """Let workers take jobs in turn until none is left; return what each got."""
    taken: list[list[Job]] = [[] for _ in range(workers)]
    while True:
        for number, own in enumerate(taken):
            others = [_taste(w[-1]) for n, w in enumerate(taken) if w and n != number]
            got = index.take(_taste(own[-1]) if own else None, others)
            if got is None:
                return taken
            own.append(got)


def _taste(one: Job) -> Taste:
    return Taste(one.model, one.prompt)


def test_a_job_comes_out_as_it_went_in(index: JobIndex) -> None:
    fill(index, [job(0)])
    assert index.take(None, []) == job(0)
    assert index.take(None, []) is None


def test_ids_and_files_are_claimed_once(index: JobIndex) -> None:
    assert index.claim_id("a", 3) is None
    assert index.claim_id("a", 9) == 3
    assert index.claim_id("A", 9) is None
    assert index.claim_paths(["/x/a.mp4", "/x/a.part.mp4"], "a") is None
    assert index.claim_paths(["/x/b.mp4", "/x/a.part.mp4"], "b") == ("/x/a.part.mp4", "a")
    assert index.claim_paths(["/x/b.mp4"], "c") is None


@settings(deadline=None, max_examples=50)
@given(
    kinds=st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("pqr")), max_size=25),
    workers=st.integers(1, 4),
)
def test_every_job_is_taken_once_and_equal_models_meet(
    kinds: list[tuple[str, str]], workers: int
) -> None:
    index = JobIndex()
    fill(index, [job(n, model, prompt) for n, (model, prompt) in enumerate(kinds)])
    taken = take_all(index, workers)
    assert sorted(j.position for own in taken for j in own) == list(range(len(kinds)))
    if workers == 1:
        tastes = [_taste(j) for j in taken[0]]
        changes = sum(a != b for a, b in pairwise(tastes))
        assert changes == max(len(set(tastes)) - 1, 0)
        models = [t.model for t in tastes]
        changes = sum(a != b for a, b in pairwise(models))
        assert changes == max(len(set(models)) - 1, 0)
        assert not kinds or taken[0][0].position == 0
    index.close()


def test_two_workers_take_two_prompts(index: JobIndex) -> None:
    fill(index, [job(n, prompt="pq"[n % 2]) for n in range(8)])
    first, second = take_all(index, 2)
    assert {j.prompt for j in first} == {"p"}
    assert {j.prompt for j in second} == {"q"}


def test_an_idle_worker_helps_with_the_prompt_of_another(index: JobIndex) -> None:
    fill(index, [job(n) for n in range(6)])
    assert [len(own) for own in take_all(index, 3)] == [2, 2, 2]


def test_twins_wait_for_the_first(index: JobIndex) -> None:
    for n in range(5):
        index.add(job(n), twin="even" if n % 2 == 0 else f"odd {n}", done=False)
    index.settle(limit=None)
    assert index.leads() == 3
    assert [j.position for j in take_all(index)[0]] == [0, 1, 3]
    assert [j.position for j in index.twins(0)] == [2, 4]
    index.mark(2, "over")
    assert [j.position for j in index.twins(0)] == [4]


def test_jobs_of_a_finished_recipe_are_not_made(index: JobIndex) -> None:
    index.add(job(0), twin="a", done=False)
    index.add(job(1), twin="a", done=True)
    index.add(job(2), twin="b", done=False)
    index.settle(limit=1)
    assert [(j.position, made.position) for j, made in index.with_finished_twin()] == [(0, 1)]
    assert [j.position for j in take_all(index)[0]] == [2]


def test_a_limit_counts_jobs_that_are_made(index: JobIndex) -> None:
    for n in range(6):
        index.add(job(n), twin=str(n // 2), done=n == 5)
    index.settle(limit=1)
    assert [j.position for j in take_all(index)[0]] == [0]
    assert [j.position for j in index.each("held")] == [2, 3]
    assert index.count("ready") == 2  # the twins of 0 and of 5
    assert index.work("held") == 10
