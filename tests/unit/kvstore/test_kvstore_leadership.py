"""Leading by lock and term, on a fake clock: never two at one node, never past the lock's end."""

from __future__ import annotations

import random

import pytest

from services.kvstore.leadership import (
    MAX_TERM,
    Action,
    AskLock,
    FreeLock,
    GatherTerms,
    Lead,
    Leadership,
    LockAnswered,
    LockTimes,
    Phase,
    Refused,
    StepDown,
    TermsGathered,
    Ticked,
)

TIMES = LockTimes(ttl_s=2.0, interval_s=0.5, margin_s=0.2)


def led(now_s: float = 10.0, highest: int = 4) -> Leadership:
    """One that has just begun to lead."""
    leadership = Leadership(TIMES)
    assert leadership.handle(Ticked(), now_s) == [AskLock()]
    assert leadership.handle(LockAnswered(True, now_s), now_s + 0.1) == [GatherTerms()]
    assert leadership.handle(TermsGathered(highest), now_s + 0.2) == [Lead(highest + 1)]
    return leadership


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_leads_with_a_term_above_all_others() -> None:
    leadership = led()
    assert leadership.leads(10.3) and leadership.term == 5
    assert not leadership.leads(11.8), "whatever it was told so far"


def test_a_node_that_claims_an_impossible_term_is_not_believed() -> None:
    assert led(highest=MAX_TERM).term == MAX_TERM + 1
    leadership = Leadership(TIMES)
    leadership.handle(Ticked(), 10.0)
    leadership.handle(LockAnswered(True, 10.0), 10.1)
    assert leadership.handle(TermsGathered(2**64 - 1), 10.2) == [Lead(1)]
    assert leadership.handle(Refused(2**64), 10.3) == []
    assert kinds(leadership.handle(Refused(7), 10.4)) == [StepDown, FreeLock]


def test_asks_once_at_a_time_and_not_too_often() -> None:
    leadership = Leadership(TIMES)
    assert leadership.handle(Ticked(), 0.0) == [AskLock()]
    assert leadership.handle(Ticked(), 5.0) == [], "no answer yet"
    assert leadership.handle(LockAnswered(False, 0.0), 5.1) == []
    assert leadership.handle(Ticked(), 5.2) == [AskLock()]
    leadership.handle(LockAnswered(False, 5.2), 5.3)
    assert leadership.handle(Ticked(), 5.6) == []
    assert leadership.handle(Ticked(), 5.7) == [AskLock()]


def test_renewing_keeps_the_term() -> None:
    leadership = led()
    for step in range(1, 20):
        now_s = 10.0 + step
        assert leadership.handle(Ticked(), now_s) == [AskLock()]
        assert leadership.handle(LockAnswered(True, now_s), now_s + 0.4) == []
    assert leadership.leads(29.5) and leadership.term == 5


@pytest.mark.parametrize("held", [None, "never"])
def test_steps_down_before_the_lock_can_have_ended(held: str | None) -> None:
    leadership = led(10.0)
    assert leadership.handle(Ticked(), 11.0) == [AskLock()]
    if held is None:
        assert leadership.handle(LockAnswered(None, 11.0), 11.5) == [], "the registry is away: the lock still holds"
    assert leadership.handle(Ticked(), 11.79) in ([], [AskLock()])
    assert StepDown in kinds(leadership.handle(Ticked(), 11.8))
    assert leadership.phase is Phase.FOLLOWING


def test_a_thawed_leader_steps_down_before_anything_else() -> None:
    leadership = led(10.0)
    assert kinds(leadership.handle(Ticked(), 100.0)) == [StepDown, AskLock]


def test_an_answer_that_was_late_is_no_lock() -> None:
    leadership = Leadership(TIMES)
    leadership.handle(Ticked(), 0.0)
    assert leadership.handle(LockAnswered(True, 0.0), 1.8) == []
    assert leadership.phase is Phase.FOLLOWING


def test_another_holder_ends_it() -> None:
    leadership = led(10.0)
    leadership.handle(Ticked(), 10.6)
    assert kinds(leadership.handle(LockAnswered(False, 10.6), 10.7)) == [StepDown]


def test_terms_that_come_too_late_are_ignored() -> None:
    leadership = Leadership(TIMES)
    leadership.handle(Ticked(), 0.0)
    leadership.handle(LockAnswered(True, 0.0), 0.1)
    assert kinds(leadership.handle(TermsGathered(3), 5.0)) == [StepDown]


def test_refused_by_a_node_it_frees_the_lock_and_comes_back_with_a_higher_term() -> None:
    leadership = led(10.0, highest=4)
    assert kinds(leadership.handle(Refused(9), 10.3)) == [StepDown, FreeLock]
    leadership.handle(Ticked(), 10.9)
    leadership.handle(LockAnswered(True, 10.9), 10.9)
    assert leadership.handle(TermsGathered(0), 11.0) == [Lead(10)], "the registry and the nodes may have been wiped"


def test_an_old_refusal_changes_nothing() -> None:
    leadership = led(10.0, highest=4)
    assert leadership.handle(Refused(3), 10.3) == [] and leadership.leads(10.3)


@pytest.mark.parametrize("seed", range(20))
def test_of_many_contenders_no_two_lead_one_node(seed: int) -> None:
    """Clocks freeze, the registry forgets, answers are lost; the node refuses, and its leader only ever changes up."""
    rng, now_s = random.Random(seed), 0.0
    contenders = [Leadership(TIMES) for _ in range(3)]
    lock: tuple[int, float] | None = None
    persisted, leader = 0, -1
    for _ in range(3000):
        now_s += rng.random() * 0.3
        who = rng.randrange(3)
        if rng.random() < 0.01:
            lock = None  # wiped
        if rng.random() < 0.02:
            continue
        todo = contenders[who].handle(Ticked(), now_s)
        while todo:
            action = todo.pop(0)
            match action:
                case AskLock():
                    if lock is None or lock[1] <= now_s or lock[0] == who:
                        lock = (who, now_s + TIMES.ttl_s)
                    held = None if rng.random() < 0.1 else lock[0] == who
                    todo += contenders[who].handle(LockAnswered(held, now_s), now_s)
                case GatherTerms():
                    todo += contenders[who].handle(TermsGathered(persisted), now_s)
                case FreeLock():
                    lock = None if lock and lock[0] == who else lock
                case _:
                    pass
        if contenders[who].leads(now_s):  # it calls the node
            term = contenders[who].term
            if term > persisted:
                persisted, leader = term, who
            elif term < persisted or leader != who:
                contenders[who].handle(Refused(persisted), now_s)
                assert not contenders[who].leads(now_s)
    assert persisted > 3
