"""Who is in the cluster and in which state: a state machine over registry listings, handshakes and pings.

::

    listed --handshake ok--> ready <--ping answered-- suspect      (draining: takes nothing new)
       |                      |  ---pings missed--->    |
       |                      |  call failed            | registration gone as well
       '--other KV identity   '------------------> ejected <----- another life on its address or id
            -> refused (until its incarnation changes)

Invariants: only workers whose KV identity equals the cluster's are members; a member is ejected only when its
registration expired *and* it does not answer, or when another life took its id or address, so a lost registry ejects
nobody; every event of a past life is ignored. Pure: events in, actions out; time shows only as events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.router.member import MISSED_PINGS_TO_SUSPECT, Identity, Info, Member, Record, Stats, WorkerState
from services.router.prefix_view import WorkerKey


@dataclass(slots=True, frozen=True)
class RegistryListed:
    """The registry answered with all its entries."""

    records: Sequence[Record]


@dataclass(slots=True, frozen=True)
class HandshakeAnswered:
    """The process at a record's address described itself."""

    record: Record
    info: Info


@dataclass(slots=True, frozen=True)
class HandshakeFailed:
    """Nobody answered at a record's address; it is tried again while it stays listed."""

    record: Record


@dataclass(slots=True, frozen=True)
class PingAnswered:
    """A member answered a ping."""

    key: WorkerKey
    stats: Stats


@dataclass(slots=True, frozen=True)
class PingFailed:
    """A member did not answer a ping in time, or (`refused`) nobody listens at its address."""

    key: WorkerKey
    refused: bool = False


@dataclass(slots=True, frozen=True)
class Replaced:
    """Another life than the member's answers at its address."""

    key: WorkerKey


@dataclass(slots=True, frozen=True)
class CallFailed:
    """A request's call to a member broke: nothing new goes there before it answers a ping again."""

    key: WorkerKey


Event = RegistryListed | HandshakeAnswered | HandshakeFailed | PingAnswered | PingFailed | Replaced | CallFailed


@dataclass(slots=True, frozen=True)
class Handshake:
    """Ask the process at the record's address who it is."""

    record: Record


@dataclass(slots=True, frozen=True)
class Join:
    """Follow the index of a new member."""

    member: Member


@dataclass(slots=True, frozen=True)
class Eject:
    """Forget a member and everything of it."""

    member: Member
    cause: str


@dataclass(slots=True, frozen=True)
class Discredit:
    """Nobody listens at a member's address: what it holds is lost, or it will tell it anew."""

    member: Member


@dataclass(slots=True, frozen=True)
class Refuse:
    """A worker of another KV identity wants in: tell the operator."""

    record: Record
    identity: Identity
    expected: Identity


Action = Handshake | Join | Eject | Discredit | Refuse


_REPLACED = "another life answers at its address"


