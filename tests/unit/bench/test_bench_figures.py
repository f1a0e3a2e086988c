"""The arithmetic of bench/serve.py and the workloads it sends."""

from __future__ import annotations

import math

import pytest

from bench.openai_stream import Sample
from bench.percentile import percentile
from bench.serve import report, summarise
from bench.workloads import WORKLOADS, Shape, make_workload


def sample(turn: int = 0, error: str = "") -> Sample:
    """Text after 2, 3 and 5 seconds, the end after 6; 5 tokens."""
    chunks = [12.0, 13.0, 15.0]
    return Sample(turn, 10.0, 16.0, chunks, "abc", 100, 5, 48, error)


def test_times_of_a_request() -> None:
    one = sample()
    assert (one.ttft_s, one.e2e_s, one.itl_s) == (2.0, 6.0, [1.0, 2.0])
    assert one.tpot_s == (6.0 - 2.0) / 4
    one.num_output_tokens = 1
    assert one.tpot_s is None


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (75, 3.0), (90, 4.0), (99, 4.0), (1, 1.0)])
def test_percentiles_are_nearest_rank(percent: float, value: float) -> None:
    assert percentile([4.0, 2.0, 1.0, 3.0], percent) == value
    assert math.isnan(percentile([], percent))


def test_failed_requests_count_as_failed_and_nowhere_else() -> None:
    row = summarise([sample(), sample(error="no")], elapsed_s=2.0)
    assert (row["requests"], row["failed"], row["output_tokens"], row["prompt_tokens"]) == (2, 1, 5, 100)
    assert (row["requests_per_s"], row["output_tokens_per_s"], row["cached_tokens"]) == (0.5, 2.5, 48)
    assert row["itl_ms"] == {"p50": 1000.0, "p90": 2000.0, "p99": 2000.0}


def test_conversations_are_reported_per_turn() -> None:
    one = report("multi-turn", [sample(0), sample(1), sample(1, "gone")], 1.0)
    assert [row["requests"] for row in one["turns"]] == [1, 2]
    assert one["errors"] == ["gone"] and report("cold", [sample()], 1.0)["turns"] == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_for_the_same_seed_only(name: str) -> None:
    shape = Shape(requests=12, input_words=20, turns=3, turn_words=4)
    made = make_workload(name, shape)
    assert make_workload(name, shape) == made != make_workload(name, Shape(12, 20, 3, 4, seed=1))
    assert sum(len(conversation.turns) for conversation in made) == 12
    firsts = [f"{one.system} {one.turns[0]}".strip() for one in made]
    assert len(set(firsts)) == len(firsts) and all(len(first.split()) == 20 for first in firsts)


def test_shared_prefix_shares_most_of_the_prompt() -> None:
    made = make_workload("shared-prefix", Shape(requests=4, input_words=20))
    assert {one.system for one in made} == {made[0].system} and len(made[0].system.split()) == 18


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="warm"):
        make_workload("warm", Shape())
