"""Asking a store of several nodes for a batch of keys, with or without a leader.

::

    one node            ask it
    a leader            ask it: it leases what it has itself and names the nodes that hold the rest; ask those
                        it does not know all yet, or is slow to answer: ask the other nodes as well
    no leader           ask all nodes at once

Whoever does not answer costs ERROR for the keys that nobody else has, and is left alone for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.base.clock import Clock
from common.base.errors import PandoError
from common.cache import kvstore_wire as wire
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_lease import Board, Part
from common.cache.kvstore_view import StoreView
from common.cache.kvstore_wire import Lookup
from common.cache.l3 import BlockKey
from common.transport.base import Endpoint
from pando.v1 import kvstore_pb2

_HEDGE_S = 0.25
_MAX_ENDPOINTS = 256


class StoreLookup:
    """Looks up; lives on the client's loop.

    Args:
        calls, view, clock: of the client.
        client_id, host_id: its names.
        inline_bytes: what is found is brought along when it has no more.
    """

    def __init__(
        self,
        calls: StoreCalls,
        view: StoreView,
        clock: Clock,
        *,
        client_id: str,
        host_id: str = "",
        inline_bytes: int = 0,
    ) -> None:
        self._calls = calls
        self._view = view
        self._clock = clock
        self._client_id = client_id
        self._host_id = host_id
        self._inline_bytes = inline_bytes
        self._endpoints: dict[int, list[Endpoint]] = {}

    async def find(self, keys: Sequence[BlockKey], deadline_s: float) -> Board:
        """Lease what there is; what has no answer by the deadline is ERROR."""
        board = Board(len(keys))
        asking = _Asking(self, keys, board, self._clock() + deadline_s)
        leader = self._view.leader(self._clock())
        everything = range(len(keys))
        if leader is None:
            await asking.all_nodes(everything)
        else:
            await asking.leader(leader.address, everything)
        return board

    async def ask(
        self, address: str, keys: Sequence[BlockKey], deadline_s: float
    ) -> tuple[kvstore_pb2.LookupAndLeaseResponse, Part | None]:
        """One call. Raises PandoError."""
        request = kvstore_pb2.LookupAndLeaseRequest(
            keys=wire.pack_keys(keys),
            client_id=self._client_id,
            host_id=self._host_id,
            inline_bytes=self._inline_bytes,
        )
        asked_s = self._clock()
        response = await self._calls.call(address, wire.LOOKUP, request, deadline_s)
        return response, self._part(address, response, asked_s)

    def _part(self, address: str, response: kvstore_pb2.LookupAndLeaseResponse, asked_s: float) -> Part | None:
        if not response.lease_id:
            return None
        endpoints = self._endpoints.get(response.incarnation)
        if endpoints is None:
            if len(self._endpoints) >= _MAX_ENDPOINTS:
                self._endpoints.clear()
            endpoints = self._endpoints[response.incarnation] = wire.unpack_endpoints(response.endpoints)
        return Part(
            address,
            response.lease_id,
            endpoints,
            response.incarnation,
            response.segment,
            response.extents,
            response.headers,
            asked_s + response.lease_ttl_s / 2,
            asked_s + response.lease_ttl_s,
            _payloads(response),
        )

    @property
    def view(self) -> StoreView:
        """Who may be asked."""
        return self._view

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._clock()


class _Asking:
    """One lookup on its way."""

    def __init__(self, lookup: StoreLookup, keys: Sequence[BlockKey], board: Board, ends_s: float) -> None:
        self._lookup = lookup
        self._keys = keys
        self._board = board
        self._ends_s = ends_s

    async def all_nodes(self, indices: Sequence[int], but: frozenset[str] = frozenset()) -> None:
        """Ask every node for the same keys; with nobody to ask, they are ERROR."""
        nodes = [node.address for node in self._lookup.view.nodes(self._lookup.now_s()) if node.address not in but]
        if not nodes and not but:
            self._board.fail(indices)
        if len(nodes) == 1:
            await self._node(nodes[0], indices)
        else:
            await asyncio.gather(*(self._node(address, indices) for address in nodes))

    async def leader(self, address: str, indices: Sequence[int]) -> None:
        """Ask the leader, and then those that it names."""
        first = asyncio.ensure_future(self._node(address, indices))
        others = frozenset({address})
        try:
            done, _ = await asyncio.wait({first}, timeout=min(_HEDGE_S, self._left_s()))
            if not done:
                await self.all_nodes(indices, others)
            response = first.result() if first.done() else None
            slow = not first.done()
        finally:
            first.cancel()
        if slow:
            self._lookup.view.failed(address, self._lookup.now_s())
            self._board.fail(indices)
        elif response is not None:
            await self._follow(address, indices, response)
        elif done:
            await self.all_nodes(indices, others)

    async def _follow(self, leader: str, indices: Sequence[int], response: kvstore_pb2.LookupAndLeaseResponse) -> None:
        by_node: dict[str, list[int]] = {}
        elsewhere = [index for index, code in zip(indices, response.states, strict=True) if code == Lookup.ELSEWHERE]
        for index, (number,) in zip(elsewhere, wire.INDEX.iter_unpack(response.elsewhere), strict=True):
            by_node.setdefault(response.nodes[number].address, []).append(index)
        work = [self._named(address, some) for address, some in by_node.items()]
        if not response.complete:
            unknown = [i for i, code in zip(indices, response.states, strict=True) if code == Lookup.MISS]
            work.append(self.all_nodes(unknown, frozenset({leader})) if unknown else _nothing())
        await asyncio.gather(*work)

    async def _named(self, address: str, indices: Sequence[int]) -> None:
        """Ask a node that is said to hold these, unless it is known to be gone."""
        if self._lookup.view.usable(address, self._lookup.now_s()):
            await self._node(address, indices)
        else:
            self._board.fail(indices)

    async def _node(self, address: str, indices: Sequence[int]) -> kvstore_pb2.LookupAndLeaseResponse | None:
        """Ask one process and note its answers; None when there is none."""
        keys = self._keys if len(indices) == len(self._keys) else [self._keys[index] for index in indices]
        try:
            response, part = await self._lookup.ask(address, keys, self._left_s())
            self._board.take(indices, response.states, part)
        except (PandoError, ValueError):  # no answer, or one of another length
            self._board.fail(indices)
            return None
        return response

    def _left_s(self) -> float:
        return max(0.0, self._ends_s - self._lookup.now_s())


async def _nothing() -> None:
    return


def _payloads(response: kvstore_pb2.LookupAndLeaseResponse) -> list[memoryview]:
    """What came with an answer: all that it lends, or nothing."""
    if not response.payloads:
        return []
    return wire.split_payloads(
        response.payloads, [length for _, length, *_ in wire.LEASED.iter_unpack(response.extents)]
    )
