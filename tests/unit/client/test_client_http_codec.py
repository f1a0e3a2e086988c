"""The gateway's native JSON: bodies, cumulative events, errors."""

from __future__ import annotations

from typing import Any

import pytest

from pando.client import http_codec
from pando.client.convert import checked
from pando.client.http_codec import EventReader, error_of, generate_body, token_bytes
from pando.client.types import Chat
from pando.errors import (
    Draining,
    Internal,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PandoError,
    PeerLost,
    PermissionDenied,
    Unavailable,
    Unsupported,
)


def event(text: str, ids: list[int], **meta: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 9, "completion_tokens": len(ids), "cached_tokens": 0, "finish_reason": None}
    return {"text": text, "output_ids": ids, "meta_info": {**counts, **meta}}


def test_body_uses_the_native_names() -> None:
    body = generate_body(
        "hi",
        checked(
            {
                "request_id": "r",
                "seed": 3,
                "max_tokens": 5,
                "min_tokens": 1,
                "include_stop_str": True,
                "stop": "x",
                "logit_bias": {4: 1.0},
                "json_schema": {"a": 1},
                "n": 2,
                "cache_salt": "s",
                "session_id": "y",
            }
        ),
    )
    assert body == {
        "rid": "r",
        "cache_salt": "s",
        "session_id": "y",
        "stream": True,
        "text": "hi",
        "sampling_params": {
            "seed": 3,
            "max_new_tokens": 5,
            "min_new_tokens": 1,
            "no_stop_trim": True,
            "stop": ["x"],
            "logit_bias": {"4": 1.0},
            "json_schema": '{"a": 1}',
            "n": 2,
        },
    }


def test_logprobs_in_a_body() -> None:
    plain = generate_body((1, 2), checked({"logprobs": 2}))
    assert plain["input_ids"] == [1, 2] and plain["return_logprob"]
    assert (plain["top_logprobs_num"], plain["logprob_start_len"]) == (2, -1)
    assert generate_body("x", checked({"prompt_logprobs": 3}))["logprob_start_len"] == 0
    from_there = checked({"prompt_logprobs": 3, "prompt_logprobs_start": 7})
    assert generate_body("x", from_there)["logprob_start_len"] == 7
    assert "return_logprob" not in generate_body("x", checked({}))


def test_cumulative_events_become_chunks() -> None:
    reader = EventReader("r", checked({"n": 2}), (7, 8))
    first = reader.chunk({"index": 1, **event("a", [1])})
    assert (first.choice, first.text, first.token_ids, first.finish_reason) == (1, "a", (1,), None)
    assert first.prompt is not None and (first.prompt.num_tokens, first.prompt.token_ids) == (9, (7, 8))
    finish = {"type": "stop", "matched": "!"}
    last = reader.chunk({"index": 1, **event("ab", [1, 2], finish_reason=finish, cached_tokens=4, decode_time=0.5)})
    assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == ("b", (2,), "stop", "!")
    assert last.usage is not None and last.prompt is None
    assert (last.usage.cached_tokens, last.usage.completion_tokens, last.usage.decode_s) == (4, 2, 0.5)
    other = reader.chunk({"index": 0, **event("z", [3], finish_reason={"type": "length", "length": 1})})
    assert (other.choice, other.text, other.finish_reason, other.stop_reason) == (0, "z", "length", "")


def test_logprobs_of_events() -> None:
    entries, tops = [[-0.5, 1, "a"], [-0.25, 2, "bytes:\\xf0\\x9f"]], [[[-0.5, 1, "a"]], [[-0.25, 2, "b"]]]
    given = event(
        "a",
        [1, 2],
        output_token_logprobs=entries,
        output_top_logprobs=tops,
        input_token_logprobs=[[None, 7, None], [-1.0, 8, "x"]],
        input_top_logprobs=[None, [[-1.0, 8, "x"]]],
    )
    both = EventReader("r", checked({"logprobs": 1, "prompt_logprobs": 0}), ()).chunk(given)
    assert [(e.token_id, e.logprob, e.token, len(e.top)) for e in both.logprobs] == [
        (1, -0.5, b"a", 1),
        (2, -0.25, b"\xf0\x9f", 1),
    ]
    assert both.prompt is not None and [(e.token_id, len(e.top)) for e in both.prompt.logprobs] == [(8, 0)]
    neither = EventReader("r", checked({}), ()).chunk(given)
    assert neither.logprobs == () and neither.prompt is not None and neither.prompt.logprobs == ()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "context_length_exceeded", InvalidRequest),
        (404, "model_not_found", ModelNotFound),
        (413, "body_too_large", InvalidRequest),
        (422, "", InvalidRequest),
        (429, "overloaded", Overloaded),
        (501, "unsupported", Unsupported),
        (503, "draining", Draining),
        (503, "", Unavailable),
        (502, "", PeerLost),
        (500, "new_reason", Internal),
        (0, "peer_lost", PeerLost),
    ],
)
def test_errors_keep_their_class(status: int, code: str, kind: type[PandoError]) -> None:
    body = {"error": {"message": "m", "type": "t", "param": "p", "code": code or None}}
    error = error_of(status, body, 2.0)
    assert type(error) is kind and error.reason == (code or kind.default_reason)
    assert (error.message, error.param, error.retry_after_s) == ("m", "p", 2.0)


def test_errors_name_the_option_and_not_the_field_of_the_native_format() -> None:
    named = {"sampling_params.max_new_tokens": "max_tokens", "sampling_params.n": "n", "text": "prompt", "": ""}
    for field, option in {**named, "rid": "request_id", "sampling_params.regex": "regex"}.items():
        assert error_of(400, {"error": {"message": "m", "param": field or None}}, 0.0).param == option


def test_an_error_without_a_body() -> None:
    error = error_of(503, None, 0.0)
    assert isinstance(error, Unavailable) and "503" in error.message


def test_events_of_lines() -> None:
    lines = ["", ": comment", 'data: {"text": "a"}', "", "data: [DONE]", 'data: {"text": "late"}']
    assert list(http_codec.events(iter(lines))) == [{"text": "a"}]
    with pytest.raises(PeerLost):
        list(http_codec.events(iter(lines[:4])))
    with pytest.raises(Overloaded):
        list(http_codec.events(iter(['data: {"error": {"message": "m", "code": "overloaded"}}'])))
    with pytest.raises(Internal):
        list(http_codec.events(iter(["data: 5"])))


def test_tokenizing() -> None:
    chat = Chat([{"role": "user", "content": "hi"}], continue_final_message=True)
    assert http_codec.tokenize_body(chat, "m", False)["messages"] == [{"role": "user", "content": "hi"}]
    assert http_codec.tokenize_body("x", "", False)["add_special_tokens"] is False
    with pytest.raises(Unsupported):
        http_codec.tokenize_body(Chat(chat.messages, tools=[{"type": "function"}]), "", False)
    answer = {"tokens": [1, 2], "token_strs": ["a", "bytes:\\xc3"], "max_model_len": 5}
    assert http_codec.tokenized(answer, chat).text == "a\ufffd"
    assert token_bytes("bytes:plain") == b"bytes:plain"


def test_a_tenant_is_told_by_the_key_and_a_wrong_key_is_a_refusal() -> None:
    with pytest.raises(Unsupported) as caught:
        generate_body("hi", checked({"tenant": "acme"}))
    assert caught.value.param == "tenant"
    refused = error_of(401, {"error": {"message": "no", "code": "invalid_api_key"}}, 0.0)
    assert isinstance(refused, PermissionDenied) and refused.reason == "invalid_api_key"
