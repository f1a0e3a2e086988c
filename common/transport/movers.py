"""Threads that move bytes for a driver, and the promise that nothing moves once a read has ended.

A job blocks in a thread. When the deadline passes, the awaiting task is cancelled or the driver closes, the job is
told to `abort` and the caller waits until its thread has left the job; only then does the caller see an error. So a
target never changes after `run` has returned or raised.

Bounds: `num_threads` jobs run, `max_waiting` wait, more are refused. Idle threads sleep in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from common.base.errors import Leg, Overloaded, PeerLost


class Job(Protocol):
    """One blocking piece of work."""

    def run(self) -> None:
        """Do it, in a mover thread. Raises PandoError."""

    def abort(self) -> None:
        """Make `run` end promptly, whatever it waits for. Called from another thread, at any time, perhaps twice."""


class Movers:
    """A bounded pool of mover threads, used from one asyncio loop."""

    def __init__(self, name: str, num_threads: int, max_waiting: int = 1024) -> None:
        """Threads start when first needed."""
        self._threads = _Threads(f"pando-{name}", num_threads)
        self._slots = asyncio.Semaphore(num_threads)
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._running: dict[Job, asyncio.Future[None]] = {}
        self._closed = False

    async def run(self, job: Job, deadline_s: float, begin: Callable[[], None] = lambda: None) -> None:
        """Run a job to its end, at most `deadline_s` seconds from now, waiting for a thread included.

        `begin` is called on the loop when there is a thread for it, which takes a while to wake.

        Raises:
            Overloaded: too many jobs wait, or no thread became free in time.
            PeerLost: the deadline passed while it ran, or the pool closed.
        """
        ends_at = time.monotonic() + deadline_s
        await self._take_slot(deadline_s)
        try:
            self._check_open()
            begin()
            await self._run_in_thread(job, ends_at - time.monotonic())
        finally:
            self._slots.release()

    def run_here(self, job: Job) -> None:
        """Run a job that takes less time than handing it to a thread would; the loop waits for it.

        Raises:
            PeerLost: the pool closed.
        """
        self._check_open()
        job.run()

    async def close(self) -> None:
        """Abort all jobs and end the threads; callers of running and waiting jobs get PeerLost."""
        self._closed = True
        for job in list(self._running):
            job.abort()
        for future in list(self._running.values()):
            await _wait_until_left(future)
        self._threads.close()

    async def _take_slot(self, timeout_s: float) -> None:
        self._check_open()
        if self._num_waiting >= self._max_waiting:
            raise Overloaded(f"{self._num_waiting} reads wait already", leg=Leg.TRANSFER, retry_after_s=1.0)
        if not self._slots.locked():
            await self._slots.acquire()  # does not wait
            return
        self._num_waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(f"no mover thread was free for {timeout_s:.3f} s", leg=Leg.TRANSFER) from None
        finally:
            self._num_waiting -= 1

    async def _run_in_thread(self, job: Job, timeout_s: float) -> None:
        future = self._threads.start(job)
        self._running[job] = future
        try:
            await _finish(job, future, timeout_s)
        finally:
            del self._running[job]

    def _check_open(self) -> None:
        if self._closed:
            raise PeerLost("the transport is closed", reason="closed", leg=Leg.TRANSFER)


class _Threads:
    """Threads and their queue; half the time of a ThreadPoolExecutor, whose futures are not the loop's."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._names = [f"{name}_{number}" for number in range(num_threads)]
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, job: Job) -> asyncio.Future[None]:
        """Run a job; its end is the future's, on this loop."""
        if not self._threads:
            self._threads = [threading.Thread(target=self._serve, name=name, daemon=True) for name in self._names]
            for thread in self._threads:
                thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queue.put(partial(_run, job, future, loop))
        return future

    def close(self) -> None:
        """Wait for the threads to end; no job runs any more."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work()
            del work  # and with it the job's targets


def _run(job: Job, future: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
        try:
            job.run()
        except Exception as error:  # noqa: BLE001 - raised where the caller waits
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, None)


async def _finish(job: Job, future: asyncio.Future[None], timeout_s: float) -> None:
    """Wait for a job; at the deadline or when cancelled, abort it and wait until its thread has left it."""
    try:
        done, _ = await asyncio.wait({future}, timeout=max(0.0, timeout_s))
    except asyncio.CancelledError:
        job.abort()
        await _wait_until_left(future)
        raise
    if not done:
        job.abort()
        await _wait_until_left(future)
        raise PeerLost(f"the peer did not deliver within {timeout_s:.3f} s", reason="timeout", leg=Leg.TRANSFER)
    future.result()


async def _wait_until_left(future: asyncio.Future[None]) -> None:
    """Wait for a thread to leave an aborted job, however it ends; a cancellation meanwhile is raised afterwards."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    future.exception()  # retrieved: how an aborted job ended interests nobody
    if cancelled:
        raise asyncio.CancelledError
