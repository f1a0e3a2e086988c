"""Failure memory on a fake clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.cache.remember import Breaker, Remembered


def test_remembers_for_a_while() -> None:
    failed = Remembered(10.0)
    assert not failed.has("a", 0.0)
    failed.add("a", 100.0)
    assert failed.has("a", 100.0) and failed.has("a", 109.9)
    assert not failed.has("a", 110.0)
    assert not failed.has("b", 100.0)


def test_another_failure_counts_from_then_on() -> None:
    failed = Remembered(10.0)
    failed.add("a", 0.0)
    failed.add("a", 8.0)
    assert failed.has("a", 17.0)


def test_forgets_what_became_good() -> None:
    failed = Remembered(10.0)
    failed.add("a", 0.0)
    failed.forget("a")
    failed.forget("never there")
    assert not failed.has("a", 0.0)


def test_zero_seconds_remember_nothing() -> None:
    failed = Remembered(0.0)
    failed.add("a", 0.0)
    assert not failed.has("a", 0.0) and len(failed) == 0


def test_is_bounded_and_drops_the_oldest() -> None:
    failed = Remembered(10.0, capacity=3)
    for number in range(5):
        failed.add(number, float(number))
    assert [number for number in range(5) if failed.has(number, 5.0)] == [2, 3, 4]
    assert len(failed) == 3


def test_drops_what_has_ended() -> None:
    failed = Remembered(10.0)
    for number in range(100):
        failed.add(number, 0.0)
    failed.add("late", 10.0)
    assert len(failed) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 4)), max_size=60))
def test_agrees_with_a_dict(steps: list[tuple[int, bool, float]]) -> None:
    failed, model, now_s = Remembered(10.0), dict[int, float](), 0.0
    for key, fails, passed_s in steps:
        now_s += passed_s
        if fails:
            failed.add(key, now_s)
            model[key] = now_s + 10.0
        else:
            failed.forget(key)
            model.pop(key, None)
        assert [failed.has(k, now_s) for k in range(6)] == [model.get(k, 0.0) > now_s for k in range(6)]


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(limit=3, back_off_s=1.0, max_back_off_s=5.0)
    for _ in range(3):
        assert breaker.admit(at_s)
        breaker.failed(at_s)
    return breaker


def test_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(limit=3)
    for outcome in ("fail", "fail", "succeed", "fail", "fail"):
        assert breaker.admit(0.0)
        breaker.failed(0.0) if outcome == "fail" else breaker.succeeded()
    assert not breaker.is_open
    breaker.failed(0.0)
    assert breaker.is_open and not breaker.admit(0.0)


def test_lets_one_probe_through_after_the_back_off() -> None:
    breaker = opened()
    assert not breaker.admit(0.99)
    assert breaker.admit(1.0)
    assert not breaker.admit(1.0)


def test_a_probe_that_succeeds_closes_it_and_resets_the_back_off() -> None:
    breaker = opened()
    assert breaker.admit(1.0)
    breaker.failed(1.5)
    assert breaker.admit(3.5)
    breaker.succeeded()
    assert not breaker.is_open and breaker.admit(3.5) and breaker.admit(3.5)
    for _ in range(3):
        breaker.failed(4.0)
    assert not breaker.admit(4.99) and breaker.admit(5.0)


def test_a_probe_that_fails_doubles_the_back_off_up_to_a_bound() -> None:
    breaker, now_s, waits = opened(), 0.0, list[float]()
    for _ in range(5):
        began_s = now_s
        while not breaker.admit(now_s):
            now_s += 0.25
        waits.append(now_s - began_s)
        breaker.failed(now_s)
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_probe_that_never_reports_lets_another_follow() -> None:
    breaker = opened()
    assert breaker.admit(1.0)
    assert not breaker.admit(1.9)
    assert breaker.admit(2.0)


def test_calls_from_before_say_nothing_new() -> None:
    breaker = opened()
    for _ in range(20):
        breaker.failed(0.5)
    assert breaker.admit(1.0), "the back-off grew by failures that were under way when it opened"


@pytest.mark.parametrize("limits", [(0, 1.0, 2.0), (1, 0.0, 1.0), (1, 3.0, 2.0)])
def test_refuses_senseless_limits(limits: tuple[int, float, float]) -> None:
    with pytest.raises(AssertionError):
        Breaker(*limits)
