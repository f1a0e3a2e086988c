"""The waiting queue: order under each policy, token count, and that lpm starves nobody."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common.sched.config import Policy, SchedulerConfig
from common.sched.policy import LPM_WINDOW, WaitingQueue
from common.sched.request import Request
from tests.support.sched_rig import make_request


def no_match(hashes: Sequence[bytes]) -> int:
    """An empty cache."""
    return 0


def full_match(hashes: Sequence[bytes]) -> int:
    """A cache that has everything."""
    return len(hashes)


def queue_of(*requests: Request) -> WaitingQueue:
    """A queue to which requests came in the order given."""
    queue = WaitingQueue()
    for order, request in enumerate(requests):
        request.order = order
        queue.add(request)
    return queue


def names(queue: WaitingQueue, policy: Policy, count: int = 99, ageing: float = 10.0, match=no_match) -> list[str]:  # type: ignore[no-untyped-def]
    """Ids in the order of a policy."""
    config = SchedulerConfig(block_size=4, policy=policy, lpm_ageing_tokens_per_s=ageing)
    return [r.request_id for r in queue.next(count, config, match)]


def test_fcfs_goes_by_arrival_then_order() -> None:
    queue = queue_of(
        make_request("b", arrival_s=2.0), make_request("a", arrival_s=1.0), make_request("c", arrival_s=2.0)
    )
    assert names(queue, Policy.FCFS) == ["a", "b", "c"]
    assert names(queue, Policy.FCFS, count=2) == ["a", "b"]
    assert [r.request_id for r in queue] == ["a", "b", "c"]


def test_priority_goes_first_then_arrival() -> None:
    queue = queue_of(
        make_request("low", arrival_s=0.0, priority=-1),
        make_request("mid", arrival_s=1.0),
        make_request("top", arrival_s=2.0, priority=5),
        make_request("mid2", arrival_s=3.0),
    )
    assert names(queue, Policy.PRIORITY) == ["top", "mid", "mid2", "low"]
    assert names(queue, Policy.PRIORITY, count=1) == ["top"]
    assert names(queue, Policy.FCFS)[0] == "low"


def test_lpm_puts_the_longest_match_first() -> None:
    queue = queue_of(make_request("short", range(8), arrival_s=1.0), make_request("long", range(60), arrival_s=1.0))
    assert names(queue, Policy.LPM, match=full_match) == ["long", "short"]
    assert names(queue, Policy.LPM, match=no_match) == ["short", "long"]


def test_a_second_of_waiting_counts_as_so_many_tokens_under_lpm() -> None:
    queue = queue_of(make_request("old", range(3), arrival_s=0.0), make_request("hit", range(41), arrival_s=3.9))
    assert names(queue, Policy.LPM, ageing=10.0, match=full_match) == ["hit", "old"]
    assert names(queue, Policy.LPM, ageing=11.0, match=full_match) == ["old", "hit"]


@pytest.mark.parametrize(("ageing", "starves"), [(10.0, False), (1e-6, True)])
def test_lpm_starves_nobody_thanks_to_ageing(ageing: float, starves: bool) -> None:
    """Better matches keep coming, one a second; without ageing the old request never gets its turn."""
    queue = queue_of(make_request("old", range(3), arrival_s=0.0))
    config = SchedulerConfig(block_size=4, policy=Policy.LPM, lpm_ageing_tokens_per_s=ageing)
    admitted: list[str] = []
    for second in range(1, 100):
        newcomer = make_request(f"n{second}", range(101), arrival_s=float(second))
        newcomer.order = second
        queue.add(newcomer)
        [first] = queue.next(1, config, full_match)
        queue.remove(first)
        admitted.append(first.request_id)
    assert ("old" not in admitted) == starves
    if not starves:
        assert admitted.index("old") <= 100 / ageing + 1


def test_lpm_looks_at_a_bounded_number_of_requests() -> None:
    calls: list[int] = []

    def match(hashes: Sequence[bytes]) -> int:
        calls.append(1)
        return len(hashes)

    requests = [make_request(f"r{i}", range(5), arrival_s=float(i)) for i in range(3 * LPM_WINDOW)]
    assert len(names(queue_of(*requests), Policy.LPM, match=match)) == LPM_WINDOW
    assert len(calls) == LPM_WINDOW


def test_tokens_are_counted() -> None:
    first, second = make_request("a", range(5)), make_request("b", range(7), output_ids=[1])
    queue = queue_of(first, second)
    assert (len(queue), queue.num_tokens) == (2, 13)
    queue.remove(first)
    assert (len(queue), queue.num_tokens) == (1, 8)
