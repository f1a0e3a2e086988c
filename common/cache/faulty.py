"""A backend that fails as told: what tests and game days put between the seal and a real store.

Three failpoints. `l3.lookup` (once per call) can be late, fail or never answer. `l3.read` and `l3.put` (once per block)
can also cut or flip the payload; with `flip(recompute)` the header's checksum is made to fit, as somebody who tampers
would, so that only the keyed tag can tell. A cut read is a CORRUPT object; a cut put stores a short one.

Never armed by clients (see `common.base.failpoints`). Knows nothing of what the seal does about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from common.base.failpoint_rules import Action, Fault
from common.base.failpoints import Failpoints, Kind
from common.cache.header import refit_checksum
from common.cache.l3 import Backend, BackendLease, BlockKey, L3Stats, PutState, SealedBlock, Slot, State

LOOKUP, READ, PUT = "l3.lookup", "l3.read", "l3.put"


class FaultyBackend:
    """Passes everything on to `backend`, but for what `failpoints` say. See `Backend`."""

    def __init__(self, backend: Backend, failpoints: Failpoints) -> None:
        self.name = backend.name
        self._backend = backend
        self._failpoints = failpoints
        failpoints.register(LOOKUP, Kind.CALL, "a lookup of a batch of keys in L3")
        failpoints.register(READ, Kind.DATA, "a read of one block from L3")
        failpoints.register(PUT, Kind.DATA, "a write of one block to L3")

    async def start(self) -> None:
        """See `Backend.start`."""
        await self._backend.start()

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> BackendLease:
        """See `Backend.lookup`."""
        fault = self._failpoints.hit(LOOKUP)
        left_s = await _wait([fault], deadline_s)
        if _is_lost(fault) or left_s <= 0:
            return _NoLease(len(keys))
        return FaultyLease(await self._backend.lookup(keys, left_s), self._failpoints)

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """See `Backend.put`."""
        faults = [self._failpoints.hit(PUT) for _ in blocks]
        left_s = await _wait(faults, deadline_s)
        answers = [PutState.ERROR] * len(blocks)
        sent = [number for number, fault in enumerate(faults) if not _is_lost(fault)] if left_s > 0 else []
        states = await self._backend.put([_damaged(blocks[number], faults[number]) for number in sent], left_s)
        for number, state in zip(sent, states, strict=True):
            answers[number] = state
        return answers

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """See `Backend.discard`."""
        await self._backend.discard(keys)

    async def remove_namespace(self, namespace: bytes) -> int:
        """See `Backend.remove_namespace`."""
        return await self._backend.remove_namespace(namespace)

    async def stats(self) -> L3Stats:
        """See `Backend.stats`."""
        return await self._backend.stats()

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._backend.close()


class FaultyLease:
    """A lease whose reads fail as told."""

    def __init__(self, lease: BackendLease, failpoints: Failpoints) -> None:
        self._lease = lease
        self._failpoints = failpoints

    @property
    def states(self) -> Sequence[State]:
        """See `Lease.states`."""
        return self._lease.states

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        """See `BackendLease.read`."""
        faults = [self._failpoints.hit(READ) for _ in wanted]
        left_s = await _wait(faults, deadline_s)
        answers = [State.ERROR] * len(wanted)
        sent = [number for number, fault in enumerate(faults) if not _is_lost(fault)] if left_s > 0 else []
        states = await self._lease.read([wanted[number] for number in sent], left_s)
        for number, state in zip(sent, states, strict=True):
            answers[number] = _spoil(wanted[number], state, faults[number])
        return answers

    async def close(self) -> None:
        """See `Lease.close`."""
        await self._lease.close()


class _NoLease:
    """A lookup that nobody answered."""

    def __init__(self, num_keys: int) -> None:
        self.states = [State.ERROR] * num_keys

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        return [State.ERROR] * len(wanted)

    async def close(self) -> None:
        return


async def _wait(faults: Sequence[Fault | None], deadline_s: float) -> float:
    """Suffer the longest delay of a batch, which answers as a whole; returns the seconds left."""
    dropped = any(fault is not None and fault.action is Action.DROP for fault in faults)
    delay_s = max((fault.delay_s for fault in faults if fault is not None), default=0.0)
    await asyncio.sleep(deadline_s if dropped else min(delay_s, deadline_s))
    return 0.0 if dropped else deadline_s - delay_s


def _is_lost(fault: Fault | None) -> bool:
    return fault is not None and fault.action in (Action.FAIL, Action.DROP)


def _damaged(block: SealedBlock, fault: Fault | None) -> SealedBlock:
    """The block to store instead; damage goes into a copy."""
    if fault is None or fault.action not in (Action.TRUNCATE, Action.FLIP):
        return block
    payload = fault.damage(block.payload)
    header = bytearray(block.header)
    if fault.recompute:
        refit_checksum(header, payload)
    return replace(block, header=bytes(header), payload=memoryview(payload), checksum=None)


def _spoil(slot: Slot, state: State, fault: Fault | None) -> State:
    """Damage what landed in a slot."""
    if fault is None or state is not State.HIT:
        return state
    if fault.action is Action.TRUNCATE:
        return State.CORRUPT
    fault.flip(slot.payload)
    slot.seen = None
    if fault.recompute:
        refit_checksum(slot.header, slot.payload)
    return state
