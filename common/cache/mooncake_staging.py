"""Registered memory through which blocks pass to and from Mooncake.

RDMA needs registered memory, and a transfer that was given up may still touch it: so bytes never go straight into a
reader's block or out of a writer's, but through slabs that the store owns. A slab of a failed transfer rests for a
while before it is used again. Invariant: never more than `limit_bytes` are allocated, resting slabs included.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from common.base.clock import Clock, monotonic
from common.cache.mooncake_client import Client


@dataclass(slots=True, eq=False)
class Slab:
    """Some registered memory, used by one thread at a time.

    Attributes:
        memory: [bytes] uint8.
        failed: set by its user: a transfer was given up, the memory must rest.
        rested_s: when it may be used again.
    """

    memory: npt.NDArray[np.uint8]
    failed: bool = False
    rested_s: float = field(default=0.0)

    @property
    def address(self) -> int:
        """Where it starts."""
        return int(self.memory.ctypes.data)

    def write(self, offset: int, content: bytes | memoryview) -> int:
        """Copy bytes in, outside the interpreter lock; returns where they end."""
        source = np.frombuffer(content, np.uint8)
        end = offset + source.nbytes
        np.copyto(self.memory[offset:end], source)
        return end

    def read(self, offset: int, target: memoryview) -> int:
        """Copy bytes out, outside the interpreter lock; returns where they end."""
        landing = np.frombuffer(target, np.uint8)
        end = offset + landing.nbytes
        np.copyto(landing, self.memory[offset:end])
        return end


class Staging:
    """The slabs of a store; used by its threads.

    Args:
        slab_bytes: of a slab, unless more is asked for at once.
        limit_bytes: of all slabs.
        rest_s: how long a slab rests after a failure.
        clock: monotonic seconds.
    """

    def __init__(self, slab_bytes: int, limit_bytes: int, rest_s: float, clock: Clock = monotonic) -> None:
        self._slab_bytes = slab_bytes
        self.limit_bytes = limit_bytes
        self._rest_s = rest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Slab] = []
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Allocated now."""
        return self._num_bytes

    @contextlib.contextmanager
    def borrow(self, client: Client, num_bytes: int) -> Iterator[Slab | None]:
        """A slab of at least `num_bytes`; None when there is no room, or the client does not register it."""
        slab = self._take(client, num_bytes)
        try:
            yield slab
        except BaseException:
            if slab is not None:
                slab.failed = True
            raise
        finally:
            if slab is not None:
                self._give_back(slab)

    def _take(self, client: Client, num_bytes: int) -> Slab | None:
        size = max(self._slab_bytes, num_bytes)
        with self._lock:
            now_s = self._clock()
            rested = [slab for slab in self._idle if slab.rested_s <= now_s]
            fitting = next((slab for slab in rested if slab.memory.nbytes >= num_bytes), None)
            if fitting is not None:
                self._idle.remove(fitting)
                return fitting
            while rested and self._num_bytes + size > self.limit_bytes:
                self._drop(client, rested.pop())
            if self._num_bytes + size > self.limit_bytes:
                return None
            self._num_bytes += size
        return self._allocate(client, size)

    def _allocate(self, client: Client, size: int) -> Slab | None:
        slab = Slab(np.empty(size, np.uint8))
        if client.register_buffer(slab.address, size) == 0:
            return slab
        with self._lock:
            self._num_bytes -= size
        return None

    def _drop(self, client: Client, slab: Slab) -> None:
        self._idle.remove(slab)
        self._num_bytes -= slab.memory.nbytes
        client.unregister_buffer(slab.address)

    def _give_back(self, slab: Slab) -> None:
        with self._lock:
            slab.rested_s = self._clock() + self._rest_s if slab.failed else 0.0
            slab.failed = False
            self._idle.append(slab)


def chunks(sizes: list[int], limit: int) -> list[list[int]]:
    """Consecutive numbers whose sizes together are at most `limit`; one that is larger stands alone."""
    result: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if size > room or not result:
            result.append([])
            room = limit
        result[-1].append(number)
        room -= size
    return result
