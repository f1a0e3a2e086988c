"""The shell around membership and prefix view: polls the registry, pings members, follows their indexes.

Three kinds of tasks, all owned here and ended by `close`: the poll, one ping or handshake per worker and round, one
watch per member. Nothing here decides; events go into `Membership`, its actions are carried out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Protocol, TypeAlias

from common.base.clock import Clock
from common.base.errors import DeadlineExceeded, PandoError, StaleIncarnation, Unavailable
from common.base.logging import Logger
from common.base.tasks import Tasks
from common.rpc.registry import WorkerRecord
from services.router.breaker import Breakers, Role
from services.router.member import Member, Record, WorkerState
from services.router.membership import (
    Action,
    CallFailed,
    Discredit,
    Eject,
    Event,
    Handshake,
    HandshakeAnswered,
    HandshakeFailed,
    Join,
    Membership,
    PingAnswered,
    PingFailed,
    Refuse,
    RegistryListed,
    Replaced,
)
from services.router.planner import Planner
from services.router.prefix_view import WorkerKey
from services.router.roster import Roster
from services.router.worker_rpc import WorkerRpc

WATCH_BACKOFF_S = 0.2
Standings: TypeAlias = dict[WorkerKey, tuple[WorkerState, tuple[str, ...], str]]
"""State, roles and address of every member."""


class Reader(Protocol):
    """Lists the registry; raises Unavailable when it does not answer."""

    async def list_workers(self) -> list[WorkerRecord]:
        """All live entries."""


class Fleet:
    """The workers as the router sees them. Lives on one event loop."""

    def __init__(
        self,
        *,
        reader: Reader,
        rpc: WorkerRpc,
        membership: Membership,
        planner: Planner,
        breakers: Breakers,
        clock: Clock,
        poll_s: float,
        view_ready_s: float,
        log: Logger,
    ) -> None:
        self.membership = membership
        self.planner = planner
        self.view = planner.view
        self.load = planner.load
        self.breakers = breakers
        self.roster = Roster(membership, breakers, planner.view, view_ready_s)
        self._clock = clock
        self._reader = reader
        self._rpc = rpc
        self._poll_s = poll_s
        self._log = log
        self._changed = asyncio.Event()
        self._watches: dict[WorkerKey, asyncio.Task[None]] = {}
        self._pinging: set[WorkerKey] = set()
        self._tasks = Tasks(log, "background task of the router failed")
        self._registry_lost = False

    def start(self) -> None:
        """Begin to poll; the first look happens at once."""
        self._tasks.spawn(self._poll())

    async def close(self) -> None:
        """End all tasks."""
        await self._tasks.cancel()

    @property
    def is_serving(self) -> bool:
        """True when workers can serve, and the first ones have told what they hold (or had the time to)."""
        return self.membership.is_serving and self.roster.has_view(self._clock())

    async def until_known(self) -> None:
        """After a start, wait until the workers have told what they hold; bounded by the time that they have for it."""
        roster = self.roster
        while not roster.has_view(self._clock()) and roster.view_due_s is not None:
            await self.wait_for_change(max(0.0, roster.view_due_s - self._clock()))

    def num_open_breakers(self) -> Counter[Role]:
        """Breakers that are not closed, by role."""
        return self.breakers.num_open(self._clock())

    def look_at(self, key: WorkerKey) -> None:
        """Ask a worker for its state now: it has shown that what is known of it is old."""
        for member in self.membership.members:
            if member.key == key:
                self._ping(member)

    def look_around(self) -> None:
        """Ask all workers for their state now: roles have moved."""
        for member in self.membership.members:
            self._ping(member)

    def call_failed(self, key: WorkerKey) -> None:
        """A request's call to a worker broke: it is suspect until it answers, and is asked at once."""
        self._handle(CallFailed(key))
        self.look_at(key)

    def wake(self) -> None:
        """Let all who wait for a change look again."""
        self._changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when a member joined, left, or changed its state or roles, or after `timeout_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _poll(self) -> None:
        while True:
            await self._read_registry()
            self.look_around()
            await asyncio.sleep(self._poll_s)

    async def _read_registry(self) -> None:
        try:
            records = await self._reader.list_workers()
        except (Unavailable, TypeError, ValueError) as error:  # unreachable, or an entry that nobody can read
            if not self._registry_lost:
                self._log.warning("registry unreachable; serving goes on", error=str(error))
            self._registry_lost = True
            return
        if self._registry_lost:
            self._log.info("registry reachable again")
        self._registry_lost = False
        self._handle(RegistryListed([_record(record) for record in records]))

    def _ping(self, member: Member) -> None:
        if member.key not in self._pinging:
            self._pinging.add(member.key)
            self._tasks.spawn(self._ping_once(member.key, member.record.address))

    async def _ping_once(self, key: WorkerKey, address: str) -> None:
        event: Event
        try:
            event = PingAnswered(key, await self._rpc.get_stats(address))
            self._observe(event)
        except DeadlineExceeded:
            event = PingFailed(key)
        except PandoError as error:
            event = PingFailed(key, refused=isinstance(error, Unavailable))
        finally:
            self._pinging.discard(key)
        self._handle(event)

    def _observe(self, answer: PingAnswered) -> None:
        identity = self.membership.identity
        if identity is not None and self.membership.member(answer.key) is not None:
            self.planner.observe_stats(answer.key, answer.stats, identity.block_size)

    async def _shake_hands(self, record: Record) -> None:
        event: Event
        try:
            event = HandshakeAnswered(record, await self._rpc.get_info(record.address))
        except PandoError as error:
            self._log.debug("handshake failed", worker_id=record.worker_id, error=error.message)
            event = HandshakeFailed(record)
        self._handle(event)

    async def _watch(self, member: Member) -> None:
        """Keep the view of one member exact for as long as it is one."""
        key = member.key
        while True:
            try:
                async with aclosing(self._rpc.watch(member.record.address, key[1])) as updates:
                    async for update in updates:
                        if not self.planner.handle(key, update):
                            break
                        if update.snapshot_end:
                            self.wake()
            except StaleIncarnation:
                self._handle(Replaced(key))
                return
            except PandoError as error:
                self._log.debug("watch broke", worker_id=key[0], error=error.message)
                self._ping(member)
            self.planner.lost_track(key)
            await asyncio.sleep(WATCH_BACKOFF_S)

    def _handle(self, event: Event) -> None:
        before = self._standings()
        actions = self.membership.handle(event)
        after = self._standings()
        if after != before:
            self.roster.changed()
        for action in actions:
            self._carry_out(action)
        if after != before:
            self._changed.set()
            self._log_roles(before, after)

    def _standings(self) -> Standings:
        return {one.key: (one.state, one.roles, one.record.address) for one in self.membership.members}

    def _log_roles(self, before: Standings, after: Standings) -> None:
        for key, (_, roles, _) in after.items():
            if key in before and before[key][1] != roles:
                self._log.info("worker changed its roles", worker_id=key[0], roles=roles, before=before[key][1])

    def _carry_out(self, action: Action) -> None:
        match action:
            case Handshake():
                self._tasks.spawn(self._shake_hands(action.record))
            case Join():
                self._join(action.member)
            case Eject():
                self._eject(action.member, action.cause)
            case Discredit():
                self.planner.discredit(action.member.key)
            case Refuse():
                self._log.error(
                    "worker refused: its KV identity differs from the cluster's",
                    worker_id=action.record.worker_id,
                    identity=action.identity,
                    expected=action.expected,
                )

    def _join(self, member: Member) -> None:
        self._log.info(
            "worker joined", worker_id=member.record.worker_id, address=member.record.address, roles=member.roles
        )
        self.roster.joined(self._clock())
        self._watches[member.key] = self._tasks.spawn(self._watch(member))
        self._ping(member)

    def _eject(self, member: Member, cause: str) -> None:
        self._log.warning("worker ejected", worker_id=member.record.worker_id, cause=cause)
        watch = self._watches.pop(member.key)
        watch.cancel()
        self.planner.remove(member.key)
        self.breakers.forget(member.key)
        self._tasks.spawn(self._rpc.forget(member.record.address))


def _record(record: WorkerRecord) -> Record:
    return Record(record.worker_id, record.incarnation, record.address, tuple(record.roles), record.draining)
