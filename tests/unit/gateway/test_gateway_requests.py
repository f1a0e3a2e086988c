"""JSON to GenerateRequest: prompts, messages, sampling, choices."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from pando.v1.inference_pb2 import GenerateRequest
from pando.v1.types_pb2 import SamplingParams
from services.gateway import chat, completions, native
from services.gateway.body import parse
from services.gateway.generation import Generation, Head, check_choices, request_ids
from services.gateway.native_types import GenerateBody
from services.gateway.openai_types import ChatRequest, CompletionRequest
from services.gateway.prompts import split
from services.gateway.sampling import bias_of

HEAD = Head("req-abc", "m", 7)
LIMITS = LimitsConfig()


def chat_generation(**fields: Any) -> Generation:
    body = parse(ChatRequest, orjson.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}))
    body.check()
    return chat.to_generation(body, body.messages, HEAD, LIMITS)


def chat_request(**fields: Any) -> GenerateRequest:
    return chat_generation(**fields).requests[0]


def completion_requests(prompt: Any, **fields: Any) -> list[GenerateRequest]:
    body = parse(CompletionRequest, orjson.dumps({"prompt": prompt, **fields}))
    return list(completions.to_generation(body, split(body.prompt, "prompt", 9), [], HEAD).requests)


def native_request(**fields: Any) -> GenerateRequest:
    body = parse(GenerateBody, orjson.dumps({"text": "hi", **fields}))
    body.check()
    generation = native.to_generation(body, body.prompts(9), "req-abc", clock=lambda: 0.0, started_s=0.0)
    return generation.requests[0]


def test_unset_fields_stay_unset() -> None:
    request = chat_request()
    assert request.sampling == SamplingParams()
    assert not request.sampling.HasField("max_tokens") and not request.sampling.HasField("seed")
    assert (request.n, request.model, request.request_id) == (1, "", "req-abc")


def test_every_sampling_field_arrives() -> None:
    sampling = chat_request(
        temperature=0, top_p=0.5, top_k=3, min_p=0.25, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={"5": -100}, stop="x", stop_token_ids=[1], min_tokens=2, ignore_eos=True,
        skip_special_tokens=False, seed=-1, max_tokens=9, include_stop_str_in_output=True,
    ).sampling  # fmt: skip
    assert sampling == SamplingParams(
        temperature=0, top_p=0.5, top_k=3, min_p=0.25, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={5: -100}, stop=["x"], stop_token_ids=[1], min_tokens=2, ignore_eos=True,
        skip_special_tokens=False, seed=2**64 - 1, max_tokens=9, include_stop_str=True,
    )  # fmt: skip


def test_request_level_fields_arrive() -> None:
    request = chat_request(
        model="m", n=3, cache_salt="s", priority=-2, session_id="a", prompt_cache_key="b", return_token_ids=True
    )
    assert (request.model, request.n, request.cache_salt, request.priority) == ("m", 3, "s", -2)
    assert request.session_id == "a" and request.return_prompt_token_ids
    assert chat_request(prompt_cache_key="b").session_id == "b"


def test_zero_max_tokens_is_the_routers_to_refuse() -> None:
    sampling = chat_request(max_tokens=0).sampling
    assert sampling.HasField("max_tokens") and sampling.max_tokens == 0


def test_newer_name_of_max_tokens_wins_and_names_errors() -> None:
    generation = chat_generation(max_tokens=5, max_completion_tokens=6)
    assert generation.requests[0].sampling.max_tokens == 6
    assert generation.names["max_tokens"] == "max_completion_tokens"
    assert "max_tokens" not in chat_generation(max_tokens=5).names


@pytest.mark.parametrize(
    ("fields", "logprobs"), [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)]
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    sampling = chat_request(**fields).sampling
    assert (sampling.logprobs if sampling.HasField("logprobs") else None) == logprobs
    assert not sampling.HasField("prompt_logprobs")


def test_text_parts_are_joined_as_they_are() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}, {"type": "refusal", "refusal": "c"}]
    messages = [
        {"role": "user", "content": content, "name": "n"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "ok", "tool_call_id": "1"},
    ]
    request = chat_request(messages=messages, chat_template_kwargs={"x": 1}, continue_final_message=True)
    assert [message.content for message in request.chat.messages] == ["a bc", "", "ok"]
    assert request.chat.messages[0].name == "n" and request.chat.messages[1].tool_calls_json == '[{"id":"1"}]'
    assert request.chat.messages[2].tool_call_id == "1"
    assert request.chat.template_kwargs_json == '{"x":1}' and request.chat.continue_final_message


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "messages[0].content[0]", "image_url"),
        ({"type": "input_audio"}, "messages[0].content[0]", "input_audio"),
        ({}, "messages[0].content[0]", "None"),
        ({"type": "text"}, "messages[0].content[0].text", "string"),
    ],
)
def test_other_parts_are_refused_by_name(part: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        chat_request(messages=[{"role": "user", "content": [part]}])
    assert caught.value.param == param


def test_prompt_shapes() -> None:
    assert split("a", "prompt", 2) == ["a"]
    assert split(["a", "b"], "prompt", 2) == ["a", "b"]
    assert split([1, 2], "prompt", 1) == [[1, 2]]
    assert split([[1], "a", []], "prompt", 3) == [[1], "a", []]


@pytest.mark.parametrize(
    "value", [None, 1, {}, [], [None], [1, "a"], [True], [1, True], [[-1]], [[2**32]], ["a", "b", "c"]]
)
def test_other_prompts_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        split(value, "prompt", 2)
    assert caught.value.param == "prompt"


def test_completions_defaults_and_ids_of_several_prompts() -> None:
    requests = completion_requests(["a", "b"], n=2)
    assert [request.request_id for request in requests] == ["req-abc-0", "req-abc-1"]
    assert [request.text for request in requests] == ["a", "b"]
    assert all(request.n == 2 and request.sampling.max_tokens == 16 for request in requests)
    assert completion_requests([1, 2])[0].token_ids.ids == [1, 2]
    assert request_ids("r", 1) == ["r"]


def test_echo_with_logprobs_asks_for_the_prompts_logprobs() -> None:
    sampling = completion_requests("a", echo=True, logprobs=2, max_tokens=0)[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.max_tokens) == (2, 2, 1)
    assert not completion_requests("a", logprobs=2)[0].sampling.HasField("prompt_logprobs")
    assert completion_requests("a", max_tokens=0)[0].sampling.max_tokens == 0


def test_bias_keys_are_token_ids() -> None:
    assert bias_of({"7": 1.0, "4294967295": -1.0}, "logit_bias") == {7: 1.0, 2**32 - 1: -1.0}
    for key in ("", "x", "-1", "1.5", "٣", "4294967296", "9" * 5000):
        with pytest.raises(InvalidRequest) as caught:
            bias_of({key: 1.0}, "logit_bias")
        assert caught.value.param == "logit_bias"


def test_choices_of_one_request_are_bounded() -> None:
    check_choices(4, 4, 16)
    with pytest.raises(InvalidRequest) as caught:
        check_choices(4, 5, 16)
    assert caught.value.param == "n"


def test_native_fields_arrive_under_their_own_names() -> None:
    request = native_request(
        rid="mine", return_logprob=True, top_logprobs_num=2, logprob_start_len=0,
        sampling_params={"max_new_tokens": 4, "min_new_tokens": 1, "top_k": -1, "no_stop_trim": True, "n": 2,
                         "sampling_seed": 3, "stop": ["a"], "logit_bias": {"1": 2}, "temperature": 0.5},
    )  # fmt: skip
    assert request.request_id == "mine" and request.n == 2 and request.return_prompt_token_ids
    assert request.sampling == SamplingParams(
        max_tokens=4, min_tokens=1, include_stop_str=True, seed=3, stop=["a"], logit_bias={1: 2}, temperature=0.5,
        logprobs=2, prompt_logprobs=2,
    )  # fmt: skip


def test_native_defaults() -> None:
    assert native_request().sampling == SamplingParams(max_tokens=128)
    assert not native_request(return_logprob=True, logprob_start_len=-1).sampling.HasField("prompt_logprobs")
    assert native_request(return_logprob=True, logprob_start_len=9).sampling.prompt_logprobs_start == 9


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"image_data": "x"}, InvalidRequest, "image_data"),
        ({"lora_path": "x"}, InvalidRequest, "lora_path"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, InvalidRequest, "sampling_params.ebnf"),
        ({"input_ids": [1]}, InvalidRequest, "text"),
        ({"text": None}, InvalidRequest, "text"),
    ],
)
def test_native_refusals(fields: dict[str, Any], error: type[Exception], param: str) -> None:
    with pytest.raises(error) as caught:
        native_request(**fields)
    assert caught.value.param == param  # type: ignore[attr-defined]
