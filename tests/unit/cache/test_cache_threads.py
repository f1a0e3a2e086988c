"""Abandonable threads: leaving and committing exclude each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from common.cache.threads import IoThreads, Job
from tests.support.l3_contract import eventually


@pytest.fixture
def threads() -> Iterator[IoThreads]:
    pool = IoThreads("test", 2, max_waiting=4)
    yield pool
    pool.close()


async def test_does_every_number_once(threads: IoThreads) -> None:
    done: list[int] = []
    assert await threads.for_each(range(50), lambda job, number: _commit(job, done, number), 20)
    assert sorted(done) == list(range(50))
    assert await threads.for_each([], lambda job, number: _commit(job, done, number), 20)


def _commit(job: Job, done: list[int], number: int) -> None:
    job.commit(lambda: done.append(number))


async def test_what_comes_after_the_deadline_changes_nothing(threads: IoThreads) -> None:
    thaw, committed, done = threading.Event(), list[bool](), list[int]()

    def work(job: Job, number: int) -> None:
        thaw.wait(20)
        committed.append(job.commit(lambda: done.append(number)))

    assert not await threads.for_each([1], work, 0.02)
    thaw.set()
    await eventually(lambda: bool(committed))
    assert committed == [False] and done == []


async def test_what_was_committed_by_the_deadline_stays(threads: IoThreads) -> None:
    thaw, done = threading.Event(), list[int]()

    def work(job: Job, number: int) -> None:
        if number == 2:  # the share of one thread is 0, 2, ..
            thaw.wait(20)
        job.commit(lambda: done.append(number))

    assert not await threads.for_each([0, 1, 2, 3], work, 0.2)
    thaw.set()
    assert {0} <= set(done) <= {0, 1, 3}


async def test_revoking_ends_the_wait(threads: IoThreads) -> None:
    entered, thaw, running = threading.Event(), threading.Event(), set[Job]()

    def work(job: Job, number: int) -> None:
        entered.set()
        thaw.wait(20)

    waiting = asyncio.create_task(threads.for_each([1], work, 20, running))
    await asyncio.to_thread(entered.wait)
    for job in running:
        job.revoke()
    assert not await waiting
    assert running == set()
    thaw.set()


async def test_refuses_when_too_much_is_unfinished(threads: IoThreads) -> None:
    thaw, began = threading.Event(), list[int]()

    def hang(_job: Job, number: int) -> None:
        began.append(number)
        _wait(thaw)

    hanging = asyncio.create_task(threads.for_each([0, 1], hang, 20))
    await eventually(lambda: len(began) == 2)  # one that is revoked before it begins is no burden
    hanging.cancel()
    assert not await threads.for_each([0, 1], hang, 0.0), "no thread is free for these"
    done: list[int] = []
    assert not await threads.for_each([7], lambda job, number: _commit(job, done, number), 20)
    thaw.set()
    await eventually(lambda: threads._num_unfinished == 0)
    assert await threads.for_each([7], lambda job, number: _commit(job, done, number), 20)
    assert done == [7]


def _wait(event: threading.Event) -> None:
    event.wait(20)


async def test_a_bug_is_raised_where_the_caller_waits(threads: IoThreads) -> None:
    def work(job: Job, number: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await threads.for_each([1], work, 20)
    assert await threads.for_each([1], lambda _job, _number: None, 20)


async def test_a_closed_pool_does_nothing_more(threads: IoThreads) -> None:
    cleaned: list[int] = []
    threads.submit(lambda: cleaned.append(1))
    threads.close()
    threads.close()
    assert not await threads.for_each([1], lambda _job, _number: None, 20)
    await eventually(lambda: cleaned == [1])
