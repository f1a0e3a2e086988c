"""Membership: who joins, who is suspect, who is ejected, and that a past life changes nothing."""

from __future__ import annotations

from dataclasses import replace

from services.router.member import Identity, Info, Member, Record, Stats, WorkerState
from services.router.membership import (
    CallFailed,
    Discredit,
    Eject,
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

IDENTITY = Identity(b"n" * 32, "cpu", 64, 16)
OTHER = replace(IDENTITY, numerics_id="amx")
DECODE = Record("d", 1, "h:1", ("decode",))
PREFILL = Record("p", 1, "h:2", ("prefill",))


def info(record: Record, identity: Identity = IDENTITY, max_model_len: int = 100) -> Info:
    return Info(record.worker_id, record.incarnation, identity, max_model_len, ("shm",), 1)


def joined(*records: Record) -> Membership:
    membership = Membership(engine_stall_s=20)
    assert membership.handle(RegistryListed(records)) == [Handshake(record) for record in records]
    for record in records:
        (action,) = membership.handle(HandshakeAnswered(record, info(record)))
        assert isinstance(action, Join)
    return membership


def the(membership: Membership, worker_id: str) -> Member:
    (found,) = [member for member in membership.members if member.record.worker_id == worker_id]
    return found


def test_a_listed_worker_joins_after_its_handshake() -> None:
    membership = joined(DECODE, PREFILL)
    assert membership.is_serving and membership.identity == IDENTITY and membership.max_model_len == 100
    assert membership.handle(RegistryListed([DECODE, PREFILL])) == []


def test_a_handshake_is_asked_once_and_again_after_it_failed() -> None:
    membership = Membership(20)
    assert membership.handle(RegistryListed([DECODE])) == [Handshake(DECODE)]
    assert membership.handle(RegistryListed([DECODE])) == []
    membership.handle(HandshakeFailed(DECODE))
    assert membership.handle(RegistryListed([DECODE])) == [Handshake(DECODE)]
    assert not list(membership.members)


def test_an_entry_of_a_past_life_does_not_join() -> None:
    membership = Membership(20)
    membership.handle(RegistryListed([DECODE]))
    newer = info(replace(DECODE, incarnation=2))
    assert membership.handle(HandshakeAnswered(DECODE, newer)) == []
    assert not list(membership.members)


def test_a_stranger_is_refused_once_until_its_next_life() -> None:
    membership = joined(DECODE)
    records = [DECODE, PREFILL]
    membership.handle(RegistryListed(records))
    assert membership.handle(HandshakeAnswered(PREFILL, info(PREFILL, OTHER))) == [Refuse(PREFILL, OTHER, IDENTITY)]
    assert membership.handle(RegistryListed(records)) == []
    again = replace(PREFILL, incarnation=2)
    assert membership.handle(RegistryListed([DECODE, again])) == [Handshake(again)]


def test_when_all_are_gone_the_next_identity_counts() -> None:
    membership = joined(DECODE)
    membership.handle(RegistryListed([]))
    (action,) = membership.handle(PingFailed(DECODE.key, refused=True))
    assert isinstance(action, Eject) and membership.identity is None
    membership.handle(RegistryListed([PREFILL]))
    (action,) = membership.handle(HandshakeAnswered(PREFILL, info(PREFILL, OTHER)))
    assert isinstance(action, Join) and membership.identity == OTHER


def test_ejection_needs_an_expired_entry_and_silence() -> None:
    membership = joined(DECODE, PREFILL)
    assert membership.handle(RegistryListed([PREFILL])) == []
    assert the(membership, "d").state is WorkerState.READY
    assert membership.handle(PingFailed(DECODE.key)) == []
    (action,) = membership.handle(PingFailed(DECODE.key))
    assert isinstance(action, Eject) and action.member.key == DECODE.key

    membership = joined(DECODE, PREFILL)
    for _ in range(5):
        assert membership.handle(PingFailed(DECODE.key, refused=True)) == [Discredit(the(membership, "d"))]
    assert the(membership, "d").state is WorkerState.SUSPECT and not membership.is_serving
    (action,) = membership.handle(RegistryListed([PREFILL]))
    assert isinstance(action, Eject)


def test_a_worker_that_is_only_late_keeps_its_credit() -> None:
    membership = joined(DECODE, PREFILL)
    for _ in range(5):
        assert membership.handle(PingFailed(DECODE.key)) == []
    assert membership.handle(CallFailed(DECODE.key)) == []


def test_another_life_at_the_address_ejects_at_once_and_once() -> None:
    membership = joined(DECODE, PREFILL)
    (action,) = membership.handle(Replaced(DECODE.key))
    assert isinstance(action, Eject) and action.member.key == DECODE.key
    assert membership.handle(Replaced(DECODE.key)) == []
    again = replace(DECODE, incarnation=2)
    assert membership.handle(RegistryListed([again, PREFILL])) == [Handshake(again)]
    membership.handle(HandshakeAnswered(again, info(again)))
    assert membership.handle(Replaced(DECODE.key)) == [], "the next life is not meant"


def test_one_late_answer_is_no_suspicion_and_an_answer_ends_it() -> None:
    membership = joined(DECODE, PREFILL)
    membership.handle(PingFailed(DECODE.key))
    assert the(membership, "d").state is WorkerState.READY
    membership.handle(CallFailed(DECODE.key))
    assert the(membership, "d").state is WorkerState.SUSPECT
    membership.handle(PingAnswered(DECODE.key, Stats(1)))
    assert the(membership, "d").state is WorkerState.READY


def test_an_expired_entry_that_comes_back_is_a_member_still() -> None:
    membership = joined(DECODE)
    membership.handle(RegistryListed([]))
    membership.handle(PingAnswered(DECODE.key, Stats(1)))
    assert membership.handle(RegistryListed([DECODE])) == []
    assert membership.handle(PingFailed(DECODE.key, refused=True)) == [Discredit(the(membership, "d"))]


def test_a_stalled_engine_is_suspect() -> None:
    membership = joined(DECODE, PREFILL)
    membership.handle(PingAnswered(DECODE.key, Stats(1, engine_step_age_s=20.1)))
    assert the(membership, "d").state is WorkerState.SUSPECT
    membership.handle(PingAnswered(DECODE.key, Stats(1, engine_step_age_s=19.9)))
    assert the(membership, "d").state is WorkerState.READY


def test_draining_is_learnt_from_entry_or_ping() -> None:
    membership = joined(DECODE, PREFILL)
    membership.handle(RegistryListed([replace(DECODE, draining=True), PREFILL]))
    assert the(membership, "d").state is WorkerState.DRAINING and not membership.is_serving
    membership = joined(DECODE, PREFILL)
    membership.handle(PingAnswered(DECODE.key, Stats(1, draining=True)))
    assert the(membership, "d").state is WorkerState.DRAINING


def test_roles_follow_the_entry() -> None:
    membership = joined(DECODE, PREFILL)
    membership.handle(RegistryListed([replace(DECODE, roles=("prefill",)), PREFILL]))
    assert the(membership, "d").has_role("prefill") and not the(membership, "d").has_role("decode")


def test_roles_in_an_answer_count_more_than_an_entry_that_may_be_older() -> None:
    membership = joined(DECODE, PREFILL)
    assert membership.handle(PingAnswered(DECODE.key, Stats(1, roles=("prefill",)))) == [], (
        "it stays, and its index too"
    )
    membership.handle(RegistryListed([DECODE, PREFILL]))
    assert the(membership, "d").roles == ("prefill",) and not membership.is_serving
    membership.handle(PingAnswered(PREFILL.key, Stats(1, roles=("prefill", "decode"))))
    assert membership.is_serving


def test_a_new_life_drops_the_old_one_with_the_same_id() -> None:
    membership = joined(DECODE, PREFILL)
    again = replace(DECODE, incarnation=2, address="h:9")
    assert membership.handle(RegistryListed([again, PREFILL])) == [Handshake(again)]
    eject, join = membership.handle(HandshakeAnswered(again, info(again)))
    assert isinstance(eject, Eject) and eject.member.key == DECODE.key
    assert isinstance(join, Join) and join.member.key == again.key
    assert membership.handle(PingFailed(DECODE.key, refused=True)) == [], "events of the past life change nothing"
    assert the(membership, "d").state is WorkerState.READY


def test_a_new_life_drops_the_old_one_at_the_same_address() -> None:
    membership = joined(DECODE, PREFILL)
    other = Record("x", 7, DECODE.address, ("decode",))
    membership.handle(RegistryListed([DECODE, PREFILL, other]))
    eject, join = membership.handle(HandshakeAnswered(other, info(other)))
    assert isinstance(eject, Eject) and isinstance(join, Join)
    assert membership.handle(RegistryListed([DECODE, PREFILL, other])) == [Handshake(DECODE)]
    assert membership.handle(HandshakeAnswered(DECODE, info(other))) == [], "the entry that lingers joins nobody"


def test_another_life_that_answers_a_ping_ends_the_old_one() -> None:
    membership = joined(DECODE)
    (action,) = membership.handle(PingAnswered(DECODE.key, Stats(incarnation=2)))
    assert isinstance(action, Eject)


def test_the_context_is_the_shortest_of_all() -> None:
    membership = joined(DECODE)
    membership.handle(RegistryListed([DECODE, PREFILL]))
    membership.handle(HandshakeAnswered(PREFILL, info(PREFILL, max_model_len=70)))
    assert membership.max_model_len == 70
