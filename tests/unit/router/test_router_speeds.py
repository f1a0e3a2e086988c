"""Measured speeds: one line for all, equal workers stay equal, a slow one shows and gets another try."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.speeds import DEFAULT_STEP_S, DEFAULT_TOKEN_S, FADE_S, REFRESH_S, Line, Pace, Speeds

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def test_a_line_is_found_and_its_parts_are_never_negative() -> None:
    line = Line(origin_weight=0.0, least_spread=0.0)
    for x in (10, 500, 100, 2000, 30, 700):
        line.observe(x, 0.05 + x / 1000)
    assert line.fit() == (pytest.approx(0.05), pytest.approx(0.001))
    falling = Line(origin_weight=0.0, least_spread=0.5)
    for x in (1, 2, 3):
        falling.observe(x, 10 - x)
    assert falling.fit() == (pytest.approx(8.0), 0.0)


def test_points_that_hardly_differ_are_taken_to_be_proportional() -> None:
    """Prompts of about one length, with noise that would make a line through them fall."""
    line = Line(origin_weight=0.2, least_spread=0.0)
    for x, y in ((240, 3.1), (250, 2.6), (376, 2.9), (245, 3.3), (238, 3.0)):
        line.observe(x, y)
    intercept, slope = line.fit()
    assert intercept < 1.5 and 0.3 * 3.0 / 270 < slope < 3.0 / 270
    flat = Line(origin_weight=0.0, least_spread=0.5)
    for y in (0.01, 0.02):
        flat.observe(0, y)
    assert flat.fit() == (pytest.approx(0.015), 0.0)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(1e-6, 1e3)), min_size=1), st.sampled_from([0.0, 0.2]))
def test_any_points_give_a_usable_line(points: list[tuple[float, float]], origin_weight: float) -> None:
    line = Line(origin_weight, least_spread=0.5)
    for x, y in points:
        line.observe(x, y)
    intercept, slope = line.fit()
    assert intercept >= -1e-9 and slope >= 0


def test_before_anything_is_measured_the_workers_word_counts_then_constants() -> None:
    speeds = Speeds(30.0)
    assert speeds.pace(A, 0.0) == Pace(0.0, DEFAULT_TOKEN_S, DEFAULT_STEP_S)
    speeds.reported(A, 2000.0)
    speeds.reported(B, 0.0)
    assert speeds.pace(B, 1.0).token_s == 1 / 2000


def test_equal_workers_stay_equal_however_noisy() -> None:
    speeds, noise = Speeds(30.0), Random(1)
    for number in range(60):
        speeds.first_token((A, B)[number % 2], 100, 0.1 * noise.uniform(0.8, 1.25), float(number))
    assert speeds.pace(A, 100.0) == speeds.pace(B, 100.0)


def test_a_slow_worker_shows_and_its_bad_name_fades() -> None:
    speeds = Speeds(half_life_s=30.0)
    for number in range(20):
        speeds.first_token(A, 100 + number, 0.1, float(number))
        speeds.first_token(B, 100 + number, 0.4, float(number))
        speeds.step(A, 1, 0.01, float(number))
        speeds.step(B, 1, 0.05, float(number))
    fast, slow = speeds.pace(A, 20.0), speeds.pace(B, 20.0)
    assert slow.start_s + 100 * slow.token_s == pytest.approx(4 * (fast.start_s + 100 * fast.token_s), rel=0.1)
    assert slow.step_s == pytest.approx(5 * fast.step_s, rel=0.15)
    later = speeds.pace(B, 20.0 + 30)
    assert later.step_s == pytest.approx(3 * fast.step_s, rel=0.15)
    speeds.forget(B)
    assert speeds.pace(B, 60.0) == speeds.pace(C, 60.0), "nothing is known of it any more"


def test_news_is_worked_in_at_most_every_so_often_and_once_settled_nobody_waits_for_it() -> None:
    speeds = Speeds(30.0)
    speeds.first_token(A, 100, 1.0, 1.0)
    speeds.settle(1.0)
    known = speeds.pace(A, 1.0)
    assert known.start_s + 100 * known.token_s == pytest.approx(1.0, rel=0.1)
    speeds.first_token(A, 100, 2.0, 1.01)
    assert speeds.pace(A, 1.01 + REFRESH_S / 2) is known
    assert speeds.pace(A, 1.01 + REFRESH_S) is not known
    known = speeds.pace(A, 1.2)
    assert speeds.pace(A, 1.2 + FADE_S / 2) is known, "no news"
    assert speeds.pace(A, 1.2 + FADE_S) is not known, "what is old counts less"


def test_gaps_grow_with_company() -> None:
    speeds = Speeds(30.0)
    for number in range(1, 30):
        speeds.step(A, 1 + number % 8, 0.01 + 0.002 * (number % 8), float(number))
    pace = speeds.pace(A, 50.0)
    assert (pace.step_s, pace.request_s) == (pytest.approx(0.01, rel=0.1), pytest.approx(0.002, rel=0.1))
