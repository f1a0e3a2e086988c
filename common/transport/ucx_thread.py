"""The one thread that talks to UCX: it runs what it is asked to, moves bytes, and sleeps in the kernel otherwise.

It does not know what owner and reader do; it owns their worker and the order of calls on it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from common.transport.segments import Segments
from common.transport.ucx_binding import UcxWorker
from common.transport.ucx_owner import UcxOwner
from common.transport.ucx_reader import UcxReader
from common.transport.ucx_slabs import Slabs

_STOP_TIMEOUT_S = 2.0


class UcxThread:
    """Owns worker, owner and reader of one driver.

    Attributes:
        owner: lends; only to be used by `submit`ted calls.
        reader: fetches; only to be used by `submit`ted calls.
    """

    def __init__(
        self,
        worker: UcxWorker,
        segments: Segments,
        slabs: Slabs,
        identity: tuple[bytes, int],
        between_chunks: Callable[[], None] | None,
    ) -> None:
        """`identity` is (token, incarnation); the thread runs after `start`."""
        self._worker = worker
        self.owner = UcxOwner(worker, segments, *identity)
        self.reader = UcxReader(worker, slabs)
        self._between_chunks = between_chunks
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="pando-ucx")
        self._stopping = False

    def start(self) -> None:
        """Begin to run calls and move bytes."""
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call on the thread, soon; calls keep their order. From any thread; after `stop` nothing is run."""
        if self._stopping:
            return
        self._calls.append(call)
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Close all endpoints, free the worker and join the thread. Safe to call when not started, and to repeat."""
        if self._stopping:
            return
        if self._thread.is_alive():
            self.submit(self._stop)
            self._thread.join()
        self._stopping = True
        self._worker.destroy()
        os.close(self._wake_fd)

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._worker.event_fd(), select.POLLIN)
        while not self._stopping:
            timeout_s = self._step()
            if self._worker.progress():
                if self._between_chunks is not None and self.owner.num_sending:
                    self._between_chunks()
            elif not self._calls and not self._stopping and self._worker.arm():
                ready = dict(poll.poll(None if timeout_s is None else timeout_s * 1000))
                if self._wake_fd in ready:
                    os.eventfd_read(self._wake_fd)
        self._close()

    def _step(self) -> float | None:
        while self._calls:
            self._calls.popleft()()
        self.owner.step()
        return self.reader.step(time.monotonic())

    def _close(self) -> None:
        """Close what is open and wait, not for ever, until the library has let go of all slabs."""
        self.owner.close()
        self.reader.close()
        ends_at = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < ends_at and not self.reader.is_quiet:
            if not self._worker.progress():
                time.sleep(0.001)
            self._step()
