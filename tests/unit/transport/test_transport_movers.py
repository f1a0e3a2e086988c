"""A read that has ended moves nothing: aborted jobs are waited for, whatever ended them."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref

import pytest

from common.base.errors import BlockCorrupt, Overloaded, PeerLost
from common.transport.movers import Movers


class Stuck:
    """A job that waits until it is aborted, and then takes its time to leave."""

    def __init__(self, leaves_after_s: float = 0.05) -> None:
        self.entered = threading.Event()
        self.has_left = False
        self._leaves_after_s = leaves_after_s
        self._aborted = threading.Event()

    def run(self) -> None:
        self.entered.set()
        self._aborted.wait()
        time.sleep(self._leaves_after_s)
        self.has_left = True
        raise PeerLost("aborted")

    def abort(self) -> None:
        self._aborted.set()


class Quick:
    """A job that ends by itself."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.is_done = False

    def run(self) -> None:
        if self._error:
            raise self._error
        self.is_done = True

    def abort(self) -> None:
        raise AssertionError("a job that ends in time is not aborted")


async def entered(job: Stuck) -> None:
    """Wait until a job runs."""
    await asyncio.to_thread(job.entered.wait)


async def test_runs_jobs_and_passes_their_errors_on() -> None:
    movers = Movers("test", 2)
    job = Quick()
    await movers.run(job, 1.0)
    assert job.is_done
    with pytest.raises(BlockCorrupt):
        await movers.run(Quick(BlockCorrupt("x")), 1.0)
    await movers.close()


async def test_the_deadline_aborts_and_waits() -> None:
    movers = Movers("test", 1)
    job = Stuck()
    with pytest.raises(PeerLost) as caught:
        await movers.run(job, 0.05)
    assert caught.value.reason == "timeout"
    assert job.has_left
    await movers.close()


async def test_cancelling_aborts_and_waits_even_when_cancelled_again() -> None:
    movers = Movers("test", 1)
    job = Stuck(leaves_after_s=0.3)
    task = asyncio.create_task(movers.run(job, 60.0))
    await entered(job)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.has_left
    quick = Quick()
    await movers.run(quick, 1.0)  # the thread is free again
    assert quick.is_done
    await movers.close()


async def test_close_ends_running_and_waiting_jobs() -> None:
    movers = Movers("test", 1)
    running, waiting = Stuck(), Stuck()
    tasks = [asyncio.create_task(movers.run(job, 60.0)) for job in (running, waiting)]
    await entered(running)
    await movers.close()
    for task in tasks:
        with pytest.raises(PeerLost):
            await task
    assert running.has_left
    assert not waiting.entered.is_set()
    with pytest.raises(PeerLost):
        await movers.run(Quick(), 1.0)
    await movers.close()


async def test_a_job_that_gets_no_thread_in_time_never_runs() -> None:
    movers = Movers("test", 1)
    first, second = Stuck(), Stuck()
    task = asyncio.create_task(movers.run(first, 60.0))
    await entered(first)
    with pytest.raises(Overloaded):
        await movers.run(second, 0.05)
    assert not second.entered.is_set()
    first.abort()
    with pytest.raises(PeerLost):
        await task
    await movers.close()


async def test_the_waiting_line_is_bounded() -> None:
    movers = Movers("test", 1, max_waiting=1)
    jobs = [Stuck(), Stuck()]
    tasks = [asyncio.create_task(movers.run(job, 60.0)) for job in jobs]
    await entered(jobs[0])
    with pytest.raises(Overloaded):
        await movers.run(Quick(), 60.0)
    await movers.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_quick_job_runs_where_it_is_called_until_the_pool_closes() -> None:
    movers, job = Movers("test", 1), Quick()
    movers.run_here(job)
    assert job.is_done
    with pytest.raises(BlockCorrupt):
        movers.run_here(Quick(BlockCorrupt("torn")))
    await movers.close()
    late = Quick()
    with pytest.raises(PeerLost, match="closed"):
        movers.run_here(late)
    assert not late.is_done


async def test_a_job_begins_on_the_loop_when_there_is_a_thread_for_it() -> None:
    movers, first, begun = Movers("test", 1), Stuck(), []
    task = asyncio.create_task(movers.run(first, 60.0, lambda: begun.append(threading.current_thread())))
    await entered(first)
    second = asyncio.create_task(movers.run(Quick(), 60.0, lambda: begun.append(threading.current_thread())))
    await asyncio.sleep(0)
    assert begun == [threading.current_thread()]
    first.abort()
    with pytest.raises(PeerLost):
        await task
    await second
    assert begun == [threading.current_thread()] * 2
    await movers.close()
    with pytest.raises(PeerLost):
        await movers.run(Quick(), 1.0, lambda: begun.append(threading.current_thread()))
    assert len(begun) == 2


async def test_an_idle_thread_keeps_nothing_of_its_last_job() -> None:
    movers, job = Movers("test", 1), Quick()
    ended = weakref.ref(job)
    await movers.run(job, 1.0)
    del job
    with pytest.raises(BlockCorrupt):
        await movers.run(Quick(BlockCorrupt("x")), 1.0)  # the one thread has left the first
    assert ended() is None
    await movers.close()
