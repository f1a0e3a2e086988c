"""Options and prompts as messages, and frames as chunks."""

from __future__ import annotations

from typing import Any

import pytest

from pando.client import convert
from pando.client.fields import what_fits
from pando.client.types import Chat, Options
from pando.errors import Cancelled, InvalidRequest
from pando.v1 import inference_pb2, types_pb2


def request_of(prompt: Any = "hi", **options: Any) -> inference_pb2.GenerateRequest:
    given: Options = options  # type: ignore[assignment]
    return convert.generate_request(prompt, convert.checked(given))


def test_every_option_lands_in_its_field() -> None:
    sampling: dict[str, Any] = {
        "max_tokens": 5,
        "min_tokens": 1,
        "temperature": 0.0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.25,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {7: -1.5},
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "include_stop_str": True,
        "skip_special_tokens": False,
        "seed": 2**64 - 1,
        "logprobs": 0,
        "prompt_logprobs": 2,
        "prompt_logprobs_start": 4,
    }
    outer: dict[str, Any] = {
        "model": "m",
        "n": 2,
        "request_id": "r",
        "cache_salt": "s",
        "priority": -1,
        "session_id": "x",
        "tenant": "acme",
        "tenant_weight": 3,
        "return_prompt_token_ids": True,
    }
    request = request_of(**sampling, **outer, stop="end", timeout_s=3.0)
    expected = types_pb2.SamplingParams(**sampling, stop=["end"])
    assert request == inference_pb2.GenerateRequest(text="hi", sampling=expected, **outer)
    assert request.sampling.HasField("temperature") and request.sampling.HasField("logprobs")
    known = {field for field in Options.__annotations__}
    assert known == {*sampling, *outer, "stop", "timeout_s", *convert.GRAMMARS}, "an option is not tested"


def test_what_is_not_given_stays_unset_but_for_id_and_seed() -> None:
    request = request_of(temperature=None, max_tokens=None)
    assert request.request_id and request.sampling.HasField("seed")
    request.ClearField("request_id")
    request.sampling.ClearField("seed")
    assert request == inference_pb2.GenerateRequest(text="hi", sampling=types_pb2.SamplingParams(), n=0)
    assert request_of().request_id != request_of().request_id


@pytest.mark.parametrize(
    ("options", "grammar"),
    [
        ({"regex": "[a-z]+"}, types_pb2.Grammar(regex="[a-z]+")),
        ({"ebnf": "root ::= x"}, types_pb2.Grammar(ebnf="root ::= x")),
        ({"json_schema": {"type": "object"}}, types_pb2.Grammar(json_schema='{"type": "object"}')),
        ({"json_schema": "{}"}, types_pb2.Grammar(json_schema="{}")),
        ({"structural_tag": "{}"}, types_pb2.Grammar(structural_tag="{}")),
        ({"structural_tag": {"a": 1}}, types_pb2.Grammar(structural_tag='{"a": 1}')),
        ({"choices": []}, types_pb2.Grammar(choices=types_pb2.Grammar.Choices())),
        ({"choices": ["a", "b"]}, types_pb2.Grammar(choices=types_pb2.Grammar.Choices(values=["a", "b"]))),
    ],
)
def test_constraints(options: dict[str, Any], grammar: types_pb2.Grammar) -> None:
    assert request_of(**options).sampling.grammar == grammar


def test_no_constraint_sets_none() -> None:
    assert request_of().sampling.grammar.WhichOneof("kind") is None


def test_prompts() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    ]
    assert list(request_of([3, 1]).token_ids.ids) == [3, 1]
    chat = request_of(messages).chat
    assert [(m.role, m.content, m.tool_calls_json) for m in chat.messages] == [
        ("user", "hi", ""),
        ("assistant", "", '[{"id": "1"}]'),
    ]
    open_end = Chat(messages, continue_final_message=True, template_kwargs={"a": 1}, tools=[{"type": "function"}])
    chat = request_of(open_end).chat
    assert (chat.continue_final_message, chat.template_kwargs_json) == (True, '{"a": 1}')
    assert chat.tools_json == '[{"type": "function"}]'


