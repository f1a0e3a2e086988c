"""The `kvstore` backend of L3: our own store, of one process or many.

It finds the store's processes in the registry, or is given fixed addresses. Data never passes through a master: nodes
lend what they have, and the transport brings it straight into the reader's blocks; on a put the node reads from here.
A store that is not there answers ERROR, and is found when it comes.

Knows nothing of headers, checksums of headers, tags or tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from common.base.clock import Clock, monotonic
from common.base.config import TimeoutsConfig
from common.base.errors import Leg, PandoError, Unavailable
from common.base.logging import get_logger
from common.cache import kvstore_wire as wire
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_lease import Board, KvStoreLease, Part
from common.cache.kvstore_lookup import StoreLookup
from common.cache.kvstore_put import StorePut
from common.cache.kvstore_staging import InPlace, Staging
from common.cache.kvstore_view import StoreProcess, StoreView
from common.cache.l3 import BackendLease, BlockKey, L3Stats, PutState, SealedBlock
from common.rpc.errors import cancelled_elsewhere
from common.rpc.registry import STORE, RegistryReader, WorkerRecord
from common.transport.base import DRIVER_NAMES, Endpoint, Read
from common.transport.select import TransportSet, host_id
from pando.v1 import kvstore_pb2

_REFRESH_S = 0.5
_REGISTRY_S = 1.0
_ADMIN_S = 30.0
_STATS_S, _START_S = 1.0, 5.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class KvStoreConfig:
    """Which store, and how a worker uses it.

    Attributes:
        addresses: of all its nodes, host:port; empty: they are found in the registry.
        registry_url, cluster: where they register.
        client_id: name of this client, for people.
        inline_bytes: what a lookup finds comes with its answer, and what is put with its call, when it has no more: it
            costs less there than a read of its own.
        staging_bytes: memory for puts of blocks that do not lie in regions that are lent anyway.
        drivers: transports, best first, where the process has none of its own.
        timeouts: of channels.
    """

    addresses: tuple[str, ...] = ()
    registry_url: str = ""
    cluster: str = "pando"
    client_id: str = ""
    inline_bytes: int = wire.MAX_INLINE_BYTES
    staging_bytes: int = 64 * 1024 * 1024
    drivers: tuple[str, ...] = DRIVER_NAMES
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)


class KvStoreBackend:
    """See `Backend`."""

    name = "kvstore"

    def __init__(self, config: KvStoreConfig, in_place: InPlace | None = None, clock: Clock = monotonic) -> None:
        """`in_place`: regions that this process lends anyway, and its transports; they outlive the backend."""
        self._config = config
        self._clock = clock
        self._view = StoreView()
        self._calls = StoreCalls(config.timeouts, self._view, clock)
        self._staging = Staging(config.staging_bytes, config.drivers, in_place)
        here = host_id()
        self._lookup = StoreLookup(
            self._calls,
            self._view,
            clock,
            client_id=config.client_id,
            host_id=here,
            inline_bytes=config.inline_bytes,
        )
        self._put = StorePut(
            self._calls,
            self._view,
            self._staging,
            clock,
            client_id=config.client_id,
            host_id=here,
            inline_bytes=config.inline_bytes,
        )
        self._registry: RegistryReader | None = None
        self._transports: TransportSet | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leases: set[KvStoreLease] = set()
        self._puts: set[asyncio.Task[list[PutState]]] = set()
        self._closed = False

    async def start(self) -> None:
        """See `Backend.start`. With a registry the store may come later; fixed addresses must answer."""
        config = self._config
        self._transports = await self._staging.transports()
        if config.addresses:
            self._view.listed(StoreProcess(address, address) for address in config.addresses)
            answers = await asyncio.gather(*(self._stats(one, _START_S) for one in config.addresses))
            if not any(answers):
                raise Unavailable(f"no store answers at {', '.join(config.addresses)}", leg=Leg.STORE)
            return
        self._registry = RegistryReader(config.registry_url, config.cluster, _REGISTRY_S, STORE)
        await self._refresh(self._registry)
        self._spawn(self._keep_refreshing(self._registry))

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> BackendLease:
        """See `Backend.lookup`."""
        if self._closed:
            board = Board(len(keys))
            board.fail(range(len(keys)))
        else:
            board = await self._lookup.find(keys, deadline_s)
        lease = KvStoreLease(board, self, self._leases.discard)
        if self._closed:
            lease.end()
        else:
            self._leases.add(lease)
        return lease

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        """See `Backend.put`."""
        if self._closed or not blocks:
            return [PutState.ERROR] * len(blocks)
        task = asyncio.ensure_future(self._put.put(blocks, deadline_s))
        self._puts.add(task)
        late = asyncio.get_running_loop().call_later(max(0.0, deadline_s), task.cancel)
        try:
            return await task  # cancelled with this, and at its deadline, and when the backend closes
        except asyncio.CancelledError:
            if not cancelled_elsewhere():
                raise
            return [PutState.ERROR] * len(blocks)
        finally:
            late.cancel()
            self._puts.discard(task)

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """See `Backend.discard`."""
        if not self._closed and keys:
            request = kvstore_pb2.RemoveRequest(keys=wire.pack_keys(keys))
            self._spawn(self._discard(request))

    async def remove_namespace(self, namespace: bytes) -> int:
        """See `Backend.remove_namespace`."""
        request = kvstore_pb2.RemoveNamespaceRequest(namespace=namespace)
        nodes = self._view.nodes(self._clock())
        if self._closed or not nodes:
            raise Unavailable("no node of the store is known", leg=Leg.STORE)
        calls = [
            self._run(one.address, lambda stub, s: stub.RemoveNamespace(request, timeout=s), _ADMIN_S) for one in nodes
        ]
        try:
            return sum([answer.num_removed for answer in await asyncio.gather(*calls)])
        except PandoError as error:
            raise Unavailable(f"a node of the store did not remove it: {error.message}", leg=Leg.STORE) from error

    async def stats(self) -> L3Stats:
        """See `Backend.stats`; copies count as often as there are."""
        nodes = [] if self._closed else self._view.nodes(self._clock())
        answers = [one for one in await asyncio.gather(*(self._stats(node.address) for node in nodes)) if one]
        return L3Stats(
            sum(one.num_objects for one in answers),
            sum(one.num_bytes for one in answers),
            sum(one.capacity_bytes for one in answers),
        )

    async def close(self) -> None:
        """See `Backend.close`."""
        if self._closed:
            return
        self._closed = True
        for lease in list(self._leases):
            lease.end()
        pending = [*self._tasks, *self._puts]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._calls.close()
        await self._staging.close()
        if self._registry is not None:
            await self._registry.close()

    def now_s(self) -> float:
        """Monotonic seconds, for leases."""
        return self._clock()

    async def read(self, endpoints: Sequence[Endpoint], reads: Sequence[Read], deadline_s: float) -> None:
        """Read from a node, for leases."""
        assert self._transports is not None, "not started"
        await self._transports.read(endpoints, reads, deadline_s)

    async def renew(self, part: Part, deadline_s: float) -> bool:
        """Let a part of a lease live on."""
        request = kvstore_pb2.RenewRequest(lease_ids=[part.lease_id])
        asked_s = self._clock()
        try:
            answer = await self._calls.call(part.address, wire.RENEW, request, deadline_s)
        except PandoError:
            return asked_s < part.ends_s
        part.renew_at_s, part.ends_s = asked_s + answer.lease_ttl_s / 2, asked_s + answer.lease_ttl_s
        return bool(answer.alive == b"\1")

    def release(self, part: Part) -> None:
        """Give a part of a lease back."""
        self._calls.release(part.address, part.lease_id)

    async def _run(self, address: str, call: Callable[..., Awaitable[_T]], deadline_s: float) -> _T:
        return await self._calls.run(address, lambda s: call(self._calls.stub(address), s), deadline_s)

    async def _stats(self, address: str, deadline_s: float = _STATS_S) -> kvstore_pb2.GetStoreStatsResponse | None:
        request = kvstore_pb2.GetStoreStatsRequest()
        try:
            return await self._run(address, lambda stub, s: stub.GetStoreStats(request, timeout=s), deadline_s)
        except PandoError:
            return None

    async def _discard(self, request: kvstore_pb2.RemoveRequest) -> None:
        for node in self._view.nodes(self._clock()):
            try:
                await self._run(node.address, lambda stub, s: stub.Remove(request, timeout=s), _STATS_S)
            except PandoError as error:
                get_logger().warning("a damaged object may still be in the store", error=error.message)

    async def _keep_refreshing(self, registry: RegistryReader) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            await self._refresh(registry)

    async def _refresh(self, registry: RegistryReader) -> None:
        try:
            records = await registry.list_workers()
        except Unavailable:
            return  # what is known stays in use
        for address in self._view.listed(_process(record) for record in records):
            await self._calls.forget(address)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _process(record: WorkerRecord) -> StoreProcess:
    return StoreProcess(record.worker_id, record.address, frozenset(record.roles))
