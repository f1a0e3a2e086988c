"""An L3 backend in memory: the fake for tests of what stands on L3, and the reference for the contract suite.

Several `MemoryStore`s over one `Shelf` are several workers, or one that was restarted. Evicts in order of last use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.cache.l3 import BlockKey, L3Stats, PutState, SealedBlock, Slot, State


@dataclass(slots=True)
class Shelf:
    """What the stores share: header and payload by key, longest unused first."""

    capacity_bytes: int
    objects: OrderedDict[BlockKey, tuple[bytes, bytes]] = field(default_factory=OrderedDict)

    @property
    def num_bytes(self) -> int:
        """Headers and payloads."""
        return sum(len(header) + len(payload) for header, payload in self.objects.values())


class MemoryLease:
    """Holds the objects themselves, so that eviction does not matter to it."""

    def __init__(self, objects: Sequence[tuple[bytes, bytes] | None]) -> None:
        self._objects = objects
        self._closed = False
        self.states = [State.MISS if one is None else State.HIT for one in objects]

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        """See `BackendLease.read`."""
        return [self._read(slot) for slot in wanted]

    async def close(self) -> None:
        """See `Lease.close`."""
        self._closed = True

    def _read(self, slot: Slot) -> State:
        found = self._objects[slot.index]
        if found is None:
            return self.states[slot.index]
        if self._closed:
            return State.EXPIRED
        header, payload = found
        if len(payload) != slot.payload.nbytes:
            return State.CORRUPT
        slot.header[:], slot.payload[:] = header, payload
        return State.HIT


class MemoryStore:
    """See `Backend`."""

    name = "memory"

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.closed = False

    async def start(self) -> None:
        """Nothing to open."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        """See `Backend.lookup`."""
        lease = MemoryLease([None if self.closed else self.shelf.objects.get(key) for key in keys])
        if self.closed:
            lease.states = [State.ERROR] * len(keys)
        return lease

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """See `Backend.put`."""
        return [PutState.ERROR if self.closed else self._put(block) for block in blocks]

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """See `Backend.discard`."""
        for key in keys:
            self.shelf.objects.pop(key, None)

    async def remove_namespace(self, namespace: bytes) -> int:
        """See `Backend.remove_namespace`."""
        gone = [key for key in self.shelf.objects if key.namespace == namespace]
        await self.discard(gone)
        return len(gone)

    async def stats(self) -> L3Stats:
        """See `Backend.stats`."""
        return L3Stats(len(self.shelf.objects), self.shelf.num_bytes, self.shelf.capacity_bytes)

    async def close(self) -> None:
        """See `Backend.close`."""
        self.closed = True

    def _put(self, block: SealedBlock) -> PutState:
        before = self.shelf.objects.get(block.key)
        if before is not None and len(before[1]) == block.payload.nbytes:
            self.shelf.objects.move_to_end(block.key)
            return PutState.PRESENT
        num_bytes = len(block.header) + block.payload.nbytes
        if num_bytes > self.shelf.capacity_bytes:
            return PutState.NO_SPACE
        self.shelf.objects.pop(block.key, None)
        while self.shelf.num_bytes + num_bytes > self.shelf.capacity_bytes:
            self.shelf.objects.popitem(last=False)
        self.shelf.objects[block.key] = (block.header, bytes(block.payload))
        return PutState.STORED
