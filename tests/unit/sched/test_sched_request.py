"""A request: known and computed tokens, what may be reused, when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.kv.hashing import block_hashes, prefix_root
from common.sched.request import FinishReason
from tests.support.sched_rig import make_request

UNLIMITED = 1 << 30


def test_known_tokens_are_prompt_and_output() -> None:
    request = make_request("a", (1, 2, 3), output_ids=[4, 5])
    assert request.num_tokens == request.num_uncomputed == 5
    assert [list(request.tokens(i, j)) for i, j in ((0, 2), (1, 4), (3, 5), (4, 5), (2, 2))] == [
        [1, 2],
        [2, 3, 4],
        [4, 5],
        [5],
        [],
    ]
    request.num_computed = 4
    assert request.num_uncomputed == 1


def test_the_hash_chain_follows_the_output() -> None:
    request = make_request("a", (1, 2, 3), output_ids=[4])
    for token in (5, 6, 7, 8):
        request.append(token)
    assert request.chain.hashes == block_hashes(prefix_root(4, ""), [1, 2, 3, 4, 5, 6, 7, 8], 4)
    assert request.output_ids == [4, 5, 6, 7, 8]


def test_prompt_hashes_are_taken_as_given() -> None:
    request = make_request("a", range(9), prompt_hashes=[bytes(32)])
    assert request.chain.hashes[0] == bytes(32)


def test_the_output_of_a_copy_is_its_own() -> None:
    request = make_request("a", output_ids=[1])
    copy = replace(request, params=request.params)
    copy.append(2)
    assert request.output_ids == [1]


def test_an_empty_prompt_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="empty prompt"):
        make_request("a", ())


@pytest.mark.parametrize(("num_tokens", "num_reusable"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_the_last_known_token_is_never_reused(num_tokens: int, num_reusable: int) -> None:
    assert len(make_request("a", range(num_tokens)).reusable_hashes()) == num_reusable


def test_prompt_positions_without_their_logprobs_are_not_reused() -> None:
    request = make_request("a", range(20), sampling={"prompt_logprobs": 0})
    assert request.num_missing_prompt_logprobs == 19
    assert len(request.reusable_hashes()) == 0
    request.num_prompt_logprobs = 9
    assert len(request.reusable_hashes()) == 2
    request.num_prompt_logprobs = 19
    assert len(request.reusable_hashes()) == 4
    assert make_request("b", (1,), sampling={"prompt_logprobs": 0}).num_missing_prompt_logprobs == 0


@pytest.mark.parametrize(("start", "num_missing", "num_reusable"), [(0, 19, 0), (1, 19, 0), (10, 10, 2), (99, 0, 4)])
def test_prompt_positions_before_the_wanted_logprobs_may_be_reused(
    start: int, num_missing: int, num_reusable: int
) -> None:
    request = make_request("a", range(20), sampling={"prompt_logprobs": 0, "prompt_logprobs_start": start})
    assert request.num_missing_prompt_logprobs == num_missing
    assert len(request.reusable_hashes()) == num_reusable


def test_number_of_blocks_rounds_up() -> None:
    request = make_request("a")
    assert [request.num_blocks_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_rank_puts_priority_before_arrival() -> None:
    requests = [
        make_request("late", arrival_s=2.0),
        make_request("early", arrival_s=1.0),
        make_request("urgent", arrival_s=3.0, priority=1),
    ]
    assert [r.request_id for r in sorted(requests, key=lambda r: r.rank)] == ["urgent", "early", "late"]


@pytest.mark.parametrize(
    ("output", "sampling", "limit", "expected"),
    [
        ([], {"stop_token_ids": (9,)}, UNLIMITED, None),
        ([8], {"stop_token_ids": (9,)}, UNLIMITED, None),
        ([8, 9], {"stop_token_ids": (7, 9)}, UNLIMITED, FinishReason.STOP),
        ([9, 8], {"stop_token_ids": (9,)}, UNLIMITED, None),
        ([9], {"stop_token_ids": (9,), "min_tokens": 1}, UNLIMITED, None),
        ([8, 9], {"stop_token_ids": (9,), "min_tokens": 1}, UNLIMITED, FinishReason.STOP),
        ([8, 8, 8, 8], {"stop_token_ids": (9,)}, UNLIMITED, FinishReason.LENGTH),
        ([8, 8, 8, 9], {"stop_token_ids": (9,)}, UNLIMITED, FinishReason.STOP),
        ([8, 8, 8, 9], {"stop_token_ids": (9,), "min_tokens": 4}, UNLIMITED, FinishReason.LENGTH),
        ([8, 8], {}, 5, FinishReason.LENGTH),
        ([8, 8], {}, 6, None),
        ([], {}, 3, None),
    ],
)
def test_when_a_request_is_over(
    output: list[int], sampling: dict[str, object], limit: int, expected: FinishReason | None
) -> None:
    request = make_request("a", (1, 2, 3), max_tokens=4, output_ids=output, sampling=sampling)
    assert request.due_finish(limit) is expected
