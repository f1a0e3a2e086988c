"""Options and prompts as messages, and frames as chunks."""

from __future__ import annotations

from typing import Any

import pytest

from pando.client import convert
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
        ({"choices": ["a", "b"]}, types_pb2.Grammar(choices=types_pb2.Grammar.Choices(values=["a", "b"]))),
    ],
)
def test_constraints(options: dict[str, Any], grammar: types_pb2.Grammar) -> None:
    assert request_of(**options).sampling.grammar == grammar


def test_no_constraint_sets_none() -> None:
    assert request_of().sampling.grammar.WhichOneof("kind") is None


def test_prompts() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
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
        ([], {}, "prompt"),
        ([1, "x"], {}, "prompt"),
        ([2**40], {}, "token_ids"),
        ([{"role": "user", "content": [{"type": "text"}]}], {}, "messages"),
        ([{"content": "x"}], {}, "messages"),
    ],
)
def test_what_no_message_can_hold(prompt: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request_of(prompt, **options)
    assert refused.value.param == param


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
