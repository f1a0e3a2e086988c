"""The gRPC edge of a store process: check, convert, call, convert. Protobuf ends here (and in kvstore_wire).

What the process is not (a node, the leader) it answers with UNIMPLEMENTED, so that callers ask another.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from common.base.errors import Leg, Unsupported
from common.cache import kvstore_wire as wire
from common.cache.kvstore_placement import Candidate
from common.cache.kvstore_wire import Lookup, Put
from common.rpc.server import Context, Timed, remaining_s
from common.transport.base import Endpoint
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from services.kvstore.catalog import LIST_PAGE, Catalog
from services.kvstore.convert import key_to_pb, node_to_pb, object_to_pb, page_to_pb, space_to_pb
from services.kvstore.holdings import Holdings
from services.kvstore.intake import RETRY_AFTER_S, Intake, Offer
from services.kvstore.memory import Object
from services.kvstore.node import Found, Node
from services.kvstore.terms import Terms

SERVICE_NAME = "pando.v1.KvStoreService"
_DEFAULT_DEADLINE_S = 3.0
_MAX_LEASE_IDS = 1 << 16
"""Of one call; more would hold everybody else up."""
_PULSE_S = 0.5
_T = TypeVar("_T")


class Leader(Protocol):
    """What a process that may lead knows of the others."""

    @property
    def leading(self) -> bool:
        """Whether it leads now."""

    @property
    def complete(self) -> bool:
        """Whether it knows what all nodes hold."""

    def locate(self, names: Sequence[bytes], client_id: str, host_id: str) -> list[Candidate | None]:
        """Per name another node that holds it."""

    def place(self, names: Sequence[bytes], num_bytes: int, host_id: str) -> tuple[list[bool], list[Candidate]]:
        """Per name whether some node has it; where the others should go, best first. Raises Unavailable."""

    def saw(self, names: Sequence[bytes]) -> None:
        """Names were looked up by a client."""


@dataclass(slots=True, frozen=True)
class Here:
    """Who this process is, and how to read from it."""

    node_id: str
    incarnation: int
    host_id: str
    roles: Sequence[str]
    segment: int
    endpoints: Sequence[Endpoint]


@dataclass(slots=True, frozen=True)
class NodeParts:
    """The parts of a process with the role node."""

    holdings: Holdings
    node: Node
    intake: Intake
    catalog: Catalog
    terms: Terms


class KvStoreServicer(kvstore_pb2_grpc.KvStoreServiceServicer):
    """See kvstore.proto. `parts` is None without the role node, `leader` without the role master."""

    def __init__(
        self,
        here: Here,
        parts: NodeParts | None,
        leader: Leader | None,
        stats: Callable[[], kvstore_pb2.GetStoreStatsResponse],
    ) -> None:
        self._here = here
        self._parts = parts
        self._leader = leader
        self._stats = stats
        self._endpoints = wire.pack_endpoints(here.endpoints)

    async def LookupAndLease(
        self, request: kvstore_pb2.LookupAndLeaseRequest, context: Timed
    ) -> kvstore_pb2.LookupAndLeaseResponse:
        names = wire.unpack_names(request.keys)
        response = kvstore_pb2.LookupAndLeaseResponse()
        states = bytearray([Lookup.MISS]) * len(names)
        if self._parts is not None:
            deadline_s = remaining_s(context, _DEFAULT_DEADLINE_S)
            lookup = self._parts.node.lookup(names, request.lease_ttl_s, deadline_s)
            found = await self._timed("lookup", lookup)
            self._add_found(response, states, found, min(request.inline_bytes, wire.MAX_INLINE_BYTES))
            response.term = self._parts.terms.term
        if self._leader is not None and self._leader.leading:
            self._leader.saw(names)
            self._add_elsewhere(response, states, names, request)
        response.states = bytes(states)
        return response

    async def Renew(self, request: kvstore_pb2.RenewRequest, context: Timed) -> kvstore_pb2.RenewResponse:
        holdings = self._node().holdings
        _check_lease_ids(request.lease_ids)
        ttl_s, now_s = holdings.leases.ttl_s(request.lease_ttl_s), holdings.clock()
        alive = bytes(holdings.leases.renew(lease_id, now_s, ttl_s) for lease_id in request.lease_ids)
        return kvstore_pb2.RenewResponse(alive=alive, lease_ttl_s=ttl_s)

    async def Release(self, request: kvstore_pb2.ReleaseRequest, context: Timed) -> kvstore_pb2.ReleaseResponse:
        holdings = self._node().holdings
        _check_lease_ids(request.lease_ids)
        holdings.leases.release(request.lease_ids)
        holdings.settle()
        return kvstore_pb2.ReleaseResponse()

    async def Place(self, request: kvstore_pb2.PlaceRequest, context: Timed) -> kvstore_pb2.PlaceResponse:
        if self._leader is None or not self._leader.leading:
            raise Unsupported(f"{self._here.node_id} does not lead", reason="not_leader", leg=Leg.STORE)
        names = wire.unpack_names(request.keys)
        present, nodes = self._leader.place(names, request.num_bytes, request.host_id)
        return kvstore_pb2.PlaceResponse(present=bytes(present), nodes=[node_to_pb(node) for node in nodes])

    async def Put(self, request: kvstore_pb2.PutRequest, context: Timed) -> kvstore_pb2.PutResponse:
        names = wire.unpack_names(request.keys)
        offer = Offer(
            names,
            wire.split_headers(request.headers, len(names)),
            wire.unpack_offers(request.extents, request.incarnation, len(names)),
            wire.unpack_endpoints(request.endpoints),
            request.soft_pin,
            request.payloads,
            request.client_id,
        )
        wire.require(all(extent.length for extent in offer.extents), "an offered object is empty")
        if offer.payloads:
            _check_payloads(offer)
        deadline_s = remaining_s(context, _DEFAULT_DEADLINE_S)
        states = await self._timed("put", self._node().intake.put(offer, deadline_s))
        retry_after_s = RETRY_AFTER_S if Put.NO_SPACE in states else 0.0
        return kvstore_pb2.PutResponse(states=bytes(states), retry_after_s=retry_after_s)

    async def Remove(self, request: kvstore_pb2.RemoveRequest, context: Context) -> kvstore_pb2.RemoveResponse:
        removed = self._node().holdings.remove(wire.unpack_names(request.keys))
        return kvstore_pb2.RemoveResponse(num_removed=removed)

    async def RemoveNamespace(
        self, request: kvstore_pb2.RemoveNamespaceRequest, context: Context
    ) -> kvstore_pb2.RemoveNamespaceResponse:
        removed = await self._node().holdings.remove_namespace(wire.prefix_of(request.namespace))
        return kvstore_pb2.RemoveNamespaceResponse(num_removed=removed)

    async def ListObjects(
        self, request: kvstore_pb2.ListObjectsRequest, context: Context
    ) -> kvstore_pb2.ListObjectsResponse:
        size = min(request.page_size or LIST_PAGE, LIST_PAGE)
        page, following = self._node().catalog.page(request.page_token, request.namespace, size)
        objects = [object_to_pb(one) for one in page]
        return kvstore_pb2.ListObjectsResponse(objects=objects, next_page_token=following)

    async def Verify(self, request: kvstore_pb2.VerifyRequest, context: Context) -> kvstore_pb2.VerifyResponse:
        checked, damaged, following = await self._node().catalog.verify(request.page_token, request.namespace)
        keys = [key_to_pb(name) for name in damaged]
        return kvstore_pb2.VerifyResponse(num_checked=checked, damaged=keys, next_page_token=following)

    async def GetStoreStats(
        self, request: kvstore_pb2.GetStoreStatsRequest, context: Context
    ) -> kvstore_pb2.GetStoreStatsResponse:
        return self._stats()

    async def WatchInventory(
        self, request: kvstore_pb2.WatchInventoryRequest, context: Context
    ) -> AsyncGenerator[kvstore_pb2.WatchInventoryResponse, None]:
        parts = self._node()
        parts.terms.accept(request.term, request.leader_id)
        async with aclosing(parts.holdings.inventory.watch(_PULSE_S)) as pages:
            async for page in pages:
                parts.terms.accept(request.term, request.leader_id)  # a later leader ends this one's streams
                objects = parts.holdings.objects
                space = space_to_pb(self._here.host_id, objects.capacity_bytes, objects.num_bytes)
                yield page_to_pb(page, self._here.incarnation, space)

    def _node(self) -> NodeParts:
        if self._parts is None:
            raise Unsupported(f"{self._here.node_id} is no node", reason="not_node", leg=Leg.STORE)
        return self._parts

    async def _timed(self, call: str, work: Awaitable[_T]) -> _T:
        began_s = time.monotonic()
        try:
            return await work
        finally:
            self._node().holdings.metrics.seconds[call].observe(time.monotonic() - began_s)

    def _add_found(
        self, response: kvstore_pb2.LookupAndLeaseResponse, states: bytearray, found: Found, inline_bytes: int
    ) -> None:
        """What this node lends, and the bytes with it if they are so few."""
        lent = [one for one in found.objects if one is not None]
        if len(lent) == len(states):
            states[:] = bytes((Lookup.HIT,)) * len(states)
        else:
            for index, one in enumerate(found.objects):
                if one is not None:
                    states[index] = Lookup.HIT
        for index in found.failed:
            states[index] = Lookup.ERROR
        if found.lease_id:
            response.lease_id, response.lease_ttl_s = found.lease_id, found.ttl_s
            response.incarnation, response.segment = self._here.incarnation, self._here.segment
            response.extents, response.headers = self._records(lent), b"".join([one.header for one in lent])
            response.endpoints.extend(self._endpoints)
            if found.num_bytes <= inline_bytes:
                response.payloads = self._payloads(lent)

    def _records(self, lent: Sequence[Object]) -> bytes:
        """How objects are lent, packed; each record is made once while its pages are not freed."""
        return b"".join([one.record or self._record(one) for one in lent])

    def _payloads(self, lent: Sequence[Object]) -> bytes:
        arena = self._node().holdings.arena
        return b"".join([arena.view(one.run) for one in lent if one.run is not None])

    def _record(self, one: Object) -> bytes:
        arena, run = self._node().holdings.arena, one.run
        assert run is not None, one
        one.record = wire.LEASED.pack(arena.offset(run), run.length, arena.generation(run), one.checksum)
        return one.record

    def _add_elsewhere(
        self,
        response: kvstore_pb2.LookupAndLeaseResponse,
        states: bytearray,
        names: Sequence[bytes],
        request: kvstore_pb2.LookupAndLeaseRequest,
    ) -> None:
        """Who holds what this process does not have."""
        assert self._leader is not None
        missing = [index for index, state in enumerate(states) if state == Lookup.MISS]
        found = self._leader.locate([names[index] for index in missing], request.client_id, request.host_id)
        numbers: dict[str, int] = {}
        packed: list[bytes] = []
        for index, node in zip(missing, found, strict=True):
            if node is not None:
                if node.node_id not in numbers:
                    numbers[node.node_id] = len(numbers)
                    response.nodes.append(node_to_pb(node))
                states[index] = Lookup.ELSEWHERE
                packed.append(wire.INDEX.pack(numbers[node.node_id]))
        response.elsewhere = b"".join(packed)
        response.complete = self._leader.complete


def _check_lease_ids(lease_ids: Sequence[int]) -> None:
    wire.require(len(lease_ids) <= _MAX_LEASE_IDS, f"more than {_MAX_LEASE_IDS} leases")


def _check_payloads(offer: Offer) -> None:
    num_bytes = sum([extent.length for extent in offer.extents])
    what = f"{len(offer.payloads)} bytes of payloads for {num_bytes}, at most {wire.MAX_INLINE_BYTES}"
    wire.require(len(offer.payloads) == num_bytes <= wire.MAX_INLINE_BYTES, what)
