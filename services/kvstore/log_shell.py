"""The SSD log behind a node's loop: objects are written behind the reply and read back in threads.

One thread writes and drops, in the order in which that was asked for, so that the record of a name is never dropped
after a newer one was written; others read. What was evicted or removed before its turn is not written. A disk that
fails costs durability, not service: the object stays in memory, and that is counted and logged once a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from common.base.clock import monotonic
from common.base.errors import PandoError
from common.base.logging import get_logger
from common.cache.kvstore_arena import Arena, Run
from common.cache.kvstore_wire import key_of, name_of
from common.cache.l3 import HEADER_BYTES, BlockKey, PutState
from common.transport.checksum import checksum
from services.kvstore.memory import Object
from services.kvstore.metrics import NodeMetrics
from services.kvstore.objects import Objects

_BATCH_BYTES = 16 * 1024 * 1024
_NUM_READERS = 2
_IDLE_S = 1.0
_COMPLAIN_EVERY_S = 10.0


class Log(Protocol):
    """An append-only log on disk; every call blocks."""

    def append_many(self, objects: Sequence[tuple[BlockKey, bytes, memoryview]]) -> list[PutState]:
        """Write objects: STORED or PRESENT when they are there now."""

    def read(self, key: BlockKey, header: memoryview, payload: memoryview) -> bool:
        """Read one object; False when it is not there. Raises BlockCorrupt for a damaged record, Unavailable."""

    def has(self, key: BlockKey) -> bool:
        """Whether it is there; never waits."""

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Drop these later than others; never waits."""

    def remove(self, keys: Iterable[BlockKey]) -> int:
        """Forget objects. Raises Unavailable."""

    def compact(self, max_bytes: int) -> int:
        """Reclaim some space; 0: there is nothing worth doing. Raises Unavailable."""

    def keys(self) -> Iterator[tuple[BlockKey, int]]:
        """All keys with the bytes of their payloads."""

    def close(self) -> None:
        """Sync and let go of the folder."""


class LogShell:
    """A log for one node; lives on the node's loop and owns the log."""

    def __init__(self, log: Log, arena: Arena, objects: Objects, metrics: NodeMetrics) -> None:
        self._log = log
        self._arena = arena
        self._objects = objects
        self._metrics = metrics
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="pando-log-write")
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="pando-log-read")
        self._queue: deque[Object] = deque()
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._complained_s = -_COMPLAIN_EVERY_S

    @property
    def num_queued(self) -> int:
        """Objects that wait to be written."""
        return len(self._queue)

    def write(self, committed: Iterable[Object]) -> None:
        """Write objects when their turn comes."""
        self._queue.extend(committed)
        if self._queue:
            self._idle.clear()
            self._wanted.set()

    def drop(self, names: Sequence[bytes]) -> None:
        """Forget records, after all writes that have begun."""
        self._writer.submit(self._drop, [key_of(name) for name in names])

    async def load(self, wanted: Sequence[tuple[Object, Run]]) -> list[tuple[bytes, int]]:
        """Read objects into pages; returns header and checksum of each, an empty header where it did not come."""
        loop = asyncio.get_running_loop()
        shares = [wanted[first::_NUM_READERS] for first in range(min(_NUM_READERS, len(wanted)))]
        parts = await asyncio.gather(*(loop.run_in_executor(self._readers, self._read, share) for share in shares))
        return [parts[number % _NUM_READERS][number // _NUM_READERS] for number in range(len(wanted))]

    async def run(self, settle: Callable[[], None]) -> None:
        """Write what is queued, for ever; `settle` passes on what changed in the table."""
        loop = asyncio.get_running_loop()
        while True:
            batch = self._next_batch()
            if not batch:
                self._idle.set()
                await self._wait_or_compact()
                continue
            for one in batch:
                self._objects.pin(one)
            written = await loop.run_in_executor(self._writer, self._append, batch)
            for one, done in zip(batch, written, strict=True):
                if done:
                    self._objects.written(one)
                self._objects.unpin(one)
            self._metrics.disk_writes.labels("stored").inc(sum(written))
            self._metrics.disk_writes.labels("failed").inc(len(batch) - sum(written))
            settle()

    def dropped(self, keys: Sequence[BlockKey]) -> None:
        """The log gave up these objects for want of space; what memory still uses is written again."""
        lost = [name_of(key) for key in keys if not self._log.has(key)]
        self.write([one for name in lost if (one := self._objects.dropped(name)) is not None])

    def touch(self, names: Sequence[bytes]) -> None:
        """Objects that are on disk only from now on were used lately."""
        self._log.touch([key_of(name) for name in names])

    async def check(self, one: Object) -> bool:
        """Read an object that is on disk only and compare it with its checksums; a damaged one is forgotten."""
        run_in_thread = asyncio.get_running_loop().run_in_executor
        return bool(await run_in_thread(self._readers, self._read_into, one, memoryview(bytearray(one.length))))

    async def drained(self) -> None:
        """Wait until nothing waits to be written."""
        await self._idle.wait()

    async def close(self) -> None:
        """Sync and close the log; the caller has ended `run`."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._log.close)
        self._writer.shutdown()
        self._readers.shutdown()

    async def _wait_or_compact(self) -> None:
        """Wait for something to write; reclaim space meanwhile."""
        self._wanted.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), _IDLE_S)
            return
        await asyncio.get_running_loop().run_in_executor(self._writer, self._compact)

    def _next_batch(self) -> list[Object]:
        batch: list[Object] = []
        num_bytes = 0
        while self._queue and num_bytes < _BATCH_BYTES:
            one = self._queue.popleft()
            if one.visible and one.run is not None and not one.on_disk:
                batch.append(one)
                num_bytes += one.num_bytes
        return batch

    def _append(self, batch: Sequence[Object]) -> list[bool]:
        """In the writing thread; the objects are pinned."""
        records = []
        for one in batch:
            assert one.run is not None, one
            records.append((key_of(one.name), one.header, self._arena.view(one.run)))
        return [state in (PutState.STORED, PutState.PRESENT) for state in self._log.append_many(records)]

    def _read(self, share: Sequence[tuple[Object, Run]]) -> list[tuple[bytes, int]]:
        """In a reading thread."""
        return [self._read_one(one, run) for one, run in share]

    def _read_one(self, one: Object, run: Run) -> tuple[bytes, int]:
        payload = self._arena.view(run)
        header = self._read_into(one, payload)
        return header, checksum(payload) if header else 0

    def _read_into(self, one: Object, payload: memoryview) -> bytes:
        """Header of an object whose payload was read; empty when it did not come."""
        header = bytearray(HEADER_BYTES)
        try:
            there = self._log.read(key_of(one.name), memoryview(header), payload)
        except PandoError as error:
            self._metrics.damaged.inc()
            self._complain("an object cannot be read from disk", error)
            return b""
        return bytes(header) if there else b""

    def _drop(self, keys: Sequence[BlockKey]) -> None:
        try:
            self._log.remove(keys)
        except PandoError as error:
            self._complain("records cannot be dropped from the log", error)

    def _compact(self) -> None:
        try:
            self._log.compact(_BATCH_BYTES)
        except PandoError as error:
            self._complain("the log cannot be compacted", error)

    def _complain(self, what: str, error: Exception) -> None:
        now_s = monotonic()
        if now_s - self._complained_s >= _COMPLAIN_EVERY_S:
            self._complained_s = now_s
            get_logger().warning(what, error=str(error))
