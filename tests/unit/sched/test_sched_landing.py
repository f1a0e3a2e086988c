"""Requests whose KV is fetched: reserve, land, resume, on decode and on prefill."""

from __future__ import annotations

import pytest

from common.base.errors import InvalidRequest
from common.sched.request import FinishReason, Status
from tests.support.fake_engine import next_token, reference_output
from tests.support.sched_rig import SchedulerRig, make_request


def test_a_reservation_names_what_is_here_and_what_is_to_fetch() -> None:
    rig = SchedulerRig()
    rig.add(make_request("before", range(8), max_tokens=1))
    rig.drain()
    request = make_request("a", range(14))
    reservation = rig.scheduler.reserve(request)
    assert reservation is not None
    assert (len(reservation.block_ids), reservation.num_cached_blocks) == (4, 2)
    assert request.status is Status.LANDING and request.num_cached_tokens == {"l1": 8}
    assert rig.scheduler.num_landing == 1
    assert rig.plan() is None, "a landing request takes no part in steps"


@pytest.mark.parametrize("num_tokens", [5, 8, 9])
def test_decode_goes_on_from_landed_blocks_and_the_first_token(num_tokens: int) -> None:
    rig = SchedulerRig()
    request = make_request("a", range(num_tokens))
    rig.scheduler.reserve(request)
    for num_blocks in range(1, len(request.block_table) + 1):
        rig.land(request, num_blocks)
    token = next_token(list(range(num_tokens)))
    assert rig.scheduler.resume("a", token, 5.0) is None
    assert rig.cache.match(request.chain.hashes) == num_tokens // 4
    assert request.first_token_s == 5.0
    steps = rig.drain()
    assert steps == [{"a": 1}] * 3, "only tokens after the first one are computed here"
    assert request.output_ids == reference_output(request.prompt_ids, request.params)


@pytest.mark.parametrize("num_landed", [0, 1, 2])
def test_what_has_not_landed_is_computed_here(num_landed: int) -> None:
    rig = SchedulerRig()
    request = make_request("a", range(12))
    rig.scheduler.reserve(request)
    if num_landed:
        rig.land(request, num_landed)
    rig.scheduler.resume("a", next_token(list(range(12))), 0.0)
    assert rig.step() == {"a": 13 - 4 * num_landed}
    rig.drain()
    assert request.output_ids == reference_output(request.prompt_ids, request.params)


def test_prefill_computes_on_after_fetching_and_draws_the_token_itself() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(12), max_tokens=1, keep_blocks=True)
    rig.scheduler.reserve(request)
    rig.land(request, 2)
    rig.scheduler.resume("a", None, 0.0)
    assert rig.drain() == [{"a": 4}]
    assert request.output_ids == [next_token(list(range(12)))]
    assert rig.cache.num_held == 3


def test_when_everything_landed_the_last_token_is_computed_in_a_block_nobody_shares() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(8))
    rig.scheduler.reserve(request)
    rig.land(request, 2)
    assert request.num_computed == 7
    assert rig.cache.match(request.chain.hashes) == 1
    rig.scheduler.resume("a", None, 0.0)
    assert rig.step() == {"a": 1}
    assert rig.cache.match(request.chain.hashes) == 2


def test_landed_blocks_are_found_by_others_at_once() -> None:
    rig = SchedulerRig()
    first = make_request("a", range(14))
    rig.scheduler.reserve(first)
    rig.land(first, 2)
    second = make_request("b", range(14))
    reservation = rig.scheduler.reserve(second)
    assert reservation is not None and reservation.num_cached_blocks == 2
    assert reservation.block_ids[:2] == tuple(first.block_table[:2])


def test_landing_is_contiguous_and_never_goes_back() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(14))
    rig.scheduler.reserve(request)
    rig.land(request, 3)
    rig.scheduler.landed("a", 1)
    assert (request.num_landed, request.num_computed) == (12, 12)
    rig.scheduler.landed("a", 4)
    assert (request.num_landed, request.num_computed) == (14, 13)
    with pytest.raises(AssertionError, match="5 of 4 blocks"):
        rig.scheduler.landed("a", 5)


def test_an_aborted_landing_keeps_what_landed_as_cached_prefix() -> None:
    rig = SchedulerRig()
    request = make_request("a", range(14))
    rig.scheduler.reserve(request)
    rig.land(request, 2)
    assert rig.scheduler.abort("a")
    assert (rig.cache.num_held, rig.cache.num_cached) == (0, 2)


def test_a_migrated_request_reserves_blocks_for_its_output_too() -> None:
    rig = SchedulerRig()
    whole = reference_output(range(6), make_request("x", max_tokens=9).params)
    request = make_request("a", range(6), max_tokens=9, output_ids=whole[:5])
    reservation = rig.scheduler.reserve(request)
    assert reservation is not None and len(reservation.block_ids) == 3
    rig.scheduler.resume("a", None, 0.0)
    rig.drain()
    assert request.output_ids == whole


@pytest.mark.parametrize(
    ("token", "sampling", "reason"),
    [(9, {"stop_token_ids": (9,)}, FinishReason.STOP), (9, {}, FinishReason.LENGTH)],
)
def test_a_first_token_that_ends_the_request_ends_it(token: int, sampling: dict[str, object], reason: str) -> None:
    rig = SchedulerRig()
    rig.scheduler.reserve(make_request("a", max_tokens=1, sampling=sampling))
    assert rig.scheduler.resume("a", token, 0.0) == reason
    assert rig.cache.num_held == 0 and rig.scheduler.get("a") is None


def test_reservations_are_bounded() -> None:
    rig = SchedulerRig(num_blocks=32, max_landing_blocks=4, max_num_seqs=3)
    assert rig.scheduler.reserve(make_request("big", range(40))) is not None, "one alone may be larger than the bound"
    assert rig.scheduler.reserve(make_request("b", range(50, 54))) is None
    rig.scheduler.abort("big")
    assert rig.scheduler.reserve(make_request("c", range(8))) is not None
    assert rig.scheduler.reserve(make_request("d", range(50, 59))) is None
    assert rig.scheduler.reserve(make_request("e", range(50, 58))) is not None
    rig.land(rig.scheduler.get("c"), 2)  # type: ignore[arg-type]
    assert rig.scheduler.reserve(make_request("f", range(60, 64))) is not None
    assert rig.scheduler.reserve(make_request("g")) is None, "no seat"


def test_reservations_leave_the_growth_reserve_alone() -> None:
    rig = SchedulerRig(num_blocks=8, growth_reserve_blocks=2)
    rig.add(make_request("a", range(8)))
    rig.step()
    assert rig.cache.num_available == 6
    assert rig.scheduler.reserve(make_request("b", range(50, 70))) is None
    assert rig.scheduler.reserve(make_request("c", range(50, 66))) is not None
    rig.drain()
    assert rig.scheduler.num_preemptions == 0


def test_impossible_reservations_are_typed_errors() -> None:
    rig = SchedulerRig(num_blocks=2)
    rig.scheduler.reserve(make_request("a"))
    with pytest.raises(InvalidRequest) as duplicate:
        rig.scheduler.reserve(make_request("a"))
    with pytest.raises(InvalidRequest) as long:
        rig.scheduler.reserve(make_request("b", range(9)))
    assert (duplicate.value.reason, long.value.reason) == ("duplicate_request", "prompt_too_long")
    with pytest.raises(AssertionError, match="must compute its whole prompt"):
        rig.scheduler.reserve(make_request("c", sampling={"prompt_logprobs": 1}))
