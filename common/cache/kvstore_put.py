"""Writing a batch of blocks to the store: where to, in which waves, and what became of each.

Few bytes travel with the call. Else the node reads what is offered, so a put is: choose a node, make a wave of blocks
readable, one call, take the memory back. A few waves run at a time: while the node reads one, the next is copied and
hashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from common.base.clock import Clock
from common.base.errors import PandoError, Unavailable, Unsupported
from common.base.logging import get_logger
from common.cache import kvstore_wire as wire
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_placement import Candidate, rank
from common.cache.kvstore_staging import Offered, Staging, Wave
from common.cache.kvstore_view import StoreView
from common.cache.kvstore_wire import Put
from common.cache.l3 import PutState, SealedBlock
from common.transport.base import Extent
from common.transport.checksum import checksum
from pando.v1 import kvstore_pb2

_WAVES_AT_ONCE = 3
_NODES_TO_TRY = 2
_STATES = {
    Put.STORED: PutState.STORED,
    Put.PRESENT: PutState.PRESENT,
    Put.NO_SPACE: PutState.NO_SPACE,
    Put.QUOTA: PutState.NO_SPACE,
}


class StorePut:
    """Puts; lives on the client's loop.

    Args:
        calls, view, staging, clock: of the client.
        client_id, host_id: its names.
        inline_bytes: batches of no more travel with the call.
    """

    def __init__(
        self,
        calls: StoreCalls,
        view: StoreView,
        staging: Staging,
        clock: Clock,
        *,
        client_id: str,
        host_id: str,
        inline_bytes: int,
    ) -> None:
        self._calls = calls
        self._view = view
        self._staging = staging
        self._clock = clock
        self._client_id = client_id
        self._host_id = host_id
        self._inline_bytes = inline_bytes
        self._slots = asyncio.Semaphore(_WAVES_AT_ONCE)

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """Store blocks; what has no answer by the deadline is ERROR."""
        ends_s = self._clock() + deadline_s
        present, addresses = await self._place(blocks, deadline_s)
        answers = [PutState.PRESENT if there else PutState.ERROR for there in present]
        todo = [index for index, there in enumerate(present) if not there]
        if not todo or not addresses or deadline_s <= 0:
            return answers
        new = [blocks[index] for index in todo]
        if sum([block.payload.nbytes for block in new]) <= self._inline_bytes:
            payloads = b"".join([block.payload for block in new])
            states = await self._send(new, _sent_along(new), addresses, ends_s, payloads)
        else:
            waves = self._staging.split(new)
            results = await asyncio.gather(*(self._put_wave(wave, addresses, ends_s) for wave in waves))
            states = list(chain.from_iterable(results))
        for index, state in zip(todo, states, strict=True):
            answers[index] = state
        return answers

    async def _place(self, blocks: Sequence[SealedBlock], deadline_s: float) -> tuple[list[bool], list[str]]:
        """Which of them some node has already, and the addresses for the rest, best first."""
        now_s = self._clock()
        leader = self._view.leader(now_s)
        if leader is not None:
            try:
                return await self._ask_leader(leader.address, blocks, deadline_s)
            except PandoError as error:
                get_logger().debug("no advice from the store's leader", error=error.message)
        nodes = [Candidate(node.node_id, node.address) for node in self._view.nodes(now_s)]
        num_bytes = sum(block.payload.nbytes for block in blocks)
        best = rank(wire.name_of(blocks[0].key), num_bytes, self._host_id, nodes) if blocks else []
        return [False] * len(blocks), [node.address for node in best]

    async def _ask_leader(
        self, address: str, blocks: Sequence[SealedBlock], deadline_s: float
    ) -> tuple[list[bool], list[str]]:
        request = kvstore_pb2.PlaceRequest(
            keys=wire.pack_keys([block.key for block in blocks]),
            num_bytes=sum(block.payload.nbytes for block in blocks),
            host_id=self._host_id,
        )
        response = await self._calls.call(address, wire.PLACE, request, min(1.0, deadline_s))
        if len(response.present) != len(blocks):
            raise Unavailable("the store's leader answered for another number of keys")
        return [bool(there) for there in response.present], [node.address for node in response.nodes]

    async def _put_wave(self, wave: Wave, addresses: Sequence[str], ends_s: float) -> list[PutState]:
        async with self._slots:
            try:
                offered = await self._staging.offer(wave, ends_s - self._clock())
            except Unsupported as error:
                get_logger().error("the store cannot be written to", error=error.message)
                offered = None
            if offered is None:
                return [PutState.ERROR] * len(wave.blocks)
            try:
                return await self._send(wave.blocks, offered, addresses, ends_s)
            finally:
                self._staging.give_back(offered)

    async def _send(
        self,
        wave: Sequence[SealedBlock],
        offered: Offered,
        addresses: Sequence[str],
        ends_s: float,
        payloads: bytes = b"",
    ) -> list[PutState]:
        """Offer a wave to the best node, and to the next if that one is gone."""
        request = kvstore_pb2.PutRequest(
            keys=wire.pack_keys([block.key for block in wave]),
            headers=b"".join([block.header for block in wave]),
            extents=wire.pack_offers(offered.extents),
            incarnation=offered.incarnation,
            endpoints=wire.pack_endpoints(offered.endpoints),
            payloads=payloads,
            client_id=self._client_id,
        )
        for address in addresses[:_NODES_TO_TRY]:
            try:
                response = await self._calls.call(address, wire.PUT, request, ends_s - self._clock())
            except Unavailable:
                continue
            except PandoError as error:
                get_logger().warning("a put to the store failed", error=error.message)
                break
            if len(response.states) == len(wave):
                return [_STATES.get(Put(code), PutState.ERROR) for code in response.states]
        return [PutState.ERROR] * len(wave)


def _sent_along(wave: Sequence[SealedBlock]) -> Offered:
    """Extents of blocks whose bytes travel with the call: few, so that hashing them holds nobody up."""
    sums = [checksum(block.payload) if block.checksum is None else block.checksum for block in wave]
    lengths = [block.payload.nbytes for block in wave]
    return Offered([Extent(0, 0, 0, length, 0, value) for length, value in zip(lengths, sums, strict=True)], (), 0)