class Membership:
    """The members and those who want to become one.

    Attributes:
        identity: of the KV that all members share; None without members.
    """

    def __init__(self, engine_stall_s: float) -> None:
        """Start empty; an engine step older than `engine_stall_s` makes a member suspect."""
        self._engine_stall_s = engine_stall_s
        self._members: dict[str, Member] = {}
        self._asked: dict[str, WorkerKey] = {}
        self._refused: set[WorkerKey] = set()
        self.identity: Identity | None = None

    @property
    def members(self) -> Iterable[Member]:
        """All members, whatever their state."""
        return self._members.values()

    @property
    def max_model_len(self) -> int | None:
        """The context that every member can serve; None without members."""
        return min((member.info.max_model_len for member in self._members.values()), default=None)

    @property
    def is_serving(self) -> bool:
        """True when a ready member can decode and a ready member can prefill."""
        ready = [member for member in self._members.values() if member.state is WorkerState.READY]
        return all(any(member.has_role(role) for member in ready) for role in ("decode", "prefill"))

    @property
    def num_asked(self) -> int:
        """Handshakes that are not answered yet."""
        return len(self._asked)

    def member(self, key: WorkerKey) -> Member | None:
        """The member of this life; None when it is not one."""
        member = self._members.get(key[0])
        return member if member is not None and member.key == key else None

    def handle(self, event: Event) -> list[Action]:
        """Fold in an event; returns what is to be done, in order."""
        match event:
            case RegistryListed():
                return self._listed(event.records)
            case HandshakeAnswered():
                return self._answered(event.record, event.info)
            case HandshakeFailed():
                self._asked.pop(event.record.worker_id, None)
                return []
            case PingAnswered():
                return self._ping_answered(event.key, event.stats)
            case PingFailed():
                return self._ping_failed(event.key, event.refused)
            case Replaced():
                member = self.member(event.key)
                return [self._eject(member, _REPLACED)] if member else []
            case CallFailed():
                return self._missed(event.key, MISSED_PINGS_TO_SUSPECT)

    def _listed(self, records: Sequence[Record]) -> list[Action]:
        by_id = {record.worker_id: record for record in records}
        self._refused &= {record.key for record in records}
        actions: list[Action] = []
        for member in list(self._members.values()):
            actions += self._refresh(member, by_id.get(member.record.worker_id))
        for record in records:
            if self._is_new(record):
                self._asked[record.worker_id] = record.key
                actions.append(Handshake(record))
        return actions

    def _refresh(self, member: Member, record: Record | None) -> list[Action]:
        if record is None or record.incarnation != member.record.incarnation:
            member.registered = False
            return self._eject_if_gone(member)
        member.registered = True
        member.record = record
        member.draining = record.draining or member.stats.draining
        return []

    def _is_new(self, record: Record) -> bool:
        member = self._members.get(record.worker_id)
        known = member is not None and member.key == record.key
        return not known and record.key not in self._refused and self._asked.get(record.worker_id) != record.key

    def _answered(self, record: Record, info: Info) -> list[Action]:
        self._asked.pop(record.worker_id, None)
        if (info.worker_id, info.incarnation) != record.key:
            return []
        actions: list[Action] = [
            self._eject(member, "another life took its place")
            for member in list(self._members.values())
            if member.key != record.key
            and (member.record.worker_id == record.worker_id or member.record.address == record.address)
        ]
        if self.identity is None:
            self.identity = info.identity
        if info.identity != self.identity:
            self._refused.add(record.key)
            return [*actions, Refuse(record, info.identity, self.identity)]
        if record.worker_id not in self._members:
            member = Member(record, info, draining=record.draining)
            self._members[record.worker_id] = member
            actions.append(Join(member))
        return actions

    def _ping_answered(self, key: WorkerKey, stats: Stats) -> list[Action]:
        member = self.member(key)
        if member is None:
            return []
        if stats.incarnation != key[1]:
            return [self._eject(member, _REPLACED)]
        member.missed_pings = 0
        member.stats = stats
        member.stalled = stats.engine_step_age_s > self._engine_stall_s
        member.draining = member.record.draining or stats.draining
        return []

    def _ping_failed(self, key: WorkerKey, refused: bool) -> list[Action]:
        actions = self._missed(key, MISSED_PINGS_TO_SUSPECT if refused else 1)
        member = self.member(key)
        return [Discredit(member)] if refused and member is not None else actions

    def _missed(self, key: WorkerKey, count: int) -> list[Action]:
        member = self.member(key)
        if member is None:
            return []
        member.missed_pings += count
        return self._eject_if_gone(member)

    def _eject_if_gone(self, member: Member) -> list[Action]:
        if member.registered or member.missed_pings < MISSED_PINGS_TO_SUSPECT:
            return []
        return [self._eject(member, "registration expired and no answer")]

    def _eject(self, member: Member, cause: str) -> Action:
        del self._members[member.record.worker_id]
        if not self._members:
            self.identity = None
            self._refused.clear()
        return Eject(member, cause)
