"""Threads for work that may never end: unlike an executor's, they do not keep the process alive.

The grammar engine cannot be interrupted. Whoever waits for it waits with a bound; a thread that is stuck in it is one
less for others, and gone when the process is.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class DaemonThreads:
    """A fixed number of threads with one queue."""

    def __init__(self, num_threads: int, name: str) -> None:
        """Start them; they sleep until there is work."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_threads = num_threads
        for index in range(num_threads):
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do `work` on one of the threads; a future that is cancelled before its turn is left out."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it goes to whoever waits
                future.set_exception(error)

        self._work.put(run)
        return future

    def close(self) -> None:
        """End the threads when they have done what was submitted; does not wait for it."""
        for _ in range(self._num_threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