@pytest.mark.parametrize(
    ("prompt", "options", "param"),
    [
        ("x", {"regex": "a", "ebnf": "b"}, "ebnf"),
        ("x", {"max_tokens": -1}, "max_tokens"),
        ("x", {"temperature": "hot"}, "temperature"),
        ("x", {"temperature": float("nan")}, "temperature"),
        ("x", {"logit_bias": {1: float("inf")}}, "logit_bias"),
        ("x", {"logit_bias": {-1: 1.0}}, "logit_bias"),
        ("x", {"logit_bias": [1]}, "logit_bias"),
        ("x", {"seed": 2**64}, "seed"),
        ("x", {"priority": "high"}, "priority"),
        ("x", {"n": 0}, "n"),
        ("x", {"n": True}, "n"),
        ("x", {"stop": 5}, "stop"),
        ("x", {"stop": [1]}, "stop"),
        ("x", {"stop": "\ud800"}, "stop"),
        ("x", {"stop_token_ids": "12"}, "stop_token_ids"),
        ("x", {"choices": "abc"}, "choices"),
        ("x", {"choices": [1]}, "choices"),
        ("x", {"regex": 5}, "regex"),
        ("x", {"json_schema": {"enum": {1}}}, "json_schema"),
        ("x", {"structural_tag": [object()]}, "structural_tag"),
        ("x", {"timeout_s": 0}, "timeout_s"),
        ("x", {"timeout_s": "5"}, "timeout_s"),
        ("x", {"timeout_s": float("inf")}, "timeout_s"),
        ("\ud800", {}, "prompt"),
        (b"hi", {}, "prompt"),
        (5, {}, "prompt"),
        ([], {}, "prompt"),
        ([1, "x"], {}, "prompt"),
        ([True], {}, "prompt"),
        ([2**40], {}, "prompt"),
        ([{"role": "user", "content": [{"type": "text"}]}], {}, "messages"),
        ([{"role": "user", "content": [{"type": "image_url", "text": "x"}]}], {}, "messages"),
        ([{"role": "user", "content": 5}], {}, "messages"),
        ([{"role": "user", "content": "\ud800"}], {}, "messages"),
        ([{"role": "user", "name": 5}], {}, "messages"),
        ([{"role": "user", "tool_calls": [object()]}], {}, "messages"),
        ([{"content": "x"}], {}, "messages"),
        ([{"role": "user"}, "x"], {}, "messages"),
        (Chat(({"role": "user"},), tools=({"x": {1}},)), {}, "tools"),
    ],
)
def test_what_no_message_can_hold(prompt: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request_of(prompt, **options)
    assert refused.value.param == param
    for word in ("pando.v1", "Value out of range", "interpreted", "built-in", "codec"):
        assert word not in str(refused.value), "the words of protobuf or Python"


def test_a_field_is_described_by_what_fits_it() -> None:
    for message in (types_pb2.SamplingParams, inference_pb2.GenerateRequest, types_pb2.Grammar.Choices):
        for field in message.DESCRIPTOR.fields:
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                assert what_fits(field), field.name
    bias = types_pb2.SamplingParams.DESCRIPTOR.fields_by_name["logit_bias"]
    assert what_fits(bias) == "a mapping of whole number from 0 to 4294967295 to number"


def test_text_parts_are_joined_as_the_gateway_does() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    assert request_of([{"role": "user", "content": parts}]).chat.messages[0].content == "a b"


def test_an_error_names_the_option_that_constrains_and_the_request() -> None:
    options = convert.checked({"regex": "("})
    error = InvalidRequest("bad", param="response_format")
    convert.attribute(error, options)
    assert (error.param, error.request_id) == ("regex", options["request_id"])
    other = InvalidRequest("bad", param="stop", request_id="r")
    convert.attribute(other, options)
    assert (other.param, other.request_id) == ("stop", "r")


def test_unknown_options_are_typos() -> None:
    with pytest.raises(TypeError, match="max_token"):
        request_of(max_token=5)


def test_frames_become_chunks() -> None:
    logprob = types_pb2.TokenLogprob(
        token_id=5,
        logprob=-0.5,
        rank=2,
        token=b"\xf0",
        top=[types_pb2.TopLogprob(token_id=6, logprob=-0.25, token=b"x")],
    )
    frame = inference_pb2.GenerateResponse(
        request_id="r",
        choice=1,
        token_ids=[5],
        text="t",
        logprobs=[logprob],
        prompt=inference_pb2.PromptInfo(num_tokens=9, token_ids=[1], logprobs=[logprob]),
    )
    chunk = convert.chunk_from_pb(frame)
    assert (chunk.choice, chunk.text, chunk.token_ids, chunk.finish_reason, chunk.usage) == (1, "t", (5,), None, None)
    assert chunk.prompt is not None and chunk.prompt.num_tokens == 9 and chunk.prompt.logprobs == chunk.logprobs
    entry = chunk.logprobs[0]
    assert (entry.token_id, entry.logprob, entry.rank, entry.token) == (5, -0.5, 2, b"\xf0")
    assert (entry.top[0].token_id, entry.top[0].logprob, entry.top[0].token) == (6, -0.25, b"x")


def test_last_frames_bring_usage_and_an_abort_is_an_error() -> None:
    cached = types_pb2.CachedTokens(l1=16, peer=32)
    usage = types_pb2.Usage(prompt_tokens=64, completion_tokens=2, cached_tokens=cached, decode_worker="d")
    frame = inference_pb2.GenerateResponse(finish_reason=types_pb2.FINISH_REASON_STOP, stop_reason="x", usage=usage)
    chunk = convert.chunk_from_pb(frame)
    assert chunk.usage is not None and (chunk.finish_reason, chunk.stop_reason) == ("stop", "x")
    assert (chunk.usage.cached_tokens, chunk.usage.cached.peer, chunk.usage.decode_worker) == (48, 32, "d")
    aborted = inference_pb2.GenerateResponse(request_id="r", finish_reason=types_pb2.FINISH_REASON_ABORT)
    with pytest.raises(Cancelled):
        convert.chunk_from_pb(aborted)
