"""Every limit of the public API at both of its ends, with the name that the client knows the field by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from common.sched.params import SamplingParams
from pando.v1 import inference_pb2
from services.router.job import Chat, Prompt, Wish
from services.router.validation import check_wish, output_budget

VOCAB = 1000
LIMITS = LimitsConfig(
    max_n=3,
    max_stop_strings=2,
    max_stop_chars=5,
    max_stop_token_ids=2,
    max_logprobs=4,
    max_logit_bias=2,
    max_temperature=1.5,
    max_prompt_bytes=10,
    max_messages=2,
    max_tools=2,
    max_id_chars=6,
)


def wish(prompt: Prompt | None = "hi", max_tokens: int | None = None, **values: Any) -> Wish:
    params = {name: values.pop(name) for name in list(values) if name in SamplingParams.__slots__}
    fields: dict[str, Any] = {
        "message": inference_pb2.GenerateRequest(),
        "request_id": "",
        "model": "",
        "output_ids": (),
        "seed": None,
        "n": 1,
        "cache_salt": "",
        "priority": 0,
        "session_id": "",
        "return_prompt_ids": False,
    }
    return Wish(prompt=prompt, params=SamplingParams(**params), max_tokens=max_tokens, **(fields | values))


def chat(*contents: str | None) -> Chat:
    return Chat([{"role": "user", "content": content} for content in contents])


ALLOWED: list[Wish] = [
    wish(n=1),
    wish(n=3),
    wish(max_tokens=1),
    wish(max_tokens=10**9),
    wish(temperature=0.0),
    wish(temperature=1.5),
    wish(top_p=1e-6),
    wish(top_p=1.0),
    wish(min_p=0.0),
    wish(min_p=1.0),
    wish(presence_penalty=-2.0, frequency_penalty=2.0),
    wish(presence_penalty=2.0, frequency_penalty=-2.0),
    wish(repetition_penalty=0.01),
    wish(repetition_penalty=2.0),
    wish(stop=("a", "12345")),
    wish(stop_token_ids=(0, VOCAB - 1)),
    wish(logit_bias={0: -100.0, VOCAB - 1: 100.0}),
    wish(logprobs=0),
    wish(logprobs=4, prompt_logprobs=4),
    wish("1234567890"),
    wish([0, VOCAB - 1]),
    wish(chat("12345", "67890")),
    wish(chat(None)),
    wish(Chat([{"role": "user"}], tools=[{}, {}])),
    wish(output_ids=(VOCAB - 1,)),
    wish(request_id="123456", session_id="123456", cache_salt="123456"),
]

REFUSED: list[tuple[str, Wish]] = [
    ("n", wish(n=4)),
    ("max_tokens", wish(max_tokens=0)),
    ("temperature", wish(temperature=-0.01)),
    ("temperature", wish(temperature=1.51)),
    ("temperature", wish(temperature=math.nan)),
    ("temperature", wish(temperature=math.inf)),
    ("top_p", wish(top_p=0.0)),
    ("top_p", wish(top_p=1.01)),
    ("top_p", wish(top_p=math.nan)),
    ("min_p", wish(min_p=-0.01)),
    ("min_p", wish(min_p=1.01)),
    ("presence_penalty", wish(presence_penalty=-2.01)),
    ("presence_penalty", wish(presence_penalty=math.inf)),
    ("frequency_penalty", wish(frequency_penalty=2.01)),
    ("frequency_penalty", wish(frequency_penalty=math.nan)),
    ("repetition_penalty", wish(repetition_penalty=0.0)),
    ("repetition_penalty", wish(repetition_penalty=2.01)),
    ("stop", wish(stop=("a", "b", "c"))),
    ("stop", wish(stop=("",))),
    ("stop", wish(stop=("123456",))),
    ("stop_token_ids", wish(stop_token_ids=(1, 2, 3))),
    ("stop_token_ids", wish(stop_token_ids=(VOCAB,))),
    ("logit_bias", wish(logit_bias={1: 0.0, 2: 0.0, 3: 0.0})),
    ("logit_bias", wish(logit_bias={VOCAB: 0.0})),
    ("logit_bias", wish(logit_bias={1: 100.5})),
    ("logit_bias", wish(logit_bias={1: math.nan})),
    ("logprobs", wish(logprobs=5)),
    ("prompt_logprobs", wish(prompt_logprobs=5)),
    ("prompt", wish(None)),
    ("prompt", wish("")),
    ("prompt", wish("12345678901")),
    ("prompt", wish("日本日本")),  # 4 characters, 12 bytes
    ("prompt", wish([])),
    ("prompt", wish([VOCAB])),
    ("messages", wish(chat())),
    ("messages", wish(chat("a", "b", "c"))),
    ("messages", wish(chat("123456", "78901"))),
    ("messages", wish(Chat([{"role": "user", "content": "1", "name": "2345678901"}]))),
    ("messages", wish(Chat([{"role": "assistant", "content": "1", "tool_calls": [{"f": [{"2345678901": 1}]}]}]))),
    ("tools", wish(Chat([{"role": "user", "content": "1"}], tools=[{"name": "12345678"}]))),
    ("tools", wish(Chat([{"role": "user"}], tools=[{}, {}, {}]))),
    ("tools", wish(Chat([{"role": "user"}], tools=[{}, 5]))),  # type: ignore[list-item]
    ("chat_template_kwargs", wish(Chat([{"role": "user"}], template_kwargs={"date_string": "x" * 11}))),
    ("chat_template_kwargs", wish(replace(chat("hi"), template_kwargs={"add_generation_prompt": True}))),
    ("output_token_ids", wish(output_ids=(VOCAB,))),
    ("request_id", wish(request_id="1234567")),
    ("session_id", wish(session_id="1234567")),
    ("cache_salt", wish(cache_salt="1234567")),
]


@pytest.mark.parametrize("good", ALLOWED)
def test_what_is_within_the_limits_passes(good: Wish) -> None:
    check_wish(good, LIMITS, VOCAB)


@pytest.mark.parametrize(("param", "bad"), REFUSED)
def test_what_is_beyond_them_names_its_field(param: str, bad: Wish) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_wish(bad, LIMITS, VOCAB)
    assert caught.value.param == param


def budget(asked: Wish, num_prompt_tokens: int, limits: LimitsConfig = LIMITS, strict: bool = False) -> int:
    return output_budget(asked, num_prompt_tokens, 100, limits, strict)


def test_the_budget_is_what_was_asked_for_within_the_context() -> None:
    assert budget(wish(), 40) == 60
    assert budget(wish(max_tokens=59), 40) == 59
    assert budget(wish(max_tokens=61), 40) == 60
    assert budget(wish(), 99) == 1
    assert budget(wish(max_tokens=60), 40, strict=True) == 60
    assert budget(wish(), 40, LIMITS.model_copy(update={"max_output_tokens": 7})) == 7


@pytest.mark.parametrize(("prompt", "param"), [("hi", "prompt"), (chat("hi"), "messages")])
def test_a_prompt_that_fills_the_context_is_told_the_true_numbers(prompt: Prompt, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        budget(wish(prompt, max_tokens=5), 100)
    error = caught.value
    assert (error.reason, error.param) == ("context_length_exceeded", param)
    assert "maximum context length is 100 tokens" in error.message
    assert "100 prompt tokens and 5 tokens" in error.message


def test_a_strict_context_does_not_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        budget(wish(max_tokens=61), 40, strict=True)
    assert caught.value.reason == "context_length_exceeded"


@pytest.mark.parametrize(
    ("param", "bad", "good"),
    [
        ("min_tokens", wish(min_tokens=61), wish(min_tokens=60)),
        ("output_token_ids", wish(max_tokens=1, output_ids=(1, 2)), wish(max_tokens=2, output_ids=(1, 2))),
    ],
)
def test_what_leaves_nothing_to_generate_is_refused(param: str, bad: Wish, good: Wish) -> None:
    assert budget(good, 40) > 0
    with pytest.raises(InvalidRequest) as caught:
        budget(bad, 40)
    assert caught.value.param == param


def test_a_tokenised_prompt_may_not_be_empty() -> None:
    with pytest.raises(InvalidRequest) as caught:
        budget(replace(wish(), prompt="x"), 0)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("param", ["stop_token_ids", "logit_bias"])
def test_a_token_out_of_the_vocabulary_is_told_with_its_field(param: str) -> None:
    bad = wish(stop_token_ids=(VOCAB,)) if param == "stop_token_ids" else wish(logit_bias={VOCAB: 1.0})
    with pytest.raises(InvalidRequest, match=f"{param}: token id {VOCAB} ") as refused:
        check_wish(bad, LIMITS, VOCAB)
    assert refused.value.param == param
