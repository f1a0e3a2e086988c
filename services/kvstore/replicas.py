"""Second copies of hot objects: one node leases what it has, another takes it, by the same calls as any client's.

The bytes go from node to node. It is done one batch at a time and only a few wait; what does not come to pass is tried
again when the object is noticed to be hot the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.base.clock import Clock
from common.base.errors import PandoError
from common.base.logging import get_logger
from common.cache import kvstore_wire as wire
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_lease import Part
from common.cache.kvstore_lookup import StoreLookup
from common.cache.kvstore_view import StoreView
from common.cache.kvstore_wire import Lookup, Put
from pando.v1 import kvstore_pb2
from services.kvstore.metrics import NodeMetrics

_MAX_WAITING = 64
_CALL_S = 5.0


@dataclass(slots=True, frozen=True)
class Copy:
    """Objects to be copied between two nodes, by their addresses."""

    names: Sequence[bytes]
    source: str
    target: str


class Copier:
    """Makes copies, for a leader; lives on its loop."""

    def __init__(self, calls: StoreCalls, client_id: str, metrics: NodeMetrics, clock: Clock) -> None:
        self._calls = calls
        self._client_id = client_id
        self._lookup = StoreLookup(calls, StoreView(), clock, client_id=client_id)
        self._metrics = metrics
        self._waiting: asyncio.Queue[Copy] = asyncio.Queue(_MAX_WAITING)

    def ask_for(self, copy: Copy) -> bool:
        """Have a copy made some time soon; False: too many wait."""
        if self._waiting.full():
            return False
        self._waiting.put_nowait(copy)
        return True

    async def run(self, wanted: Callable[[], bool]) -> None:
        """Make copies, for ever, while `wanted` says that this process leads."""
        while True:
            copy = await self._waiting.get()
            if not wanted():
                continue
            try:
                stored = await self._make(copy)
            except PandoError as error:
                get_logger().warning("hot objects cannot be copied", source=copy.source, error=error.message)
                stored = 0
            self._metrics.replicas.labels("stored").inc(stored)
            self._metrics.replicas.labels("failed").inc(len(copy.names) - stored)

    async def _make(self, copy: Copy) -> int:
        """Returns how many objects the target has now. Raises PandoError."""
        keys = [wire.key_of(name) for name in copy.names]
        response, part = await self._lookup.ask(copy.source, keys, _CALL_S)
        if part is None:
            return 0
        try:
            hits = [key for key, code in zip(keys, response.states, strict=True) if code == Lookup.HIT]
            return await self._put(copy.target, wire.pack_keys(hits), part, len(hits))
        finally:
            self._calls.release(copy.source, part.lease_id)

    async def _put(self, target: str, runs: Sequence[kvstore_pb2.KeyRun], part: Part, count: int) -> int:
        request = kvstore_pb2.PutRequest(
            keys=runs,
            headers=part.headers,
            extents=wire.pack_offers(part.extent(number) for number in range(count)),
            incarnation=part.incarnation,
            endpoints=wire.pack_endpoints(part.endpoints),
            client_id=self._client_id,
        )
        answer = await self._calls.call(target, wire.PUT, request, _CALL_S)
        return sum(code in (Put.STORED, Put.PRESENT) for code in answer.states)
