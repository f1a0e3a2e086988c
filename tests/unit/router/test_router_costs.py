"""What a prompt costs others on its worker."""

from __future__ import annotations

import pytest

from services.router.costs import Situation, Standing, price_prompt
from services.router.load import Load
from services.router.policy import Candidate, Quote, Task
from services.router.speeds import Pace

TASK = Task(hashes=[], num_tokens=1000, block_size=16, expected_output_tokens=10)
PACE = Pace(start_s=0.5, token_s=0.001)


def quote(num_generating: int, disturbed_ratio: float) -> Quote:
    """The price on a worker that generates for so many and holds 200 tokens of the prompt."""
    candidate = Candidate(("w", 1), "w", can_decode=True, can_prefill=True)
    load = Load(num_generating=num_generating, num_charges=num_generating)
    standing = Standing(candidate, load, PACE, held_tokens=200, num_blocks=12, below_tokens=0, landing=False)
    situation = Situation(
        task=TASK,
        standings=[standing],
        longest_tokens=0,
        curve=None,
        busy_ratio=0.0,
        now_s=0.0,
        min_match_tokens=64,
        horizon_tokens=16,
        disturbed_ratio=disturbed_ratio,
    )
    return price_prompt(situation, standing)


def test_a_prompt_counts_for_everybody_whose_tokens_it_delays() -> None:
    prefill_s = 0.5 + 800 * 0.001
    assert quote(0, 0.1).effort_s == 0.0
    assert quote(3, 0.1).effort_s == pytest.approx(0.1 * 3 * prefill_s)
    assert quote(3, 0.0).effort_s == 0.0
    assert quote(3, 0.1).total_s == pytest.approx(quote(0, 0.1).total_s + 0.1 * 3 * prefill_s)
    assert quote(3, 0.1).first_token_s == quote(0, 0.1).first_token_s == pytest.approx(prefill_s)
