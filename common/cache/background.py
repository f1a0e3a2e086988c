"""Work that is done one after the other behind whatever goes on: a bounded queue, and a task while it is not empty.

One such worker per kind of work keeps the order of its jobs and the number of things they hold at a time small. A job
that raises is logged and costs nobody else anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from common.base.logging import get_logger

J = TypeVar("J")


class Background(Generic[J]):
    """Runs `work(job)` for each job, in order, on the current event loop."""

    def __init__(self, name: str, work: Callable[[J], Awaitable[None]], max_jobs: int) -> None:
        """Start idle.

        Args:
            name: for the log.
            work: does one job.
            max_jobs: most jobs that wait.
        """
        self._name = name
        self._work = work
        self._max_jobs = max_jobs
        self._jobs: deque[J] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Jobs that wait or run."""
        return len(self._jobs)

    def put(self, job: J) -> bool:
        """Queue a job; False, and it is not taken, when too many wait or this is closed."""
        if self._closed or len(self._jobs) >= self._max_jobs:
            return False
        self._jobs.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=self._name)
        return True

    async def drained(self) -> None:
        """Wait until nothing is queued or running."""
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Take no more jobs, forget those that wait, and let the running one end."""
        self._closed = True
        while len(self._jobs) > 1:
            self._jobs.pop()
        await self.drained()

    async def _run(self) -> None:
        while self._jobs:
            try:
                await self._work(self._jobs[0])
            except Exception as error:  # noqa: BLE001 - the next jobs have nothing to do with it
                get_logger().error("background work failed", work=self._name, exc_info=error)
            self._jobs.popleft()
