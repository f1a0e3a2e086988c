"""Who gets seats and blocks: order, head-of-line blocking, preemption, reservations that must not slip past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.sched.request import Request, Status
from tests.support.fake_engine import reference_output
from tests.support.sched_rig import SchedulerRig, make_request


def finished_right(*requests: Request) -> bool:
    """Tell whether the requests produced what they must."""
    return all(r.output_ids == reference_output(r.prompt_ids, r.params) for r in requests)


def test_seats_bound_who_runs() -> None:
    rig = SchedulerRig(max_num_seqs=2)
    rig.add(*[make_request(f"r{i}") for i in range(3)])
    rig.step()
    assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (2, 1)
    rig.drain()
    assert finished_right(*[u.request for u in rig.updates])


def test_budget_bounds_who_is_admitted() -> None:
    rig = SchedulerRig(num_blocks=64, max_num_seqs=8, max_batch_tokens=10, chunked_prefill_size=6)
    rig.add(*[make_request(f"r{i}", range(12)) for i in range(3)])
    assert rig.step() == {"r0": 6, "r1": 4}
    assert rig.scheduler.num_waiting == 1, "nobody holds blocks before a step has tokens for it"


def test_the_first_that_does_not_fit_blocks_those_behind_it() -> None:
    rig = SchedulerRig(num_blocks=8)
    rig.add(make_request("a", range(16)), make_request("big", range(20)), make_request("small"))
    assert set(rig.step()) == {"a"}
    assert rig.scheduler.num_waiting == 2
    order = [name for step in rig.drain() for name in step]
    assert order.index("big") < order.index("small")


def test_growth_reserve_keeps_room_for_running_requests() -> None:
    requests = [make_request(f"r{i}", range(10 * i, 10 * i + 8), max_tokens=8) for i in range(2)]
    rig = SchedulerRig(num_blocks=6, growth_reserve_blocks=3)
    rig.add(*requests)
    rig.step()
    assert rig.scheduler.num_running == 1
    rig.drain()
    assert rig.scheduler.num_preemptions == 0
    assert finished_right(*requests)


def test_when_blocks_run_short_the_last_in_rank_pays_and_comes_back() -> None:
    requests = [make_request(f"r{i}", range(10 * i, 10 * i + 8), max_tokens=12) for i in range(2)]
    rig = SchedulerRig(num_blocks=6)
    rig.add(*requests)
    rig.drain()
    assert [r.num_preemptions for r in requests] == [0, 1]
    assert rig.scheduler.num_preemptions == 1
    assert finished_right(*requests)
    assert rig.cache.num_held == 0


def test_high_priority_keeps_its_blocks_though_it_came_last() -> None:
    low = make_request("low", range(8), max_tokens=12, arrival_s=0.0)
    high = make_request("high", range(10, 18), max_tokens=12, arrival_s=1.0, priority=1)
    rig = SchedulerRig(num_blocks=6)
    rig.add(low, high)
    rig.drain()
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)
    assert finished_right(low, high)


def test_a_request_that_fills_the_pool_alone_ends_by_length() -> None:
    request = make_request("a", range(6), max_tokens=100)
    rig = SchedulerRig(num_blocks=2)
    rig.add(request)
    rig.drain()
    assert request.finish_reason == "length"
    assert request.num_tokens == 9, "8 tokens fit; the ninth is drawn, not computed"
    assert rig.scheduler.num_preemptions == 0


def test_a_preempted_request_without_its_blocks_waits_for_those_who_hold_them() -> None:
    rig = SchedulerRig(num_blocks=3)
    request = make_request("a", range(8), max_tokens=4)
    rig.add(request)
    rig.step()
    lent = rig.cache.allocate(1)
    assert lent is not None
    assert rig.plan() is None
    assert request.status is Status.PREEMPTED
    assert rig.plan() is None
    rig.cache.release(lent)
    rig.drain()
    assert finished_right(request)


def test_who_preempts_itself_alone_comes_back_in_the_same_step() -> None:
    """Its private copies of cached blocks fill the pool; given back and found again in the index, there is room."""
    rig = SchedulerRig(num_blocks=30, block_size=1, chunked_prefill_size=1)
    rig.add(make_request("a", [2] * 17, max_tokens=1, block_size=1))
    rig.drain()
    request = make_request("b", [2] * 17, max_tokens=2, block_size=1, sampling={"prompt_logprobs": 0})
    rig.add(request)
    rig.drain()
    assert request.num_preemptions == 1
    assert finished_right(request)


@pytest.mark.parametrize(("policy", "preempts"), [("fcfs", False), ("lpm", False), ("priority", True)])
def test_only_under_priority_a_waiting_request_takes_a_place(policy: str, preempts: bool) -> None:
    rig = SchedulerRig(max_num_seqs=1, policy=policy)
    low, high = make_request("low", max_tokens=6), make_request("high", arrival_s=1.0, priority=1)
    rig.add(low)
    rig.step()
    rig.add(high)
    rig.step()
    assert rig.scheduler.running_ids == (["high"] if preempts else ["low"])
    rig.drain()
    assert low.num_preemptions == int(preempts)
    assert finished_right(low, high)


def test_equal_priority_never_preempts() -> None:
    rig = SchedulerRig(max_num_seqs=1, policy="priority")
    first, second = make_request("a", priority=1), make_request("b", priority=1, arrival_s=1.0)
    rig.add(first, second)
    rig.drain()
    assert (first.num_preemptions, second.num_preemptions) == (0, 0)


def test_priority_preempts_for_blocks_as_far_as_needed() -> None:
    rig = SchedulerRig(num_blocks=9, policy="priority")
    lows = [make_request(f"low{i}", range(10 * i, 10 * i + 8), arrival_s=float(i)) for i in range(3)]
    rig.add(*lows)
    rig.step()
    high = make_request("high", range(50, 66), priority=1, arrival_s=9.0)
    rig.add(high)
    rig.step()
    assert [r.status for r in lows] == [Status.RUNNING, Status.PREEMPTED, Status.PREEMPTED]
    rig.drain()
    assert finished_right(*lows, high)


def test_lpm_admits_the_cached_prompt_first() -> None:
    rig = SchedulerRig(max_num_seqs=1, policy="lpm")
    rig.add(make_request("before", range(16)))
    rig.drain()
    cold, hot = make_request("cold", range(50, 66), arrival_s=1.0), make_request("hot", range(20), arrival_s=1.01)
    rig.add(cold, hot)
    rig.step()
    assert rig.scheduler.running_ids == ["hot"]
    rig.drain()
    assert hot.num_cached_tokens == {"l1": 16} and cold.num_cached_tokens == {}


@pytest.mark.parametrize("priority", [0, 1])
def test_a_reservation_does_not_slip_past_who_waits_for_room(priority: int) -> None:
    rig = SchedulerRig(num_blocks=8)
    running, stuck = make_request("running", range(20)), make_request("stuck", range(30, 50), arrival_s=1.0)
    rig.add(running, stuck)
    rig.step()
    newcomer = make_request("new", range(60, 64), arrival_s=2.0, priority=priority)
    assert (rig.scheduler.reserve(newcomer) is not None) == (priority == 1)
    rig.scheduler.abort("new")
    rig.scheduler.abort("stuck")
    assert rig.scheduler.reserve(make_request("newer", range(60, 64))) is not None


def test_a_seat_that_becomes_free_is_not_taken_from_who_waits_for_it() -> None:
    rig = SchedulerRig(max_num_seqs=1)
    rig.add(make_request("a", max_tokens=2), make_request("b"))
    rig.step()
    rig.step()
    assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (0, 1)
    assert rig.scheduler.reserve(make_request("c")) is None
    rig.scheduler.abort("b")
    assert rig.scheduler.reserve(make_request("c")) is not None


def test_who_waits_for_its_kv_keeps_no_seat_from_others() -> None:
    rig = SchedulerRig(max_num_seqs=1)
    rig.add(make_request("a", max_tokens=2), fetching := make_request("b"))
    fetching.awaits_kv = True
    rig.step()
    rig.step()
    assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (0, 1)
    assert rig.scheduler.reserve(make_request("c")) is not None


def test_a_smaller_seat_limit_lets_the_surplus_leave_by_itself() -> None:
    rig = SchedulerRig(max_num_seqs=3)
    requests = [make_request(f"r{i}", max_tokens=3 + i) for i in range(3)]
    rig.add(*requests)
    rig.step()
    rig.scheduler.configure(replace(rig.scheduler.config, max_num_seqs=1))
    assert rig.step() == {"r0": 1}
    rig.drain()
    assert finished_right(*requests)


def test_who_shares_a_prefix_that_is_computed_now_waits_for_it_and_others_pass() -> None:
    rig = SchedulerRig(
        num_blocks=64, max_batch_tokens=8, chunked_prefill_size=8, max_num_seqs=4, shared_prefill_min_tokens=8
    )
    shared = list(range(100, 116))
    rig.add(
        make_request("first", [*shared, 1], max_tokens=9),
        make_request("same", [*shared, 2], max_tokens=1),
        make_request("other", [7, 8], max_tokens=1),
    )
    assert rig.step() == {"first": 8}, "the rest of its own prompt is more than a step: nobody else comes in"
    assert rig.step() == {"first": 8}
    assert rig.step() == {"first": 1, "same": 1, "other": 2}, "what was shared is here"
    assert rig.scheduler.get("same") is None


@pytest.mark.parametrize("change", [{"shared_prefill_min_tokens": 17}, {"prefix": 7}, {"priority": 1}])
def test_little_to_share_or_a_lower_rank_keeps_nobody_waiting(change: dict[str, int]) -> None:
    minimum = change.get("shared_prefill_min_tokens", 8)
    rig = SchedulerRig(num_blocks=64, max_batch_tokens=64, shared_prefill_min_tokens=minimum)
    shared = list(range(100, 116))
    rig.add(
        make_request("first", [*shared, 1]),
        make_request("same", [*shared[: change.get("prefix", 16)], 2], priority=change.get("priority", 0)),
    )
    assert set(rig.step()) == {"first", "same"}


def test_when_the_one_who_computes_a_shared_prefix_leaves_the_next_goes_on_with_it() -> None:
    rig = SchedulerRig(
        num_blocks=64, max_batch_tokens=8, chunked_prefill_size=8, max_num_seqs=4, shared_prefill_min_tokens=8
    )
    shared = list(range(100, 124))
    rig.add(*(make_request(name, [*shared, number]) for number, name in enumerate(("first", "second", "third"))))
    assert rig.step() == {"first": 8}
    rig.scheduler.abort("first")
    assert rig.step() == {"second": 8}, "eight tokens of the shared prefix are here, and second computes eight more"
    assert rig.step() == {"second": 8}
    assert rig.step() == {"second": 1, "third": 1}
