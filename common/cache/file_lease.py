"""Open files as a lease: a block that was found stays readable, though the folder evicts or removes it.

Descriptors are dear, so a store opens at most so many at a time (`OpenFiles`) and a lease ends by itself after a while.
A descriptor is closed only when no thread reads from it, for its number might then mean another file.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from common.base.logging import get_logger
from common.cache import file_folder
from common.cache.l3 import HEADER_BYTES, BlockKey, Slot, State
from common.cache.threads import IoThreads, Job


class OpenFile:
    """A descriptor with readers: closed once, after `close` was called and the last reader has left."""

    def __init__(self, fd: int, on_closed: Callable[[], None]) -> None:
        self.fd = fd
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._num_readers = 0
        self._closing = False

    def enter(self) -> bool:
        """Begin to read; False when it is closed or about to be."""
        with self._lock:
            self._num_readers += not self._closing
            return not self._closing

    def leave(self) -> None:
        """End reading."""
        with self._lock:
            self._num_readers -= 1
            last = self._closing and self._num_readers == 0
        if last:
            self._close()

    def close(self) -> None:
        """Close soon; idempotent."""
        with self._lock:
            last = not self._closing and self._num_readers == 0
            self._closing = True
        if last:
            self._close()

    def _close(self) -> None:
        os.close(self.fd)
        self._on_closed()


class OpenFiles:
    """Opens blocks, at most `limit` at a time; used by several threads."""

    def __init__(self, root: str, limit: int) -> None:
        self._root = root
        self._limit = limit
        self._lock = threading.Lock()
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Descriptors open now."""
        return self._num_open

    def open(self, key: BlockKey) -> OpenFile:
        """Open a block.

        Raises:
            FileNotFoundError: there is none.
            OSError: anything else; BlockingIOError when the limit is reached.
        """
        with self._lock:
            if self._num_open >= self._limit:
                raise BlockingIOError(f"{self._limit} blocks are leased already")
            self._num_open += 1
        try:
            return OpenFile(file_folder.open_block(self._root, key), self._closed)
        except BaseException:
            self._closed()
            raise

    def _closed(self) -> None:
        with self._lock:
            self._num_open -= 1


class Slabs(threading.local):
    """One growing buffer a thread: where bytes land until it is sure that somebody still wants them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def view(self, num_bytes: int) -> memoryview:
        """The calling thread's buffer; valid until its next call."""
        if len(self._buffer) < num_bytes:
            self._buffer = bytearray(num_bytes)
        return memoryview(self._buffer)[:num_bytes]


@dataclass(slots=True, frozen=True)
class Reading:
    """What leases need to read with.

    Attributes:
        threads: where reads run.
        slabs: memory of each thread.
        touch_after_s: a block that is read is marked as used, unless that was done within so many seconds.
    """

    threads: IoThreads
    slabs: Slabs
    touch_after_s: float


class FileLease:
    """The blocks of one lookup that are open.

    Args:
        num_keys: of the lookup; states are ERROR until `put_answer` says otherwise.
        reading: shared by all leases of a store.
        on_closed: called once, when it ends.
    """

    def __init__(self, num_keys: int, reading: Reading, on_closed: Callable[[FileLease], None]) -> None:
        self.states = [State.ERROR] * num_keys
        self._files: list[OpenFile | None] = [None] * num_keys
        self._reading = reading
        self._on_closed = on_closed
        self._closed = False
        self._running: set[Job] = set()
        self._expiry: asyncio.TimerHandle | None = None

    def put_answer(self, index: int, state: State, file: OpenFile | None) -> None:
        """Fill in what the lookup found; the lease owns the file from now on."""
        self.states[index] = state
        self._files[index] = file

    def expire_after(self, lease_s: float) -> None:
        """Called when the lookup is over: end in so many seconds, should the owner forget it."""
        if self._closed:  # by the store, while the lookup still opened files
            self._reading.threads.submit(self._close_files)
            return
        self._expiry = asyncio.get_running_loop().call_later(lease_s, self.end)

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        """See `BackendLease.read`."""
        answers = [self.states[slot.index] for slot in wanted]
        todo = [number for number, answer in enumerate(answers) if answer is State.HIT]
        for number in todo:
            answers[number] = State.ERROR

        def fetch(job: Job, number: int) -> None:
            self._fetch(job, wanted[number], answers, number)

        if not self._closed:
            await self._reading.threads.for_each(todo, fetch, deadline_s, self._running)
        if self._closed:
            for number in todo:
                answers[number] = State.EXPIRED if answers[number] is State.ERROR else answers[number]
        return answers

    async def close(self) -> None:
        """See `Lease.close`."""
        self.end()

    def end(self) -> None:
        """Close, on the loop; files are closed in a thread, for that may block on a network mount."""
        if self._closed:
            return
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for job in list(self._running):
            job.revoke()
        self._reading.threads.submit(self._close_files)
        self._on_closed(self)

    def _close_files(self) -> None:
        for file in self._files:
            if file is not None:
                file.close()

    def _fetch(self, job: Job, slot: Slot, answers: list[State], number: int) -> None:
        """Read one block into the thread's slab and from there into its slot, if that is still wanted."""
        file = self._files[slot.index]
        if file is None or not file.enter():
            return
        try:
            slab = self._reading.slabs.view(HEADER_BYTES + slot.payload.nbytes)
            whole = file_folder.read_exactly(file.fd, slab)
            file_folder.touch(file.fd, self._reading.touch_after_s)
        except OSError as error:
            get_logger().warning("a block of the shared folder cannot be read", error=str(error))
            return
        finally:
            file.leave()

        def land() -> None:
            if whole:
                slot.header[:] = slab[:HEADER_BYTES]
                # numpy copies outside the interpreter lock
                np.copyto(np.frombuffer(slot.payload, np.uint8), np.frombuffer(slab[HEADER_BYTES:], np.uint8))
            answers[number] = State.HIT if whole else State.CORRUPT

        job.commit(land)
