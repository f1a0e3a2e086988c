"""Breakers: when one opens, how long it stays so, and what closes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.base.errors import Leg
from services.router.breaker import BreakerLimits, Breakers, BreakerState, Role, Use
from services.router.legs import Legs
from services.router.policy import Candidate, Plan

W = ("w", 1)
P = ("p", 1)
LIMITS = BreakerLimits(failures=3, first_pause_s=1.0, longest_pause_s=4.0)


@pytest.fixture
def breakers() -> Breakers:
    return Breakers(LIMITS)


def fail(breakers: Breakers, times: int, now_s: float = 0.0, role: Role = Role.DECODE) -> None:
    for _ in range(times):
        breakers.use(W, role, now_s).failed(now_s)


def state(breakers: Breakers, now_s: float) -> BreakerState:
    return breakers.state(W, Role.DECODE, now_s)


def test_failures_in_a_row_open_it_for_a_while(breakers: Breakers) -> None:
    fail(breakers, 2)
    assert breakers.allows(W, Role.DECODE, 0.0)
    fail(breakers, 1)
    assert state(breakers, 0.9) is BreakerState.OPEN and not breakers.allows(W, Role.DECODE, 0.9)
    assert state(breakers, 1.0) is BreakerState.HALF_OPEN and breakers.allows(W, Role.DECODE, 1.0)
    assert breakers.allows(W, Role.PREFILL, 0.0), "the roles are apart"
    assert breakers.num_open(0.0) == {Role.DECODE: 1}


def test_a_success_between_failures_keeps_it_closed(breakers: Breakers) -> None:
    for _ in range(5):
        fail(breakers, 2)
        breakers.use(W, Role.DECODE, 0.0).succeeded()
    assert state(breakers, 0.0) is BreakerState.CLOSED


def test_one_trial_at_a_time(breakers: Breakers) -> None:
    fail(breakers, 3)
    trial = breakers.use(W, Role.DECODE, 1.0)
    assert not breakers.allows(W, Role.DECODE, 1.0)
    trial.release()
    trial.release()
    assert breakers.allows(W, Role.DECODE, 1.0), "a trial without a verdict makes room for another"
    breakers.use(W, Role.DECODE, 1.0).answered()
    assert state(breakers, 1.0) is BreakerState.CLOSED
    fail(breakers, 1, 1.0)
    assert state(breakers, 1.0) is BreakerState.OPEN, "it has answered, not finished"


def test_failed_trials_double_the_pause_up_to_the_longest(breakers: Breakers) -> None:
    fail(breakers, 3)
    now_s = 0.0
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        assert state(breakers, now_s + pause_s - 0.01) is BreakerState.OPEN
        now_s += pause_s
        fail(breakers, 1, now_s)
    breakers.use(W, Role.DECODE, now_s + 4).succeeded()
    fail(breakers, 3, now_s + 4)
    assert state(breakers, now_s + 5) is BreakerState.HALF_OPEN, "after a success it begins anew"


def test_what_began_before_it_opened_does_not_open_it_again(breakers: Breakers) -> None:
    old = [breakers.use(W, Role.DECODE, 0.0) for _ in range(8)]
    for use in old:
        use.failed(2.0)
    assert state(breakers, 2.9) is BreakerState.OPEN
    assert state(breakers, 3.0) is BreakerState.HALF_OPEN


def test_a_new_life_begins_closed(breakers: Breakers) -> None:
    fail(breakers, 3)
    breakers.forget(W)
    assert state(breakers, 0.0) is BreakerState.CLOSED and not breakers.num_open(0.0)


def candidate(key: tuple[str, int]) -> Candidate:
    return Candidate(key, "a:1", can_decode=True, can_prefill=True)


def legs(breakers: Breakers, now_s: float = 0.0, prefill: bool = True) -> Legs:
    plan = Plan(candidate(W), candidate(P) if prefill else None, (), 1, 1, "remote")
    return Legs(breakers, plan, now_s)


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.TRANSFER, Leg.STORE])
def test_a_failing_prefill_never_opens_decodes_breaker(breakers: Breakers, leg: Leg) -> None:
    for _ in range(9):
        attempt = legs(breakers)
        attempt.failed(leg, 0.0)
        attempt.release()
    assert breakers.state(P, Role.PREFILL, 0.0) is BreakerState.OPEN
    assert breakers.num_open(0.0) == {Role.PREFILL: 1}


def test_a_failing_decode_says_nothing_of_prefill(breakers: Breakers) -> None:
    for _ in range(3):
        attempt = legs(breakers)
        attempt.answered()
        attempt.failed(Leg.DECODE, 0.0)
        attempt.release()
    assert breakers.num_open(0.0) == {Role.DECODE: 1}
    done = legs(breakers, 1.0, prefill=False)
    done.answered()
    done.succeeded()
    assert not breakers.num_open(1.0)


@given(st.lists(st.sampled_from(["use", "answer", "succeed", "fail", "release", "wait"]), max_size=80))
def test_it_never_stays_shut(steps: list[str]) -> None:
    """Whatever happens: once all uses are released and the longest pause is over, one use is let through."""
    breakers, now_s = Breakers(LIMITS), 0.0
    uses: list[Use] = []
    for step in steps:
        if step == "wait":
            now_s += 0.7
        elif step == "use" and breakers.allows(W, Role.DECODE, now_s):
            uses.append(breakers.use(W, Role.DECODE, now_s))
        elif uses and step == "answer":
            uses[-1].answered()
        elif uses and step == "release":
            uses.pop().release()
        elif uses and step == "succeed":
            uses.pop(0).succeeded()
        elif uses and step == "fail":
            uses.pop().failed(now_s)
    for use in uses:
        use.release()
    assert breakers.allows(W, Role.DECODE, now_s + LIMITS.longest_pause_s)
