"""One call over several routers: what the next one is asked for, and what of its frames passes."""

from __future__ import annotations

from typing import Any

import pytest

from common.base.errors import PeerLost
from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse, PromptInfo
from pando.v1.types_pb2 import FINISH_REASON_LENGTH, SamplingParams, TokenLogprob
from services.gateway.course import Course


def make(n: int = 1, **sampling: Any) -> Course:
    return Course(GenerateRequest(request_id="r", text="hi", n=n, sampling=SamplingParams(**sampling)), seed=77)


def frame(index: int, text_offset: int = 0, choice: int = 0, **fields: Any) -> GenerateResponse:
    """Token 100 + index with one character of text."""
    fields.setdefault("text", "x")
    return GenerateResponse(
        request_id="its own",
        choice=choice,
        token_index=index,
        token_ids=[100 + index],
        text_offset=text_offset,
        logprobs=[TokenLogprob(token_id=100 + index)],
        prompt=PromptInfo(num_tokens=3),
        **fields,
    )


def test_the_first_call_is_the_request_with_a_seed() -> None:
    course = make(n=2)
    call = course.next_call()
    assert (call.request_id, call.n, call.sampling.seed, list(call.output_token_ids)) == ("r", 2, 77, [])
    assert make(seed=5).next_call().sampling.seed == 5


def test_a_call_before_anything_came_is_repeated_under_another_id() -> None:
    course = make(n=2)
    course.next_call()
    assert not course.begun
    again = course.next_call()
    assert (again.request_id, again.n, again.first_choice) == ("r.r1.0", 2, 0)


def test_another_router_goes_on_after_what_came() -> None:
    course = make(prompt_logprobs=1)
    course.next_call()
    for index in range(3):
        sent = frame(index, index)
        assert course.take(sent) and sent.HasField("prompt") == (index == 0)
    call = course.next_call()
    assert list(call.output_token_ids) == [100, 101, 102]
    assert call.sampling.seed == 77 and not call.sampling.HasField("prompt_logprobs")
    assert not course.take(frame(2, 2)), "it came before"
    last = frame(3, 3, finish_reason=FINISH_REASON_LENGTH)
    assert course.take(last)
    assert (last.request_id, last.attempt, last.token_index, last.HasField("prompt")) == ("r", 1, 3, False)
    assert course.finished


def test_a_frame_that_repeats_a_part_is_cut() -> None:
    course = make()
    course.next_call()
    course.take(frame(0))
    course.next_call()
    both = frame(0, 0, text="xy")
    both.token_ids.append(101)
    both.logprobs.add(token_id=101)
    assert course.take(both)
    assert (both.token_index, list(both.token_ids), both.text, both.text_offset) == (1, [101], "y", 1)
    assert [entry.token_id for entry in both.logprobs] == [101]


def test_a_gap_is_an_error() -> None:
    course = make()
    course.next_call()
    with pytest.raises(PeerLost):
        course.take(frame(1, 1))


def test_choices_that_are_not_finished_go_on_each_by_itself() -> None:
    course = make(n=3)
    course.next_call()
    course.take(frame(0, choice=0, finish_reason=FINISH_REASON_LENGTH))
    course.take(frame(0, choice=2))
    second, third = course.parts()
    calls = [second.next_call(), third.next_call()]
    assert [(call.first_choice, call.n, call.request_id) for call in calls] == [(1, 1, "r.r1.1"), (2, 1, "r.r1.2")]
    assert [list(call.output_token_ids) for call in calls] == [[], [100]]
    assert second.take(frame(0, choice=1, finish_reason=FINISH_REASON_LENGTH)) and second.finished
    assert not course.finished
    assert third.take(frame(1, 1, choice=2, finish_reason=FINISH_REASON_LENGTH))
    assert course.finished, "parts share what came"


def test_what_nobody_asked_for_passes_to_who_refuses_it() -> None:
    course = make()
    course.next_call()
    assert course.take(frame(0, choice=4))
