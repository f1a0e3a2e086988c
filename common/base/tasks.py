"""Background tasks of one owner: what fails is logged, what has ended is forgotten, all end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from common.base.logging import Logger


class Tasks:
    """Tasks on the current event loop.

    Args:
        log: of the owner.
        failed: the line that says one of them failed.
    """

    def __init__(self, log: Logger, failed: str) -> None:
        self._log = log
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self, *others: asyncio.Task[None]) -> None:
        """Cancel all tasks, and others with them, and wait for their end."""
        tasks = [*others, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.error(self._failed, exc_info=error)
