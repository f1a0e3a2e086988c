"""The arithmetic of bench/tiers.py and the order in which its variants take turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tier_lanes import BLOCK, Answer, Lane, Shape, rotated
from bench.tiers import Plan, compare, lines


def lane(name: str, ttft_s: float, found: int) -> Lane:
    """Two requests of 100 tokens, of which `found` were in L2."""
    hits = {"l1": 0, "l2": found, "l3": 0}
    return Lane(name, {}, [Answer(ttft_s, (1,), 100, hits), Answer(3 * ttft_s, (1,), 100, hits)])


def test_ratios_are_those_of_means_and_of_computed_tokens() -> None:
    row = compare(lane("both", 0.1, 75), lane("small", 0.4, 0), 0.6)
    assert row["ratio"] == pytest.approx(0.25) and row["computed_ratio"] == 0.25
    assert (row["ttft_ms"], row["against_ttft_ms"]) == (pytest.approx(200), pytest.approx(800))
    assert (row["requests"], row["prompt_tokens"], row["hit_tokens"]) == (2, 200, {"l1": 0, "l2": 150, "l3": 0})


@pytest.mark.parametrize(("target", "said"), [(0.6, "target 0.6, met"), (0.2, "target 0.2, MISSED"), (None, "")])
def test_a_row_says_whether_the_target_was_met_and_where_tokens_were_found(target: float | None, said: str) -> None:
    row = compare(lane("both", 0.1, 75), lane("small", 0.4, 0), target)
    first, second = lines(row | {"cpu_ratio": 0.3, "l2_moves": {"saved": 4, "loaded": 3}, "l2_also_in_l1": 0.5})
    assert "both / small: TTFT 200 / 800 ms = 0.25" in first and said in first and ("target" in first) == bool(said)
    assert "2 requests found l1 0 %, l2 75 %, l3 0 %; 4 blocks down, 3 up, 50 % of L2 also in L1" in second


def test_errors_of_both_sides_are_kept() -> None:
    one, other = lane("a", 1, 0), lane("b", 1, 0)
    one.errors.append("x")
    other.errors.append("y")
    assert compare(one, other, None)["errors"] == ["x", "y"]


def test_lanes_take_turns_to_begin() -> None:
    lanes = [lane(name, 1, 0) for name in "abc"]
    assert ["".join(one.name for one in rotated(lanes, number)) for number in range(4)] == ["abc", "bca", "cab", "abc"]


def test_the_conversations_are_four_times_l1() -> None:
    plan = Plan(Path("model"))
    assert Shape(2, 3, 64, 32).total_tokens == 2 * (64 + 32 + 32)
    assert plan.l1_tokens % BLOCK == 0
    assert 4 * plan.l1_tokens <= plan.shape.total_tokens < 4 * (plan.l1_tokens + BLOCK)
