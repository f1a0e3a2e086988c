"""A store process from its settings to its end.

Order up: memory and log -> transports -> RPC server -> registration -> leadership. Order down: the reverse; what is
not on disk yet is written before the log is closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from common.base.clock import Clock, monotonic
from common.base.comma_list import split_list
from common.base.ids import new_incarnation
from common.base.logging import Logger
from common.base.metrics import new_registry
from common.cache import kvstore_wire as wire
from common.cache.kvstore_view import LEADER
from common.cache.l3 import BlockKey
from common.rpc.registry import WorkerRecord
from common.rpc.server import RpcServer
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from services.kvstore.build import Identity, Tools, make_master, make_node
from services.kvstore.config import KvStoreSettings
from services.kvstore.master import Master
from services.kvstore.metrics import NodeMetrics, StatsCollector
from services.kvstore.service import SERVICE_NAME, Here, KvStoreServicer, NodeParts


class StoreProcess:
    """All parts of one process but its RPC server's port and its registration. Lives on one loop.

    Attributes:
        node_id, incarnation, roles: who it is.
        registry: of its metrics.
        parts: None without the role node.
        failed: a task of it died.
    """

    def __init__(
        self,
        settings: KvStoreSettings,
        node_id: str,
        log: Logger,
        on_failure: Callable[[], None],
        clock: Clock = monotonic,
    ) -> None:
        """Open the log, if there is one; blocks while it is read. `on_failure`: the process must not go on.

        Raises:
            PandoError: the log's folder is in use or cannot be used.
            OSError: there is no memory for the arena.
        """
        config = settings.kvstore
        self.config = config
        self._registry = settings.registry
        self.timeouts = settings.timeouts.scaled()
        self.node_id = node_id
        self.incarnation = new_incarnation()
        self.roles = split_list(config.roles)
        self.registry: CollectorRegistry = new_registry()
        self.metrics = NodeMetrics(self.registry)
        self._log = log
        self._on_failure = on_failure
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        drivers = TransportConfig(drivers=tuple(split_list(config.transport)))
        self.host_id = host_id()
        self.transports = TransportSet(make_drivers(drivers, self.host_id, self.incarnation))
        self._tools = Tools(self.timeouts, self.metrics, clock)
        self._identity = Identity(node_id, self.incarnation)
        self.parts: NodeParts | None = None
        if "node" in self.roles:
            self.parts = make_node(config, self._identity, self._tools, self.transports, self._tell_dropped)
        self.master: Master | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = False
        self._framed_port = 0
        StatsCollector(self.gauges, self.registry)

    async def start(self, server: RpcServer, address: str) -> None:
        """Start the transports, put the service on the server that listens on `address`, begin to work."""
        await self.transports.start()
        for driver, why in self.transports.missing.items():
            self._log.warning("transport not available here", driver=driver, why=why)
        segment = 0
        if self.parts is not None:
            segment = self.transports.register(self.parts.holdings.arena.region)
            self._spawn(self.parts.holdings.tend())
            if self.parts.holdings.log is not None:
                self._spawn(self.parts.holdings.log.run(self.parts.holdings.settle))
        here = Here(self.node_id, self.incarnation, self.host_id, self.roles, segment, self.transports.endpoints())
        if "master" in self.roles and self._registry.url:
            parts = make_master(self.config, self._identity, self._tools, self._registry, address)
            self.master = Master(parts, self.metrics, self._clock, self._log)
            self._spawn(self.master.run())
        servicer = KvStoreServicer(here, self.parts, self.master, self.stats)
        kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, server.grpc)
        self._framed_port = await server.listen_framed(
            self.config.host, self.incarnation, servicer, SERVICE_NAME, wire.FRAMED
        )

    async def flush(self) -> None:
        """Wait until everything is on disk, as long as a drain may take."""
        if self.parts is None:
            return
        self.parts.holdings.inventory.close()
        if self.parts.holdings.log is not None:
            try:
                await asyncio.wait_for(self.parts.holdings.log.drained(), self.timeouts.drain_s)
            except TimeoutError:
                self._log.warning("stopped before all was on disk", objects=self.parts.holdings.log.num_queued)

    async def close(self) -> None:
        """Stop everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.master is not None:
            await self.master.close()
        await self.transports.close()
        if self.parts is None:
            return
        await self.parts.node.close()
        if self.parts.holdings.log is not None:
            await self.parts.holdings.log.close()
        self.parts.holdings.arena.close()

    def record(self, address: str, metrics_address: str) -> WorkerRecord:
        """The entry of this process in the registry; called on the heartbeat's thread."""
        roles = [*self.roles, LEADER] if self.master is not None and self.master.leading else self.roles
        return WorkerRecord(self.node_id, self.incarnation, address, roles, os.getpid(), metrics_address)

    def facts(self) -> dict[str, object]:
        """For the ready line."""
        objects = len(self.parts.holdings.objects) if self.parts is not None else 0
        return {
            "roles": self.roles,
            "incarnation": self.incarnation,
            "transports": self.transports.names,
            "objects": objects,
        }

    def stats(self) -> kvstore_pb2.GetStoreStatsResponse:
        """What GetStoreStats answers."""
        message = kvstore_pb2.GetStoreStatsResponse(
            node_id=self.node_id,
            incarnation=self.incarnation,
            roles=self.roles,
            host_id=self.host_id,
            transports=self.transports.names,
            framed_port=self._framed_port,
        )
        if self.parts is not None:
            holdings = self.parts.holdings
            objects, arena = holdings.objects, holdings.arena
            message.term, message.leader_id = self.parts.terms.term, self.parts.terms.leader_id
            message.num_objects, message.num_bytes = len(objects), objects.num_bytes
            message.capacity_bytes = objects.capacity_bytes
            message.memory_bytes, message.memory_capacity_bytes = objects.memory.num_bytes, arena.capacity_bytes
            message.disk_bytes, message.disk_objects = objects.disk_bytes, objects.num_on_disk
            message.disk_capacity_bytes = self.config.ssd_size if holdings.log is not None else 0
            message.unwritten_bytes, message.staged_bytes = objects.unwritten_bytes, objects.staged_bytes
            message.num_leases = len(holdings.leases)
        if self.master is not None:
            message.leading, message.complete = self.master.leading, self.master.complete
            message.directory_nodes = self.master.directory.num_nodes
            message.directory_objects = len(self.master.directory)
            message.term = max(message.term, self.master.term)
        return message

    def gauges(self) -> dict[str, float]:
        """The same as metrics; called on the exporter's thread."""
        stats = self.stats()
        return {
            "objects": stats.num_objects,
            "bytes": stats.num_bytes,
            "memory_bytes": stats.memory_bytes,
            "memory_capacity_bytes": stats.memory_capacity_bytes,
            "disk_objects": stats.disk_objects,
            "disk_bytes": stats.disk_bytes,
            "disk_capacity_bytes": stats.disk_capacity_bytes,
            "unwritten_bytes": stats.unwritten_bytes,
            "staged_bytes": stats.staged_bytes,
            "leases": stats.num_leases,
            "leader_ratio": float(stats.leading),
            "directory_objects": stats.directory_objects,
            "directory_nodes": stats.directory_nodes,
            "directory_complete_ratio": float(stats.complete),
            "term": stats.term,
        }

    def _tell_dropped(self, keys: Sequence[BlockKey]) -> None:
        """In a thread of the log."""
        self._loop.call_soon_threadsafe(self._dropped, keys)

    def _dropped(self, keys: Sequence[BlockKey]) -> None:
        if self.parts is not None and self.parts.holdings.log is not None:
            self.parts.holdings.log.dropped(keys)
            self.parts.holdings.settle()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.error("a background task of the store died", exc_info=error)
            self.failed = True
            self._on_failure()
