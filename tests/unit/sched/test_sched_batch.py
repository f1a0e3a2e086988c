"""Sharing out a step's budget and writing it down."""

from __future__ import annotations

import pytest

from common.sched.batch import demand, share_out, to_steps
from common.sched.config import SchedulerConfig
from common.sched.request import Request
from tests.support.sched_rig import make_request


def running(name: str, num_tokens: int, num_computed: int = 0, **fields: object) -> Request:
    """A request with blocks for its tokens, the first `num_computed` done."""
    request = make_request(name, range(num_tokens), **fields)  # type: ignore[arg-type]
    request.block_table = list(range(100, 100 + request.num_blocks_for(num_tokens)))
    request.num_computed = num_computed
    return request


def shares(requests: list[Request], **config: int) -> dict[str, int]:
    """Who gets how many tokens."""
    defaults = {"block_size": 4, "max_num_seqs": 4, "max_batch_tokens": 16, "chunked_prefill_size": 8}
    rules = SchedulerConfig(**{**defaults, **config})  # type: ignore[arg-type]
    return {r.request_id: n for r, n in share_out(requests, rules)}


def test_decode_rows_go_first_and_prompts_share_the_rest_in_order() -> None:
    requests = [running("p", 40), running("d", 9, 8), running("q", 40), running("e", 5, 4)]
    assert list(shares(requests).items()) == [("d", 1), ("e", 1), ("p", 8), ("q", 6)]


def test_a_prompt_gets_a_chunk_at_most_and_its_rest_at_least() -> None:
    assert shares([running("p", 40)], chunked_prefill_size=3) == {"p": 3}
    assert shares([running("p", 40, 35)]) == {"p": 5}


def test_seats_bound_the_rows_of_a_step() -> None:
    requests = [running(f"d{i}", 9, 8) for i in range(3)] + [running("p", 9)]
    assert shares(requests, max_num_seqs=2) == {"d0": 1, "d1": 1}


def test_no_budget_is_left_over_for_prompts_when_rows_take_it_all() -> None:
    requests = [running("p", 9), *[running(f"d{i}", 9, 8) for i in range(3)]]
    assert shares(requests, max_num_seqs=3, max_batch_tokens=3) == {"d0": 1, "d1": 1, "d2": 1}


def test_whole_prompts_are_never_split() -> None:
    requests = [running("d", 9, 8), running("p", 40), running("q", 3)]
    assert shares(requests, chunked_prefill_size=-1) == {"d": 1, "p": 40}
    assert shares([running("p", 10), running("q", 6)], chunked_prefill_size=-1) == {"p": 10, "q": 6}
    assert shares([running("p", 10), running("q", 7)], chunked_prefill_size=-1) == {"p": 10}


def test_demand_is_what_a_step_could_use() -> None:
    config = SchedulerConfig(block_size=4, chunked_prefill_size=8)
    assert [demand(r, config) for r in (running("p", 40), running("q", 40, 35), running("d", 9, 8))] == [8, 5, 1]
    assert demand(running("p", 40), SchedulerConfig(chunked_prefill_size=-1)) == 40


def test_a_chunk_names_its_tokens_positions_and_blocks() -> None:
    [step] = to_steps([(running("p", 40, 8), 6)])
    assert list(step.token_ids) == [8, 9, 10, 11, 12, 13]
    assert step.start == 8
    assert list(step.block_table) == [100, 101, 102, 103]
    assert step.sample is None and step.prompt_logprobs is None and not step.targets


def test_the_last_chunk_samples() -> None:
    request = running("p", 6, 4, output_ids=[], seed=7, choice=2, digest=True)
    request.append(9)
    [step] = to_steps([(request, 3)])
    assert list(step.token_ids) == [4, 5, 9]
    assert step.digest and step.sample is not None
    assert (step.sample.seed, step.sample.choice, step.sample.position) == (7, 2, 1)
    assert list(step.sample.output_ids) == [9] and list(step.sample.prompt_ids) == list(range(6))


@pytest.mark.parametrize(
    ("start", "count", "targets"),
    [(0, 4, [1, 2, 3, 4]), (4, 4, [5, 6, 7, 8]), (6, 4, [7, 8, 9]), (9, 1, [])],
)
def test_prompt_logprobs_are_asked_for_the_tokens_that_follow(start: int, count: int, targets: list[int]) -> None:
    request = running("p", 10, start, sampling={"prompt_logprobs": 3})
    [step] = to_steps([(request, count)])
    assert list(step.targets) == targets
    assert step.prompt_logprobs == (3 if targets else None)
    request.num_prompt_logprobs = 9
    assert not to_steps([(request, count)])[0].targets
