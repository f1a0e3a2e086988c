"""The budget of retries: what a burst may take, and what comes back with requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.budget import RetryBudget


def test_a_burst_may_be_spent_and_then_nothing() -> None:
    budget = RetryBudget(0.5, 3)
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    budget.request()
    assert not budget.take()
    budget.request()
    assert budget.num_left == 1 and budget.take() and not budget.take()


def test_it_saves_no_more_than_its_burst() -> None:
    budget = RetryBudget(1.0, 2)
    for _ in range(50):
        budget.request()
    assert budget.num_left == 2


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 4), st.integers(1, 9))
def test_retries_are_never_more_than_a_share_of_the_requests_and_one_burst(
    steps: list[bool], quarters: int, burst: int
) -> None:
    share = quarters / 4
    budget = RetryBudget(share, burst)
    num_requests = num_retries = 0
    for is_request in steps:
        if is_request:
            budget.request()
            num_requests += 1
        else:
            num_retries += budget.take()
        assert num_retries <= share * num_requests + burst
