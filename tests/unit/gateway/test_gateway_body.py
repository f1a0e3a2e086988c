"""Bodies: JSON, shapes, the field at fault, unknown fields."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
import structlog
from starlette.requests import Request

from common.base.errors import InvalidRequest
from services.gateway.body import UnknownFields, json_text, param_of, parse, read_body
from services.gateway.errors import BodyTooLarge, BodyTooSlow
from services.gateway.native_types import GenerateBody
from services.gateway.openai_types import ChatRequest, CompletionRequest

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatRequest:
    body = parse(ChatRequest, json.dumps({"messages": MESSAGES, **fields}).encode())
    body.check()
    return body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**32}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"top_k": -2}, "top_k"),
        ({"priority": 2**31}, "priority"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": 5}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"functions": [{"name": "f"}], "tools": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_bad_shapes_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param and caught.value.message.startswith(param)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1, "max_tokens": None, "stop": None, "seed": -5, "top_k": -1},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"metadata": {"a": "b"}, "store": True, "user": "u", "service_tier": "auto", "verbosity": "low"},
        {"regex": None, "unknown": 1},
    ],
)
def test_what_has_no_effect_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields).num_choices == 1


def test_completions_refuse_what_this_model_cannot() -> None:
    for fields in (
        {"suffix": "x"},
        {"best_of": 2, "stream": True},
        {"best_of": 0},
        {"best_of": 1, "n": 2},
        {"response_format": {"type": "json_object"}},
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse(CompletionRequest, orjson.dumps({"prompt": "a", **fields})).check()
        assert caught.value.param == next(iter(fields))
    parse(CompletionRequest, orjson.dumps({"prompt": "a", "suffix": "", "best_of": 3, "n": 2})).check()


@pytest.mark.parametrize("raw", [b"", b"{", b"1", b"null", b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 2000])
def test_not_a_json_object(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ChatRequest, raw)
    assert caught.value.reason == "invalid_json"


def test_param_leaves_out_branches_of_unions() -> None:
    assert param_of(("stop", "list[str]", 0), ChatRequest) == "stop"
    assert param_of(("messages", 2, "content", "str"), ChatRequest) == "messages[2].content"
    assert param_of((), ChatRequest) == ""


def test_param_names_the_field_of_an_inner_object() -> None:
    for fields, param in (
        ({"n": 0}, "sampling_params.n"),
        ({"stop": [1]}, "sampling_params.stop"),
        ({"regex": 5}, "sampling_params.regex"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse(GenerateBody, orjson.dumps({"text": "a", "sampling_params": fields}))
        assert caught.value.param == param and caught.value.message.startswith(param)


@pytest.mark.parametrize("field", ["tools", "user", "unknown"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_what_may_be_written_again_nests_with_an_end(field: str, opening: str, closing: str) -> None:
    def body(depth: int) -> bytes:
        return f'{{"prompt": "{"{" * 200}", "{field}": {opening * depth}1{closing * depth}}}'.encode()

    json_text([json_text(parse(CompletionRequest, body(128)).model_extra)])
    with pytest.raises(InvalidRequest) as caught:
        parse(CompletionRequest, body(129))
    assert caught.value.param == field and caught.value.reason == "invalid_request"


def test_unknown_fields_are_found_at_both_levels() -> None:
    assert parse(CompletionRequest, b'{"prompt": "a", "x": 1, "user": "u"}').unknown_names() == ["x"]
    body = parse(GenerateBody, b'{"text": "a", "x": 1, "sampling_params": {"y": null, "n": 1}}')
    assert body.unknown_names() == ["x", "sampling_params.y"]


def test_unknown_fields_are_logged_once_and_bounded() -> None:
    fields = UnknownFields()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            fields.note("/a", ["x", "y" * 1000])
        fields.note("/b", ["x"])
        fields.note("/c", [str(number) for number in range(10_000)])
    assert [(log["route"], log["field"]) for log in logs[:3]] == [("/a", "x"), ("/a", "y" * 64), ("/b", "x")]
    assert len(logs) == 256


class Sender:
    """A client that sends `num` pieces of 10 bytes, with or without saying so before."""

    def __init__(self, num: int, *, declared: bool, **headers: str) -> None:
        self.num_left = num
        headers |= {"content-length": str(num * 10)} if declared else {}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.request = Request({"type": "http", "headers": raw}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        self.num_left -= 1
        return {"type": "http.request", "body": b"0123456789", "more_body": self.num_left > 0}


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_the_limit_is_read(declared: bool) -> None:
    assert await read_body(Sender(5, declared=declared).request, 50, 5.0) == b"0123456789" * 5


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_read_before_it_is_refused_so_that_the_client_sees_why(declared: bool) -> None:
    sender = Sender(20, declared=declared)
    with pytest.raises(BodyTooLarge):
        await read_body(sender.request, 50, 5.0)
    assert sender.num_left == 0


async def test_a_dripped_body_ends_in_time() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    request = Request({"type": "http", "headers": [], "method": "POST"}, never)
    with pytest.raises(BodyTooSlow):
        await read_body(request, 50, 0.01)


async def test_a_body_far_too_large_is_not_read() -> None:
    told, untold = Sender(1000, declared=True), Sender(1000, declared=False)
    asking = Sender(20, declared=True, expect="100-continue")
    for sender, num_left in ((told, 1000), (untold, 979), (asking, 20)):
        with pytest.raises(BodyTooLarge):
            await read_body(sender.request, 50, 5.0)
        assert sender.num_left == num_left
