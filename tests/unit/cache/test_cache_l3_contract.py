"""The contract suite holds for the fake, and breaks on every backend that is broken in a way that matters."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from common.cache.l3 import Backend, BlockKey, PutState, SealedBlock, Slot, State
from tests.support.l3_contract import CAPACITY_BYTES, MAX_LATE_S, BareStore, L3Contract, Place
from tests.support.l3_memory import MemoryLease, MemoryStore, Shelf


def place_of(make: Callable[[Shelf], Backend]) -> Place:
    """Stores over one shelf, which outlives them."""
    shelf = Shelf(CAPACITY_BYTES)

    async def open_store() -> Backend:
        return make(shelf)

    return Place(open_store)


class TestMemoryStore(L3Contract):
    """The fake keeps the contract."""

    @pytest.fixture
    def place(self) -> Place:
        return place_of(MemoryStore)


class SwapsBlocks(MemoryStore):
    """Answers out of order."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        return MemoryLease([self.shelf.objects.get(key) for key in reversed(keys)])


class IgnoresParts(MemoryStore):
    """Takes all parts for one."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        return await super().lookup([BlockKey(key.namespace, key.prefix_hash) for key in keys], deadline_s)

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        renamed = [SealedBlock(BlockKey(b.key.namespace, b.key.prefix_hash), b.header, b.payload) for b in blocks]
        return await super().put(renamed, deadline_s)


class FlipsABit(MemoryStore):
    """Brings back other bytes."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        objects = [self.shelf.objects.get(key) for key in keys]
        return MemoryLease([o and (o[0], bytes([o[1][0] ^ 1]) + o[1][1:]) for o in objects])


class KnowsNoCap(MemoryStore):
    """Grows."""

    def _put(self, block: SealedBlock) -> PutState:
        before = self.shelf.objects.get(block.key)
        self.shelf.objects[block.key] = (block.header, bytes(block.payload))
        return PutState.PRESENT if before else PutState.STORED


class Hangs(MemoryStore):
    """Forgets its deadline."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        await asyncio.sleep(MAX_LATE_S + 0.1)
        return await super().lookup(keys, deadline_s)


class LateLease(MemoryLease):
    """Writes after the reader was cancelled."""

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        async def write() -> list[State]:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return [self._read(slot) for slot in wanted]

        return await asyncio.shield(asyncio.create_task(write()))


class WritesLate(MemoryStore):
    """Has late leases."""

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        return LateLease([self.shelf.objects.get(key) for key in keys])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (SwapsBlocks, "test_answers_in_the_order_of_the_call"),
        (IgnoresParts, "test_different_keys_never_meet"),
        (FlipsABit, "test_reads_any_part_of_a_lease_in_any_order_and_again"),
        (KnowsNoCap, "test_keeps_its_cap"),
        (Hangs, "test_no_time_is_no_hang_and_no_lie"),
        (WritesLate, "test_a_cancelled_read_writes_nothing_after"),
    ],
)
async def test_broken_backends_fail(broken: type[MemoryStore], test: str) -> None:
    function: Callable[..., Any] = getattr(L3Contract, test)
    assert list(inspect.signature(function).parameters) == ["self", "store"]
    await function(L3Contract(), BareStore(MemoryStore(Shelf(CAPACITY_BYTES))))
    with pytest.raises(AssertionError):
        await function(L3Contract(), BareStore(broken(Shelf(CAPACITY_BYTES))))
