"""Lookups of one node: what is found is pinned, loaded from disk if need be, and leased.

A load that does not end within its caller's time goes on: the object is in memory for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from common.cache.kvstore_arena import Run
from services.kvstore.holdings import Holdings
from services.kvstore.memory import Object

_LOAD_BATCH = 64


@dataclass(slots=True, frozen=True)
class Found:
    """Answer to a lookup.

    Attributes:
        objects: per name: leased, or None.
        failed: indices of names that are there but cannot be lent now.
        lease_id: 0 when nothing is leased.
        ttl_s: life of the lease.
        num_bytes: payloads that are leased, each as often as it is named.
    """

    objects: list[Object | None]
    failed: frozenset[int]
    lease_id: int
    ttl_s: float
    num_bytes: int


class Node:
    """The reading side of a node. Lives on one loop."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._loading: dict[Object, asyncio.Task[None]] = {}

    async def lookup(self, names: Sequence[bytes], wanted_ttl_s: float, deadline_s: float) -> Found:
        """Lease what is here."""
        objects = self._holdings.objects
        found = objects.find(names)
        on_disk = [one for one in found if one is not None and one.run is None]
        if not on_disk:
            return self._lease(found, wanted_ttl_s)
        pinned = [one for one in found if one is not None]
        objects.pin_all(pinned)
        try:
            await self._load(list(dict.fromkeys(on_disk)), deadline_s)
            return self._lease(found, wanted_ttl_s)
        finally:
            objects.unpin_all(pinned)

    async def close(self) -> None:
        """Wait for running loads."""
        if self._loading:
            await asyncio.wait(set(self._loading.values()))

    def _lease(self, found: Sequence[Object | None], wanted_ttl_s: float) -> Found:
        holdings = self._holdings
        hits = [one for one in found if one is not None and one.header]
        lent, failed = list(found), set[int]()
        if len(hits) < len(found):
            lent = [one if one is not None and one.header else None for one in found]
            failed = {index for index, one in enumerate(found) if one is not None and one.visible and not lent[index]}
        ttl_s = holdings.leases.ttl_s(wanted_ttl_s)
        asyncio.get_running_loop().call_soon(holdings.objects.touch, hits)  # behind the answer
        lease_id = holdings.leases.grant(hits, holdings.clock(), ttl_s) if hits else 0
        if lease_id is None:  # too many leases: no answer is better than one that cannot be relied on
            failed |= {index for index, one in enumerate(lent) if one is not None}
            lent, lease_id = [None] * len(found), 0
        num_bytes = sum([one.length for one in hits])
        self._count(len(found), len(hits), len(failed), num_bytes)
        return Found(lent, frozenset(failed), lease_id, ttl_s, num_bytes)

    def _count(self, asked: int, hits: int, failed: int, num_bytes: int) -> None:
        metrics = self._holdings.metrics
        metrics.hits.inc(hits)
        metrics.errors.inc(failed)
        metrics.misses.inc(max(0, asked - hits - failed))
        metrics.lent_bytes.inc(num_bytes)

    async def _load(self, wanted: list[Object], deadline_s: float) -> None:
        """Bring objects into memory that are pinned by the caller; leaves at the deadline with what is there."""
        ends_s = self._holdings.clock() + deadline_s
        waiting = wanted
        while waiting:
            waiting = self._begin(waiting)
            running = {self._loading[one] for one in wanted if one in self._loading}
            left_s = ends_s - self._holdings.clock()
            if left_s <= 0:
                return
            if running:
                await asyncio.wait(running, timeout=left_s)
            elif waiting and not await self._holdings.wait_for_room(left_s):
                return

    def _begin(self, wanted: list[Object]) -> list[Object]:
        """Start loads for which there is room; returns the objects for which there was none."""
        started: list[tuple[Object, Run]] = []
        refused: list[Object] = []
        for one in wanted:
            if one.run is not None or one in self._loading or not one.visible:
                continue
            run = self._holdings.objects.begin_load(one)
            if run is None:
                refused.append(one)
            else:
                started.append((one, run))
        for first in range(0, len(started), _LOAD_BATCH):
            batch = started[first : first + _LOAD_BATCH]
            task = asyncio.create_task(self._read(batch))
            self._loading.update(dict.fromkeys([one for one, _ in batch], task))
        self._holdings.settle()
        return refused

    async def _read(self, batch: Sequence[tuple[Object, Run]]) -> None:
        holdings = self._holdings
        assert holdings.log is not None
        came: list[tuple[bytes, int]] = [(b"", 0)] * len(batch)
        try:
            came = await holdings.log.load(batch)
        finally:
            for (one, run), (header, checksum) in zip(batch, came, strict=True):
                del self._loading[one]
                holdings.objects.end_load(one, run, header, checksum)
                holdings.metrics.loads.labels("loaded" if header else "failed").inc()
            holdings.settle()
