"""The shell around leadership, directory and placement: keeps the lock, follows the nodes, answers about the store.

Nothing here decides: events go into `Leadership`, its actions are carried out. While this process leads, it follows the
inventories of all nodes (followers.py); what it says of them is a hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from common.base.clock import Clock
from common.base.errors import Leg, PandoError, Unavailable
from common.base.logging import Logger
from common.base.tasks import Tasks
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_placement import Candidate, choose_holder, rank
from common.cache.kvstore_view import NODE
from common.rpc.registry import RegistryLock, RegistryReader, WorkerRecord
from pando.v1 import kvstore_pb2
from services.kvstore.directory import Directory
from services.kvstore.followers import Followers
from services.kvstore.hotness import Hotness
from services.kvstore.leadership import (
    Action,
    AskLock,
    Event,
    FreeLock,
    GatherTerms,
    Lead,
    Leadership,
    LockAnswered,
    Refused,
    StepDown,
    TermsGathered,
    Ticked,
)
from services.kvstore.metrics import NodeMetrics
from services.kvstore.replicas import Copier, Copy

_TICK_S = 0.1
_LIST_S = 0.5
_GATHER_S = 0.5
_SWEEPS, _SWEPT_AT_ONCE = 5, 1_000
"""Of each tick; calls come between two sweeps."""
_SETTLE_S = 1.0
"""A registry that lost its entries has all of them again after a heartbeat; what it lists before says little."""


@dataclass(slots=True, frozen=True)
class MasterParts:
    """What a master works with.

    Attributes:
        node_id, address: of this process.
        leadership, directory, hotness: the pure cores.
        reader, lock: of the registry.
        calls: to nodes.
        copier: None when no copies are wanted.
        max_replicas: most copies of an object.
    """

    node_id: str
    address: str
    leadership: Leadership
    directory: Directory
    hotness: Hotness
    reader: RegistryReader
    lock: RegistryLock
    calls: StoreCalls
    copier: Copier | None
    max_replicas: int


class Master:
    """See `services.kvstore.service.Leader`. Lives on one loop."""

    def __init__(self, parts: MasterParts, metrics: NodeMetrics, clock: Clock, log: Logger) -> None:
        self._parts = parts
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._nodes = Followers(
            parts.directory, parts.calls, parts.node_id, parts.address, on_refused=lambda t: self._handle(Refused(t))
        )
        self._tasks = Tasks(log, "a task of the store's master failed")
        self._list_at_s = 0.0
        self._led_since_s = 0.0

    @property
    def leading(self) -> bool:
        """Whether it leads now."""
        return self._parts.leadership.leads(self._clock())

    @property
    def complete(self) -> bool:
        """Whether it knows what all nodes hold."""
        return self.leading and self._parts.directory.complete

    @property
    def term(self) -> int:
        """Its last one."""
        return self._parts.leadership.term

    @property
    def directory(self) -> Directory:
        """What it knows; read only."""
        return self._parts.directory

    def locate(self, names: Sequence[bytes], client_id: str, host_id: str) -> list[Candidate | None]:
        """Per name another node that holds it."""
        near = self._nodes.on_host(host_id)
        found: list[Candidate | None] = []
        for name in names:
            holders = [node for node in self._parts.directory.holders(name) if node != self._parts.node_id]
            found.append(self._nodes.find(choose_holder(holders, near, client_id)) if holders else None)
        return found

    def place(self, names: Sequence[bytes], num_bytes: int, host_id: str) -> tuple[list[bool], list[Candidate]]:
        """Per name whether some node has it; where the others should go, best first. Raises Unavailable."""
        nodes = self._nodes.candidates()
        if not nodes:
            raise Unavailable("no node of the store is known yet", reason="no_node", leg=Leg.STORE)
        present = [bool(self._parts.directory.holders(name)) for name in names]
        return present, rank(names[0], num_bytes, host_id, nodes) if names else nodes

    def saw(self, names: Sequence[bytes]) -> None:
        """Names were looked up: those that have become hot get a second copy."""
        if self._parts.copier is None or len(self._nodes) < 2:
            return
        by_way: dict[tuple[str, str], list[bytes]] = {}
        for name in self._parts.hotness.count(names, self._clock()):
            holders = self._parts.directory.holders(name)
            others = [one for one in self._nodes.candidates() if one.node_id not in holders]
            source = self._nodes.find(holders[0]) if holders else None
            if source is not None and others and len(holders) < self._parts.max_replicas:
                target = rank(name, 0, "", others)[0]
                by_way.setdefault((source.address, target.address), []).append(name)
        for (source_address, target_address), some in by_way.items():
            self._parts.copier.ask_for(Copy(some, source_address, target_address))

    async def run(self) -> None:
        """Tick, for ever."""
        if self._parts.copier is not None:
            self._tasks.spawn(self._parts.copier.run(lambda: self.leading))
        while True:
            self._handle(Ticked())
            if self.leading and self._clock() >= self._list_at_s:
                self._list_at_s = self._clock() + _LIST_S
                self._tasks.spawn(self._list_nodes())
            for _ in range(_SWEEPS):
                self._parts.directory.sweep(_SWEPT_AT_ONCE)
                await asyncio.sleep(0)
            await asyncio.sleep(_TICK_S)

    async def close(self) -> None:
        """End all tasks and let another lead; the caller has ended `run`."""
        led = self.leading
        await self._tasks.cancel(*self._nodes.end())
        if led:
            await self._free()
        await self._parts.reader.close()
        await self._parts.lock.close()
        await self._parts.calls.close()

    def _handle(self, event: Event) -> None:
        for action in self._parts.leadership.handle(event, self._clock()):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case AskLock():
                self._tasks.spawn(self._ask_lock())
            case FreeLock():
                self._tasks.spawn(self._free())
            case GatherTerms():
                self._tasks.spawn(self._gather_terms())
            case Lead():
                self._log.info("leads the store", term=action.term)
                self._metrics.terms.inc()
                self._list_at_s = 0.0
                self._led_since_s = self._clock()
            case StepDown():
                self._log.warning("leads the store no longer", cause=action.cause)
                self._nodes.end()

    async def _ask_lock(self) -> None:
        asked_s = self._clock()
        try:
            held = await self._parts.lock.keep()
        except Unavailable:
            self._handle(LockAnswered(None, asked_s))
        else:
            self._handle(LockAnswered(held, asked_s))

    async def _free(self) -> None:
        with suppress(Unavailable):  # it ends by itself
            await self._parts.lock.free()

    async def _gather_terms(self) -> None:
        ends_s = self._clock() + _SETTLE_S
        while not (nodes := await self._registered_nodes()) and self._clock() < ends_s:  # noqa: ASYNC110 - a registry
            await asyncio.sleep(_TICK_S)
        terms = await asyncio.gather(*(self._term_of(record.address) for record in nodes))
        self._handle(TermsGathered(max(terms, default=0)))

    async def _registered_nodes(self) -> list[WorkerRecord]:
        try:
            return [record for record in await self._parts.reader.list_workers() if NODE in record.roles]
        except Unavailable:
            return []

    async def _term_of(self, address: str) -> int:
        request, calls = kvstore_pb2.GetStoreStatsRequest(), self._parts.calls
        try:
            stats = await calls.run(address, lambda s: calls.stub(address).GetStoreStats(request, timeout=s), _GATHER_S)
        except PandoError:
            return 0  # should it know a higher term, it will refuse ours
        return int(stats.term)

    async def _list_nodes(self) -> None:
        """Follow the nodes that are registered."""
        try:
            records = await self._parts.reader.list_workers()
        except Unavailable:
            return  # who is followed is still followed
        if self.leading:
            settled = self._clock() - self._led_since_s >= _SETTLE_S
            self._nodes.listed(records, self.term, settled=settled)
