"""Threads for calls that may never return: a caller leaves at its deadline, and what comes late changes nothing.

A read of a frozen network mount cannot be interrupted, so nobody may wait for its thread (as `transport.movers` does).
Instead a job works in private memory and asks before each visible effect: `commit` runs a short action only while the
caller still waits. Leaving (end, deadline, cancellation, `revoke`) and committing exclude each other by a lock::

    loop    for_each(numbers, work, deadline) ───────────── revoked: the answer is what was committed by now
    thread        └─ work(job, number): pread into own slab ── commit(copy) -> False: dropped

Invariants: after `for_each` has returned or raised, no action of its jobs runs or will run. At most `max_waiting` jobs
are unfinished, abandoned ones included; more are refused. Threads are daemons, so a hung one does not
keep the process from ending. Knows nothing of files.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence


class Job:
    """A share of a batch on its way through a thread; made by `IoThreads.for_each`."""

    def __init__(self, share: Sequence[int], work: Callable[[Job, int], None], loop: asyncio.AbstractEventLoop) -> None:
        self._share = share
        self._work = work
        self._loop = loop
        self._lock = threading.Lock()
        self._revoked = False
        self._ended: asyncio.Future[None] = loop.create_future()
        self._error: BaseException | None = None

    @property
    def revoked(self) -> bool:
        """Whether nobody waits any more; a long job looks at it now and then."""
        return self._revoked

    def commit(self, action: Callable[[], None]) -> bool:
        """Run a short, never blocking action unless revoked; returns whether it ran. Called in the job's thread."""
        with self._lock:
            if not self._revoked:
                action()
            return not self._revoked

    def revoke(self) -> None:
        """Stop all effects of the job from now on; idempotent. Called on the loop; `wait` returns soon."""
        with self._lock:
            self._revoked = True
        if not self._ended.done():
            self._ended.set_result(None)

    async def wait(self, deadline_s: float) -> bool:
        """Wait for the end, then revoke. Returns whether the work ran to its end; raises what it raised."""
        try:
            await asyncio.wait({self._ended}, timeout=max(0.0, deadline_s))
            finished = self._ended.done() and not self._revoked
        finally:
            self.revoke()
        if self._error is not None:
            raise self._error
        return finished

    def run(self) -> None:
        """Do the work; in a thread of the pool."""
        try:
            for number in self._share:
                if self._revoked:
                    return
                self._work(self, number)
        except Exception as error:  # noqa: BLE001  raised where the caller waits
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class IoThreads:
    """A few daemon threads and their queue, used from one loop.

    Args:
        name: for the threads.
        num_threads: they start when first needed.
        max_waiting: most unfinished jobs; a batch makes up to `num_threads` of them.
    """

    def __init__(self, name: str, num_threads: int, max_waiting: int = 256) -> None:
        assert num_threads > 0 and max_waiting > 0, f"{num_threads} threads, {max_waiting} jobs"
        self.num_threads = num_threads
        self._name = f"pando-{name}"
        self._max_waiting = max_waiting
        self._num_unfinished = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def for_each(
        self,
        numbers: Sequence[int],
        work: Callable[[Job, int], None],
        deadline_s: float,
        running: set[Job] | None = None,
    ) -> bool:
        """Do `work(job, number)` for all numbers, spread over the threads; leave after `deadline_s` seconds.

        Args:
            numbers: items of a batch.
            work: runs in a thread; raises only for bugs.
            deadline_s: seconds from now.
            running: holds the jobs while they run, for whoever wants to revoke them.

        Returns:
            Whether all was done. False: the deadline passed, somebody revoked, too much waits already, or it is closed.
        """
        jobs = [
            self._start(numbers[first :: self.num_threads], work)
            for first in range(min(self.num_threads, len(numbers)))
        ]
        started = {job for job in jobs if job is not None}
        running = set() if running is None else running
        running |= started
        ends_s = time.monotonic() + deadline_s
        try:
            ended = [await job.wait(ends_s - time.monotonic()) for job in started]
        finally:
            running -= started
            for job in started:
                job.revoke()
        return None not in jobs and all(ended)

    def submit(self, work: Callable[[], None]) -> None:
        """Queue clean-up that nobody waits for and nobody may refuse; it must not raise. After `close`: dropped."""
        self._enqueue(work)

    def close(self) -> None:
        """Let the threads end once they have emptied the queue; idempotent, does not wait."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)

    def _start(self, share: Sequence[int], work: Callable[[Job, int], None]) -> Job | None:
        """Queue a share of a batch; None when there is no place for it."""
        job = Job(share, work, asyncio.get_running_loop())
        with self._lock:
            if self._closed or self._num_unfinished >= self._max_waiting:
                return None
            self._num_unfinished += 1
        self._enqueue(lambda: self._finish(job))
        return job

    def _enqueue(self, work: Callable[[], None]) -> None:
        if len(self._threads) < self.num_threads and not self._closed:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(work)

    def _finish(self, job: Job) -> None:
        job.run()
        with self._lock:
            self._num_unfinished -= 1

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
