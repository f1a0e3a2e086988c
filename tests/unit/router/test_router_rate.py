"""The measured rate: per busy second, fading, silent when it knows too little."""

from __future__ import annotations

import pytest

from services.router.rate import Rate


def test_it_counts_busy_time_only_and_says_nothing_too_early() -> None:
    rate = Rate(fade_s=1000.0)
    rate.advance(100.0, busy=False)
    rate.add(10)
    rate.advance(100.2, busy=True)
    assert rate.per_s() is None
    rate.add(90)
    rate.advance(101.0, busy=True)
    assert rate.per_s() == pytest.approx(100.0, rel=0.01)
    assert rate.per_s(soon=20) == pytest.approx(120.0, rel=0.01)
    rate.advance(103.0, busy=False)
    rate.advance(104.0, busy=True)
    assert rate.per_s() == pytest.approx(50.0, rel=0.01)


def test_a_steady_rate_is_found_and_a_change_followed() -> None:
    rate = Rate(fade_s=2.0)
    now_s = 0.0
    for speed in (100.0, 10.0):
        for _ in range(100):
            rate.advance(now_s, busy=True)
            rate.add(speed / 10)
            now_s += 0.1
        rate.advance(now_s, busy=True)
        assert rate.per_s() == pytest.approx(speed, rel=0.15)


def test_what_is_long_ago_is_forgotten() -> None:
    rate = Rate(fade_s=2.0)
    rate.advance(0.0, busy=False)
    rate.add(100)
    rate.advance(5.0, busy=True)
    assert rate.per_s() is not None
    rate.advance(15.0, busy=False)
    assert rate.per_s() is None
