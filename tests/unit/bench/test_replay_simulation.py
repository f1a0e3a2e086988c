"""Whole replays of tiny traces: exact times, nothing lost, the router's own decisions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from bench.replay.fleet import FleetShape, build_fleet
from bench.replay.job import WorkerShape
from bench.replay.options import NEVER
from bench.replay.simulation import Record, Simulation
from bench.replay.times import ServiceTimes
from bench.replay.trace import TraceRequest, highest_reuse
from services.router.planner import Planner, PlannerConfig

TIMES = ServiceTimes(
    prefill_base_ms=10,
    prefill_token_ms=1,
    prefill_token2_ms=0,
    decode_base_ms=2,
    decode_fill_ms=0,
    decode_fill2_ms=0,
    transfer_base_ms=5,
    transfer_token_ms=0.4,
)
"""A step: 10 ms + 1 ms a prompt token, + 2 ms if anybody decodes. A transfer: 5 ms + 0.4 ms a token."""


def fleet(unified: int = 0, prefill: int = 0, decode: int = 0, *, num_blocks: int = 1000) -> FleetShape:
    worker = WorkerShape(num_blocks=num_blocks, block_size=10, max_step_tokens=100, times=TIMES)
    return FleetShape(unified, prefill, decode, event_delay_s=0.0, worker=worker)


def request(arrival_s: float, num_input: int, num_output: int, path: str) -> TraceRequest:
    """A prompt; its path has a letter per full block."""
    return TraceRequest(arrival_s, num_input, num_output, tuple(path[: end + 1].encode() for end in range(len(path))))


def replay(
    trace: Sequence[TraceRequest], shape: FleetShape, policy: str = "prefix", num_routers: int = 1, seed: int = 0
) -> tuple[Simulation, list[Record]]:
    least = 1 if shape.num_prefill else NEVER
    config = PlannerConfig(policy=policy, remote_prefill_min_tokens=least, max_sources=0, min_match_tokens=1)
    routers = [Planner(config, seed) for _ in range(num_routers)]
    simulation = Simulation(trace, shape, routers, expected_output_tokens=10)
    records = simulation.run()
    assert not any(router.num_running for router in routers), "a placement was not released"
    for member in simulation.members:
        cache = member.worker.cache
        assert cache.num_held == 0
        assert cache.num_free + cache.num_cached == cache.num_blocks
    return simulation, records


def ms(record: Record) -> tuple[int, int]:
    """(TTFT, e2e) in ms."""
    assert record.first_token_s is not None and record.end_s is not None
    return round(1000 * (record.first_token_s - record.arrival_s)), round(1000 * (record.end_s - record.arrival_s))


def test_times_on_one_worker() -> None:
    trace = [request(0, 25, 3, "ab"), request(1, 25, 1, "ab"), request(1, 35, 1, "abc")]
    _, records = replay(trace, fleet(unified=1))
    assert ms(records[0]) == (35, 39)
    # The two that come together run in one step: 5 and 15 tokens are not cached.
    assert [ms(one) for one in records[1:]] == [(30, 30), (30, 30)]
    assert [one.num_cached for one in records] == [0, 20, 20]


def test_prefill_and_decode_apart() -> None:
    trace = [request(0, 25, 3, "ab"), request(1, 25, 2, "ab"), request(2, 150, 1, "cdefghijklmnopq")]
    _, records = replay(trace, fleet(prefill=1, decode=1))
    # 35 ms of prefill with the first token, 5 + 10 ms of transfer, two steps of 2 ms
    assert ms(records[0]) == (35, 54)
    # 5 tokens are not cached on prefill; decode lacks 5 tokens too
    assert ms(records[1]) == (15, 24)
    # one token: decode is never asked; chunks of 100 and 50
    assert ms(records[2]) == (170, 170)
    assert [one.worker for one in records] == [0, 0, 0]
    assert [one.num_cached for one in records] == [0, 20, 0]


def test_decode_lends_what_prefill_lacks() -> None:
    shape = fleet(prefill=1, decode=1)
    first = request(0, 40, 2, "abcd")
    trace = [first, *(request(1 + i / 10, 990, 1, chr(0x100 + i) * 99) for i in range(11)), request(20, 40, 2, "abcd")]
    simulation, records = replay(trace, shape)
    assert simulation.members[0].worker.cache.match(first.hashes) == 4, "it has them again"
    # The prefill worker's cache holds 1,000 blocks and got 1,089 others meanwhile: 30 tokens come from decode.
    assert records[-1].num_cached == 30
    assert ms(records[-1])[0] == 5 + 12 + 10 + 10


def test_without_bounds_one_worker_reuses_all_there_is() -> None:
    trace = random_trace(3, 120)
    apart = [TraceRequest(50.0 * i, one.num_input_tokens, 1, one.hashes) for i, one in enumerate(trace)]
    _, records = replay(apart, fleet(unified=1, num_blocks=100_000))
    reuse = sum(one.num_cached for one in records) / sum(one.num_input_tokens for one in records)
    assert reuse == highest_reuse(apart, 10) > 0.3
    _, records = replay(apart, fleet(unified=1, num_blocks=30))
    assert sum(one.num_cached for one in records) / sum(one.num_input_tokens for one in records) < 0.7 * reuse


def random_trace(seed: int, num_requests: int) -> list[TraceRequest]:
    """Prompts that share heads, in bursts."""
    random = Random(seed)
    made = []
    for number in range(num_requests):
        path = "".join(random.choice("ab") for _ in range(random.randint(1, 12)))
        made.append(request(number // 4 * 0.2, len(path) * 10 + random.randint(1, 9), random.randint(1, 30), path))
    return made


@pytest.mark.parametrize("policy", ["prefix", "round_robin", "least_loaded", "random"])
@pytest.mark.parametrize("shape", [fleet(unified=3), fleet(prefill=2, decode=2)], ids=["unified", "apart"])
def test_every_request_ends_once_and_a_replay_can_be_repeated(policy: str, shape: FleetShape) -> None:
    trace = random_trace(1, 60)
    _, records = replay(trace, shape, policy)
    assert [one.arrival_s for one in records] == [one.arrival_s for one in trace]
    for one in records:
        assert one.first_token_s is not None and one.end_s is not None
        assert one.arrival_s < one.first_token_s <= one.end_s
        assert 0 <= one.num_cached < one.num_input_tokens
    assert replay(trace, shape, policy)[1] == records


def test_the_policy_finds_more_than_round_robin() -> None:
    trace = random_trace(2, 120)
    cached = [
        sum(one.num_cached for one in replay(trace, fleet(unified=3), policy)[1]) for policy in ("prefix", "random")
    ]
    assert cached[0] > 1.1 * cached[1]


def test_several_routers_share_a_fleet() -> None:
    trace = random_trace(4, 80)
    _, records = replay(trace, fleet(unified=2), num_routers=3)
    assert all(one.end_s for one in records)
    assert {one.worker for one in records} == {0, 1}


def test_a_prompt_that_no_worker_can_hold_is_rejected() -> None:
    trace = [request(0, 200, 1, "abcdefghij" * 2), request(0, 20, 1, "xy")]
    _, records = replay(trace, fleet(unified=1, num_blocks=10))
    assert [(one.worker, one.end_s is None) for one in records] == [(-1, True), (0, False)]


def test_a_fleet_needs_a_decoder() -> None:
    with pytest.raises(ValueError, match="decodes"):
        build_fleet(fleet(prefill=2))
