"""Membership under any order of events: joins and ejections alternate, and only its rules eject."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.router.member import Identity, Info, Record, Stats
from services.router.membership import (
    CallFailed,
    Eject,
    Handshake,
    HandshakeAnswered,
    HandshakeFailed,
    Join,
    Membership,
    PingAnswered,
    PingFailed,
    RegistryListed,
)

IDENTITY = Identity(b"n" * 32, "cpu", 64, 16)
OTHER = replace(IDENTITY, numerics_id="amx")


def info(record: Record, identity: Identity) -> Info:
    return Info(record.worker_id, record.incarnation, identity, 100, ("shm",), 1)


KEYS = [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
RECORDS = {key: Record(*key, f"h:{key[0]}", ("decode",)) for key in KEYS} | {
    ("c", 1): Record("c", 1, "h:b", ("decode",))
}


class MembershipMachine(RuleBasedStateMachine):
    """Any order of events: joins and ejections alternate per life, and only the rules of the docstring eject."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership(20)
        self.inside: set[tuple[str, int]] = set()
        self.asked: list[Record] = []
        self.listed: set[tuple[str, int]] = set()
        self.registry_answered = False

    def fold(self, event: object) -> None:
        for action in self.membership.handle(event):  # type: ignore[arg-type]
            if isinstance(action, Join):
                assert action.member.key not in self.inside
                self.inside.add(action.member.key)
            elif isinstance(action, Eject):
                self.inside.remove(action.member.key)
                if "no answer" in action.cause:
                    assert action.member.key not in self.listed and action.member.missed_pings
            elif isinstance(action, Handshake):
                self.asked.append(action.record)

    @rule(keys=st.sets(st.sampled_from(KEYS)))
    def list_registry(self, keys: set[tuple[str, int]]) -> None:
        by_id = {key[0]: key for key in sorted(keys)}
        self.listed = set(by_id.values())
        self.fold(RegistryListed([RECORDS[key] for key in sorted(self.listed)]))

    @precondition(lambda self: self.asked)
    @rule(answer=st.sampled_from([*KEYS, None]), stranger=st.booleans())
    def shake_hands(self, answer: tuple[str, int] | None, stranger: bool) -> None:
        record = self.asked.pop(0)
        if answer is None:
            self.fold(HandshakeFailed(record))
        else:
            self.fold(HandshakeAnswered(record, info(RECORDS[answer], OTHER if stranger else IDENTITY)))

    @rule(key=st.sampled_from(KEYS), refused=st.booleans())
    def miss(self, key: tuple[str, int], refused: bool) -> None:
        self.fold(PingFailed(key, refused))

    @rule(key=st.sampled_from(KEYS))
    def break_call(self, key: tuple[str, int]) -> None:
        self.fold(CallFailed(key))

    @rule(key=st.sampled_from(KEYS), incarnation=st.sampled_from([1, 2]))
    def ping(self, key: tuple[str, int], incarnation: int) -> None:
        self.fold(PingAnswered(key, Stats(incarnation)))

    @invariant()
    def members_are_those_who_joined(self) -> None:
        members = list(self.membership.members)
        assert {member.key for member in members} == self.inside
        assert len({member.record.worker_id for member in members}) == len(members)
        assert len({member.record.address for member in members}) == len(members)
        assert all(member.info.identity == self.membership.identity for member in members)


TestMembershipMachine = MembershipMachine.TestCase
