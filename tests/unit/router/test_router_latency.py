"""Percentiles of recent samples: old ones do not count, few say nothing, and there is a bound."""

from __future__ import annotations

from services.router.latency import MAX_SAMPLES, MIN_SAMPLES, RecentLatency


def test_few_samples_say_nothing() -> None:
    recent = RecentLatency(30.0)
    for index in range(MIN_SAMPLES):
        assert recent.percentile(0.9, 0.0) is None
        recent.add(0.0, float(index))
    assert recent.percentile(0.9, 0.0) == MIN_SAMPLES - 1
    assert recent.percentile(0.0, 0.0) == 0.0


def test_a_percentile_is_not_exceeded_by_its_share() -> None:
    recent = RecentLatency(30.0)
    for value in range(100, 0, -1):
        recent.add(0.0, float(value))
    assert recent.percentile(0.9, 0.0) == 91.0
    assert recent.percentile(1.0, 0.0) == 100.0


def test_old_samples_do_not_count() -> None:
    recent = RecentLatency(30.0)
    for now_s in range(100):
        recent.add(float(now_s), 9.0 if now_s < 60 else 1.0)
    assert recent.percentile(0.9, 62.0) == 9.0
    assert recent.percentile(0.9, 99.0) == 1.0
    assert recent.percentile(0.9, 1000.0) is None


def test_samples_are_bounded() -> None:
    recent = RecentLatency(1e9)
    for index in range(MAX_SAMPLES + 10):
        recent.add(0.0, float(index))
    assert recent.percentile(0.0, 0.0) == 10.0
