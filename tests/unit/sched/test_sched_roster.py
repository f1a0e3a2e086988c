"""The roster: one place per request, and blocks that follow it."""

from __future__ import annotations

import pytest

from common.kv.block_cache import BlockCache
from common.sched.config import SchedulerConfig
from common.sched.request import FinishReason, Request, Status
from common.sched.roster import Roster
from common.sched.tables import BlockTables
from common.sched.tiering import NothingBelow
from tests.support.sched_rig import make_request

CONFIG = SchedulerConfig(block_size=4)


class Rig:
    """A roster over eight blocks."""

    def __init__(self) -> None:
        self.cache = BlockCache(8)
        self.tables = BlockTables(self.cache, NothingBelow())
        self.roster = Roster(self.tables)

    def run(self, name: str, **fields: object) -> Request:
        """A running request with its block."""
        request = make_request(name, **fields)  # type: ignore[arg-type]
        self.roster.wait(request)
        assert self.tables.open(request, CONFIG, idle=True)
        self.roster.run(request)
        self.roster.check()
        return request


def test_running_requests_are_sorted_by_rank() -> None:
    rig = Rig()
    for name, priority, arrival_s in (("a", 0, 2.0), ("b", 0, 1.0), ("c", 1, 3.0)):
        rig.run(name, priority=priority, arrival_s=arrival_s)
    assert [r.request_id for r in rig.roster.running] == ["c", "b", "a"]


def test_preemption_gives_blocks_back_and_waits() -> None:
    rig = Rig()
    request = rig.run("a")
    rig.roster.preempt(request)
    rig.roster.check()
    assert request.status is Status.PREEMPTED and request.num_computed == 0
    assert (request.num_preemptions, rig.roster.num_preemptions) == (1, 1)
    assert (rig.cache.num_held, len(rig.roster.waiting), rig.roster.num_seated) == (0, 1, 0)


def test_landing_counts_as_a_seat_and_its_blocks_as_unlanded() -> None:
    rig = Rig()
    request = make_request("a", range(9))
    rig.tables.open(request, CONFIG, idle=True)
    rig.roster.land(request)
    assert (rig.roster.num_seated, rig.roster.num_unlanded_blocks) == (1, 3)
    request.num_landed = 4
    assert rig.roster.num_unlanded_blocks == 2
    rig.roster.run(request)
    assert rig.roster.num_unlanded_blocks == 0 and not rig.roster.landing
    rig.roster.check()


@pytest.mark.parametrize("reason", list(FinishReason))
@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_blocks_go_back_when_nobody_uses_them(reason: FinishReason, in_flight: bool, keep: bool) -> None:
    rig = Rig()
    request = rig.run("a", keep_blocks=keep)
    request.in_flight = in_flight
    rig.roster.end(request, reason)
    rig.roster.check()
    kept = keep and reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert rig.cache.num_held == int(kept or in_flight)
    assert (rig.roster.get("a") is request) == (kept or in_flight)
    request.in_flight = request.keep_blocks = False
    if kept or in_flight:
        rig.roster.forget_if_unused(request)
    assert rig.cache.num_held == 0 and rig.roster.get("a") is None
    assert request.finish_reason is reason


def test_a_stop_token_ends_a_request() -> None:
    rig = Rig()
    request = rig.run("a", sampling={"stop_token_ids": (9,)})
    request.append(8)
    assert rig.roster.end_if_due(request, 100) is None
    request.append(9)
    assert rig.roster.end_if_due(request, 100) is FinishReason.STOP
    assert request.status is Status.FINISHED


def test_what_is_too_long_ends_well_only_with_output() -> None:
    rig = Rig()
    fine, bare, grown = make_request("f", range(3)), make_request("b", range(5)), make_request("g", range(5))
    grown.append(1)
    for request in (fine, bare, grown):
        rig.roster.wait(request)
    assert not rig.roster.end_if_impossible(fine, 5)
    assert rig.roster.end_if_impossible(bare, 5) and rig.roster.end_if_impossible(grown, 5)
    assert (bare.finish_reason, grown.finish_reason) == (FinishReason.ERROR, FinishReason.LENGTH)
    assert "5 tokens leave no room" in bare.error and not grown.error


def test_misuse_is_an_assert() -> None:
    rig = Rig()
    request = rig.run("a")
    with pytest.raises(AssertionError, match="a is known"):
        rig.roster.wait(make_request("a"))
    with pytest.raises(AssertionError, match="is running"):
        rig.roster.forget_if_unused(request)
    rig.roster.end(request, FinishReason.ABORT)
    with pytest.raises(AssertionError, match="has ended"):
        rig.roster.end(request, FinishReason.ABORT)
    with pytest.raises(AssertionError, match="is finished"):
        rig.roster.wait(request)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda rig: rig.roster.running.reverse(), "out of order"),
        (lambda rig: setattr(rig.roster.waiting, "num_tokens", 1), "tokens wait"),
        (lambda rig: rig.roster.running.pop(), "are known"),
        (lambda rig: setattr(rig.roster.running[0], "num_computed", 3), "3 of 3 tokens"),
        (lambda rig: rig.roster.running[0].block_table.clear(), "0 blocks of 1"),
        (lambda rig: next(iter(rig.roster.waiting)).block_table.append(1), "has blocks"),
    ],
)
def test_check_notices_damage(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    rig = Rig()
    rig.run("a").num_computed = 1
    rig.run("b")
    rig.roster.wait(make_request("w"))
    rig.roster.check()
    damage(rig)
    with pytest.raises(AssertionError, match=message):
        rig.roster.check()
