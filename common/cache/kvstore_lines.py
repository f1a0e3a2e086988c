"""Framed connections to store processes: which there are, and looking for those that are not.

A process tells its port over gRPC; the host is where gRPC found it. Until there is a connection, and after one has
ended, callers have gRPC: nothing ever waits for this. A search runs behind, one per process, and not again for a while
when it found nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from common.base.clock import Clock
from common.base.config import TimeoutsConfig
from common.base.errors import Leg, PandoError
from common.rpc.framed_client import FramedConnection, connect
from pando.v1 import kvstore_pb2

_AGAIN_S = 2.0


class StoreLines:
    """By address; lives on one loop.

    Args:
        stats: asks a process over gRPC.
    """

    def __init__(
        self,
        timeouts: TimeoutsConfig,
        stats: Callable[[str], Awaitable[kvstore_pb2.GetStoreStatsResponse]],
        clock: Clock,
    ) -> None:
        self._timeouts = timeouts
        self._stats = stats
        self._clock = clock
        self._lines: dict[str, FramedConnection] = {}
        self._searches: dict[str, asyncio.Task[None]] = {}
        self._again_s: dict[str, float] = {}

    def find(self, address: str) -> FramedConnection | None:
        """A connection that takes a call now; None: use gRPC."""
        line = self._lines.get(address)
        if line is not None and line.alive:
            return line if line.usable else None
        if address not in self._searches and self._clock() >= self._again_s.get(address, 0.0):
            self._again_s[address] = self._clock() + _AGAIN_S
            self._searches[address] = asyncio.ensure_future(self._search(address))
        return None

    def forget(self, address: str) -> None:
        """End the connection to a process that is gone; its calls fail with PeerLost."""
        self._again_s.pop(address, None)
        search = self._searches.pop(address, None)
        if search is not None:
            search.cancel()
        line = self._lines.pop(address, None)
        if line is not None:
            line.close()

    async def close(self) -> None:
        """End all."""
        searches = list(self._searches.values())
        for address in {*self._searches, *self._lines}:
            self.forget(address)
        await asyncio.gather(*searches, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport lets go of its socket in the loop's next round

    async def _search(self, address: str) -> None:
        try:
            stats = await self._stats(address)
            if stats.framed_port:
                host = address.rpartition(":")[0].strip("[]")
                line = await connect(host, stats.framed_port, stats.incarnation, self._timeouts, Leg.STORE)
                self._lines[address] = line
        except (PandoError, grpc.aio.AioRpcError):
            return  # gRPC goes on; the next search is not far
        finally:
            if self._searches.get(address) is asyncio.current_task():
                del self._searches[address]
