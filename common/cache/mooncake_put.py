"""One batch of puts in a thread: skip what is there, copy into a slab, hand over, and again what found no room.

Mooncake answers a put of a name that it has with success and keeps the old object, and it evicts behind a put that
failed for room. So what is there is asked for first, and what found no room is tried again shortly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.cache.l3 import HEADER_BYTES, PutState, SealedBlock
from common.cache.mooncake_client import NO_ROOM, Client, codes_of, left_bytes_behind, name_of, put_state
from common.cache.mooncake_staging import Slab, Staging
from common.cache.threads import Job

_ATTEMPTS = 8
_EVICTION_S = 0.015
"""The master looks for something to evict every 10 ms."""


@dataclass(slots=True)
class Laid:
    """Objects that lie in a slab, one after the other: names, where they start, how long they are."""

    slab: Slab
    names: list[str] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, name: str, address: int, size: int) -> None:
        """One more."""
        self.names.append(name)
        self.addresses.append(address)
        self.sizes.append(size)


def put_objects(
    client: Client, staging: Staging, job: Job, blocks: Sequence[SealedBlock], ends_s: float
) -> list[PutState]:
    """Put blocks that fit into one slab; blocks.

    Args:
        client: of the store.
        staging: where the slab comes from.
        job: payloads are not handed over once it is revoked, for they may change.
        blocks: their names may repeat.
        ends_s: monotonic seconds after which nothing is tried again.

    Returns:
        One per block, in order.
    """
    names = [name_of(block.key) for block in blocks]
    sizes = [HEADER_BYTES + block.payload.nbytes for block in blocks]
    states = _present(client, names, sizes)
    todo = [number for number, state in enumerate(states) if state is None]
    missing = [blocks[number] for number in todo]
    for number, state in zip(todo, _put_missing(client, staging, job, missing, ends_s), strict=True):
        states[number] = state
    return [state or PutState.ERROR for state in states]


def _present(client: Client, names: list[str], sizes: Sequence[int]) -> list[PutState | None]:
    """PRESENT, ERROR, or None for what is to be put; objects of another length are removed."""
    codes = codes_of(len(names), client.batch_is_exist, names)
    states: list[PutState | None] = [{0: None, 1: PutState.PRESENT}.get(code, PutState.ERROR) for code in codes]
    found = [number for number, code in enumerate(codes) if code == 1]
    if found:
        replicas = client.batch_get_replica_desc([names[number] for number in found])
        for number in found:
            if _length(replicas.get(names[number], ())) not in (None, sizes[number]):
                codes_of(1, client.batch_remove, [names[number]], True)
                states[number] = None
    return states


def _length(replicas: Sequence[Any]) -> int | None:
    """Bytes of an object by the descriptors of its replicas; None when none of them is in memory."""
    for replica in replicas:
        if replica.is_memory_replica():
            return int(replica.get_memory_descriptor().buffer_descriptor.size)
    return None


def _put_missing(
    client: Client, staging: Staging, job: Job, blocks: Sequence[SealedBlock], ends_s: float
) -> list[PutState]:
    num_bytes = sum(HEADER_BYTES + block.payload.nbytes for block in blocks)
    if num_bytes > staging.limit_bytes:
        return [PutState.NO_SPACE] * len(blocks)
    if not blocks:
        return []
    with staging.borrow(client, num_bytes) as slab:
        if slab is None:
            return [PutState.ERROR] * len(blocks)
        laid, offset = Laid(slab), 0
        for block in blocks:
            end = slab.write(slab.write(offset, block.header), block.payload)
            laid.add(name_of(block.key), slab.address + offset, end - offset)
            offset = end
        return [put_state(code) for code in _hand_over(client, laid, job, ends_s)]


def _hand_over(client: Client, laid: Laid, job: Job, ends_s: float) -> list[int]:
    """Put what lies in a slab, again what found no room; returns codes."""
    codes = [NO_ROOM] * len(laid.names)
    todo = list(range(len(codes)))
    for _ in range(_ATTEMPTS):
        if job.revoked:
            break
        columns = [[column[number] for number in todo] for column in (laid.names, laid.addresses, laid.sizes)]
        got = codes_of(len(todo), client.batch_put_from, *columns)
        laid.slab.failed |= left_bytes_behind(got)
        for number, code in zip(todo, got, strict=True):
            codes[number] = code
        todo = [number for number in todo if codes[number] == NO_ROOM]
        if not todo or time.monotonic() + _EVICTION_S > ends_s:
            break
        time.sleep(_EVICTION_S)
    return codes
