"""Makes the parts of a store process from its settings: a node, a master. Only constructs; see process.py for lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.base.clock import Clock
from common.base.config import RegistryConfig, TimeoutsConfig
from common.cache.kvstore_arena import Arena
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_view import StoreView
from common.cache.kvstore_wire import name_of
from common.cache.l3 import BlockKey
from common.rpc.registry import STORE, RegistryLock, RegistryReader
from common.transport.base import STREAMS
from common.transport.select import TransportSet
from services.kvstore.catalog import Catalog
from services.kvstore.config import KvStoreConfig
from services.kvstore.directory import Directory
from services.kvstore.holdings import Holdings
from services.kvstore.hotness import Hotness
from services.kvstore.intake import Intake, Pulling
from services.kvstore.leadership import Leadership, LockTimes
from services.kvstore.leases import LeaseBook
from services.kvstore.limits import Limits
from services.kvstore.log_shell import Log, LogShell
from services.kvstore.master import MasterParts
from services.kvstore.metrics import NodeMetrics
from services.kvstore.node import Node
from services.kvstore.objects import Objects
from services.kvstore.replicas import Copier
from services.kvstore.service import NodeParts
from services.kvstore.ssd_log import SsdLog
from services.kvstore.terms import Terms

LOCK = "kvstore-leader"
_LEASE_ID_STEP = 1 << 20


@dataclass(slots=True, frozen=True)
class Identity:
    """Who a process is.

    Attributes:
        node_id: its name. incarnation: this life of it.
    """

    node_id: str
    incarnation: int


@dataclass(slots=True, frozen=True)
class Tools:
    """What all parts of a process share."""

    timeouts: TimeoutsConfig
    metrics: NodeMetrics
    clock: Clock


def make_node(
    config: KvStoreConfig,
    identity: Identity,
    tools: Tools,
    transports: TransportSet,
    on_drop: Callable[[Sequence[BlockKey]], None],
) -> NodeParts:
    """A node with what its log has; blocks while that is read. `on_drop` is called in threads of the log.

    Raises:
        PandoError: the log's folder is in use or cannot be used.
        OSError: there is no memory for the arena.
    """
    log = SsdLog.open(config.ssd_path, config.ssd_size, on_drop=on_drop) if config.ssd_path is not None else None
    arena = Arena(config.segment_size, config.page_size)
    limits = Limits(
        memory_bytes=config.segment_size,
        max_staged_bytes=config.max_staged_bytes,
        quota_bytes=config.namespace_quota,
        disk_bytes=config.ssd_size if log is not None else 0,
    )
    objects = Objects(arena, limits)
    first_lease = identity.incarnation % _LEASE_ID_STEP + 1
    leases = LeaseBook(objects, first_lease, config.max_lease_ttl_s, config.max_leases)
    shell = None if log is None else _adopt(log, arena, objects, tools.metrics)
    holdings = Holdings(
        arena=arena, objects=objects, leases=leases, log=shell, metrics=tools.metrics, clock=tools.clock
    )
    holdings.settle()
    pulling = Pulling(config.pull_streams or STREAMS, tools.timeouts.transfer_s, config.put_wait_s)
    return NodeParts(
        holdings,
        Node(holdings),
        Intake(holdings, transports, pulling),
        Catalog(holdings),
        Terms(config.ssd_path),
    )


def make_master(
    config: KvStoreConfig, identity: Identity, tools: Tools, registry: RegistryConfig, address: str
) -> MasterParts:
    """The parts of a master that is called at `address`."""
    calls = StoreCalls(tools.timeouts, StoreView(), tools.clock)
    owner = f"{identity.node_id}/{identity.incarnation}"
    ttl_s = config.lock_ttl_s
    return MasterParts(
        node_id=identity.node_id,
        address=address,
        leadership=Leadership(LockTimes(ttl_s, ttl_s / 8, ttl_s / 8)),
        directory=Directory(),
        hotness=Hotness(config.hot_lookups),
        reader=RegistryReader(registry.url, registry.cluster, tools.timeouts.ping_s, STORE),
        lock=RegistryLock(registry.url, registry.cluster, LOCK, owner, ttl_s=ttl_s, timeout_s=ttl_s / 4),
        calls=calls,
        copier=Copier(calls, owner, tools.metrics, tools.clock) if config.max_replicas > 1 else None,
        max_replicas=config.max_replicas,
    )


def _adopt(log: Log, arena: Arena, objects: Objects, metrics: NodeMetrics) -> LogShell:
    """Take over what a log had at start."""
    stored = log.keys()
    for key, num_bytes in stored:
        objects.adopt(name_of(key), num_bytes)
    return LogShell(log, arena, objects, metrics)
