"""Cases of the HTTP API that other servers got wrong, as checks that need only a URL.

`api_cases.jsonl` holds the requests and rules with the issues they come from (`source`). `CASES` maps a case's id to
a function of a `Target` that raises AssertionError when a rule is broken; they run against the gateway over a
fake router and against a whole cluster alike, so they assume nothing about the text.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
Json = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """Where to send requests. `wait_s` bounds every wait for a counter."""

    url: str
    model: str
    timeout_s: float = 60.0
    wait_s: float = 2.0

    def client(self) -> httpx.Client:
        """A client of its own for each use: checks run in threads."""
        return httpx.Client(base_url=self.url, timeout=self.timeout_s, verify=False)

    def get(self, path: str) -> httpx.Response:
        """One GET."""
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: Json) -> httpx.Response:
        """One request, whole answer."""
        with self.client() as client:
            return client.post(path, json=body)

    def ok(self, path: str, body: Json) -> Json:
        """One request that must succeed."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        document: Json = _strict_json(response.content)
        return document

    def stream(self, path: str, body: Json) -> list[Json]:
        """All events of a stream, which must end with [DONE]."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        return events_of(response.content)

    def refused(self, path: str, body: Json, status: int = 400) -> Json:
        """The error of a request that must be refused."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        document = _strict_json(response.content)
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"message", "type", "param", "code"}, document
        error: Json = document["error"]
        return error

    def outcomes(self, outcome: str) -> float:
        """The gateway's count of requests that ended so, over all routes."""
        text = self.get("/metrics").text
        pattern = rf'^pando_gateway_requests_total{{.*outcome="{outcome}".*}} ([0-9.e+]+)$'
        return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))


def _strict_json(raw: bytes) -> Any:
    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    return json.loads(raw.decode("utf-8"), parse_constant=refuse)


def events_of(raw: bytes) -> list[Json]:
    """The events of a whole stream. Raises AssertionError unless [DONE] is the last one and there once."""
    datas = [part.removeprefix("data: ") for part in raw.decode("utf-8").split("\n\n") if part]
    assert datas[-1] == "[DONE]", datas[-1]
    assert datas.count("[DONE]") == 1
    return [_strict_json(data.encode()) for data in datas[:-1]]


def check_broken_stream(events: list[Json]) -> None:
    """A stream whose worker died: unbroken to its end, or one error as the last event and no finish_reason."""
    errors = [event for event in events if "error" in event]
    finishes = _finishes(events)
    if errors:
        assert len(errors) == 1 and events[-1] is errors[0], events
        assert set(errors[0]["error"]) == {"message", "type", "param", "code"}
        assert finishes == [], "an error and a made-up finish_reason"
    else:
        assert len(finishes) == 1, finishes


def text_of(events: list[Json]) -> str:
    """Text of a stream's only choice."""
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def _finishes(events: list[Json]) -> list[str]:
    choices = [choice for event in events for choice in event.get("choices", [])]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


def load_cases() -> dict[str, Json]:
    """Rows of the data file by id."""
    lines = Path(__file__).with_name("api_cases.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["id"]: row for row in rows}


def _body(case: str, target: Target) -> Json:
    body: Json = _expand(load_cases()[case]["request"]["body"], target.model)
    return body


def _expand(value: Any, model: str) -> Any:
    """`$MODEL` and `$REPEAT('word ',count)` filled in."""
    if isinstance(value, dict):
        return {key: _expand(entry, model) for key, entry in value.items()}
    if isinstance(value, list):
        return [_expand(entry, model) for entry in value]
    if value == "$MODEL":
        return model
    repeat = re.fullmatch(r"\$REPEAT\('(.*)',(\d+)\)", value) if isinstance(value, str) else None
    return repeat[1] * int(repeat[2]) if repeat else value


Check = Callable[[Target], None]
CASES: dict[str, Check] = {}


def _case(name: str) -> Callable[[Callable[[Target, Json], None]], Check]:
    """Register a check under its id; it is called with the case's body."""

    def register(check: Callable[[Target, Json], None]) -> Check:
        def run(target: Target) -> None:
            check(target, _body(name, target))

        CASES[name] = run
        return run

    return register


@_case("stream-usage-last-chunk-only")
def check_stream_usage(target: Target, body: Json) -> None:
    events = target.stream(CHAT, body)
    with_usage = [event for event in events if event["choices"] == []]
    assert with_usage == [events[-1]] and events[-1]["usage"] is not None
    assert all(event.get("usage") is None for event in events[:-1])
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@_case("stream-chunk-object-field")
def check_stream_chunks(target: Target, body: Json) -> None:
    for n in (1, 2):
        events = target.stream(CHAT, {**body, "n": n})
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        for index in range(n):
            choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
            assert choices[0]["delta"]["role"] == "assistant"
            assert sum(choice["finish_reason"] is not None for choice in choices) == 1


@_case("continuous-usage-cumulative")
def check_continuous_usage(target: Target, body: Json) -> None:
    usages = [event["usage"] for event in target.stream(CHAT, body) if event["usage"] is not None]
    counts = [usage["completion_tokens"] for usage in usages]
    assert len(counts) > 2 and counts == sorted(counts)
    assert counts[-1] == counts[-2] <= body["max_tokens"]
    assert len({usage["prompt_tokens"] for usage in usages}) == 1
    long = {**body, "messages": [{"role": "user", "content": "one two " * 150}], "max_tokens": 1}
    usages = [event["usage"] for event in target.stream(CHAT, long) if event["usage"] is not None]
    assert {usage["completion_tokens"] for usage in usages} == {1}


@_case("chat-logprobs-without-top")
def check_logprobs_without_top(target: Target, body: Json) -> None:
    answer = target.ok(CHAT, body)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    for entry in content:
        assert set(entry) >= {"token", "logprob", "bytes", "top_logprobs"}
        assert isinstance(entry["token"], str) and entry["top_logprobs"] == []
    raw = bytes(byte for entry in content for byte in entry["bytes"])
    assert raw.decode(errors="ignore").startswith(answer["choices"][0]["message"]["content"])


@_case("logprobs-with-byte-tokens")
def check_byte_tokens(target: Target, body: Json) -> None:
    logprobs = target.ok(COMPLETIONS, body)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"])
    assert all(isinstance(token, str) for token in logprobs["tokens"])
    assert all(len(top) >= body["logprobs"] for top in logprobs["top_logprobs"]), "look-alike tokens were merged"
    echoed = target.ok(COMPLETIONS, {**body, "echo": True})["choices"][0]["logprobs"]
    assert all(math.isfinite(value) for value in echoed["token_logprobs"][1:])


@_case("stop-string-over-token-boundary-stream")
def check_stop_string(target: Target, body: Json) -> None:
    free = target.ok(CHAT, {key: value for key, value in body.items() if key not in ("stop", "stream")})
    text = free["choices"][0]["message"]["content"]
    if body["stop"][0] not in text:  # a model that does not do as it is told: stop in the middle of what it says
        body = {**body, "stop": [text[len(text) // 2 :][:6]]}
    events = target.stream(CHAT, body)
    whole = target.ok(CHAT, {**body, "stream": False})["choices"][0]
    assert text_of(events) == whole["message"]["content"]
    assert body["stop"][0] not in text_of(events)
    assert _finishes(events) == [whole["finish_reason"]] == ["stop"]


@_case("stop-more-than-four")
def check_stop_count(target: Target, body: Json) -> None:
    assert target.refused(CHAT, body)["param"] == "stop"
    assert target.post(CHAT, {**body, "stop": body["stop"][:4]}).status_code == 200


@_case("max-tokens-zero-chat")
def check_max_tokens_zero(target: Target, body: Json) -> None:
    before = target.outcomes("client_error"), target.outcomes("server_error")
    assert target.refused(CHAT, body)["param"] == "max_tokens"
    newer = {key: value for key, value in body.items() if key != "max_tokens"} | {"max_completion_tokens": 0}
    assert target.refused(CHAT, newer)["param"] == "max_completion_tokens"
    assert (target.outcomes("client_error"), target.outcomes("server_error")) == (before[0] + 2, before[1])


@_case("n2-at-temperature-zero")
def check_n2_greedy(target: Target, body: Json) -> None:
    choices = target.ok(COMPLETIONS, body)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert choices[0]["text"] == choices[1]["text"]


@_case("stop-token-ids-out-of-vocab")
def check_stop_token_ids(target: Target, body: Json) -> None:
    assert "stop_token_ids" in target.refused(CHAT, body)["message"]
    assert target.post(CHAT, {**body, "stop_token_ids": []}).status_code == 200


@_case("prompt-token-id-out-of-vocab")
def check_prompt_ids(target: Target, body: Json) -> None:
    for prompt in (body["prompt"], [2**32 - 1], [-1], [[1, 2], [2**70]], [1, True]):
        assert target.refused(COMPLETIONS, {**body, "prompt": prompt})["param"] == "prompt"


@_case("prompt-plus-max-tokens-over-context")
def check_max_tokens_over_context(target: Target, body: Json) -> None:
    body = {**body, "stop": [" ", "\n", "e"]}
    answer = target.ok(CHAT, body)
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    small = target.ok(CHAT, {**body, "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] == small["usage"]["prompt_tokens"]


@_case("context-overflow-keeps-error-clear")
def check_context_overflow(target: Target, body: Json) -> None:
    error = target.refused(CHAT, body)
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"


@_case("template-rejects-roles")
def check_roles(target: Target, body: Json) -> None:
    error = target.refused(CHAT, body)
    assert "robot" in error["message"] and "Traceback" not in error["message"]


@_case("cached-tokens-never-null")
def check_cached_tokens(target: Target, body: Json) -> None:
    streamed = target.stream(CHAT, body)[-1]["usage"]
    whole = target.ok(CHAT, {key: value for key, value in body.items() if not key.startswith("stream")})["usage"]
    for usage in (streamed, whole):
        assert type(usage["prompt_tokens_details"]["cached_tokens"]) is int
        assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    assert whole["prompt_tokens_details"]["cached_tokens"] > 0, "a repeated prompt"


def _leave_after(target: Target, body: Json, num_chunks: int) -> None:
    with target.client() as client, client.stream("POST", CHAT, json=body) as response:
        lines = response.iter_lines()
        for _ in range(num_chunks):
            next(lines)


def _leave_before_answer(target: Target, body: Json, after_s: float) -> None:
    with target.client() as client, contextlib.suppress(httpx.ReadTimeout):
        client.post(CHAT, json=body, timeout=httpx.Timeout(target.timeout_s, read=after_s))


@_case("aborted-requests-are-counted")
def check_aborts_counted(target: Target, body: Json) -> None:
    before = target.outcomes("disconnect")
    _leave_after(target, {**body, "ignore_eos": True, "max_tokens": 1500}, 2)
    limit = time.monotonic() + target.wait_s
    while target.outcomes("disconnect") != before + 1:
        assert time.monotonic() < limit, "the abort was not counted"
        time.sleep(0.02)


@_case("abort-does-not-crash-cache-layer")
def check_service_after_abort(target: Target, body: Json) -> None:
    _leave_before_answer(target, {**body, "stream": False}, 0.01)
    _leave_after(target, body, 3)
    assert target.ok(CHAT, {**body, "stream": False, "max_tokens": 4})["choices"][0]["finish_reason"]


@_case("health-while-loading-and-when-dead")
def check_health(target: Target, body: Json) -> None:
    assert target.get("/health/live").status_code == 200
    assert target.get("/health").json() == {"status": "healthy"}
    for path in ("/ready", "/health/ready"):
        response = target.get(path)
        assert response.status_code == 200 or (response.status_code == 503 and response.json()["reason"])


@_case("seed-is-used")
def check_seed(target: Target, body: Json) -> None:
    def text(seed: int) -> str:
        answer: str = target.ok(COMPLETIONS, {**body, "seed": seed})["choices"][0]["text"]
        return answer

    alone = text(42)
    noise = {**body, "prompt": "Other words", "seed": 7, "n": 3, "max_tokens": 64}
    thread = threading.Thread(target=target.post, args=(COMPLETIONS, noise))
    thread.start()
    assert text(42) == alone
    thread.join()
    assert text(43) != alone


@_case("echo-logprobs-per-position")
def check_echo_logprobs(target: Target, body: Json) -> None:
    cold, warm = (target.ok(COMPLETIONS, body)["choices"][0] for _ in range(2))
    for choice in (cold, warm):
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert choice["text"].startswith(body["prompt"])
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert len({json.dumps(top) for top in logprobs["top_logprobs"][1:]}) > 1, "one row repeated"
        for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
            assert choice["text"].startswith(token, offset)
    assert cold["text"] == warm["text"]
    for one, other in zip(cold["logprobs"]["token_logprobs"][1:], warm["logprobs"]["token_logprobs"][1:], strict=True):
        assert math.isclose(one, other, abs_tol=1e-4)


@_case("error-body-is-nested")
def check_error_body(target: Target, body: Json) -> None:
    assert target.refused(CHAT, body, status=404)["code"] == "model_not_found"
    with openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0) as client:
        try:
            client.chat.completions.create(**body)
        except openai.NotFoundError as error:
            assert error.code == "model_not_found" and error.param == "model"
        else:
            raise AssertionError("no NotFoundError")


def _fits_one_integer(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == {"x"} and type(value["x"]) is int


@_case("json-schema-is-enforced")
def check_schema_enforced(target: Target, body: Json) -> None:
    for n in (1, 2):
        for choice in target.ok(CHAT, {**body, "n": n, "temperature": 0 if n == 1 else 1.0, "seed": 2})["choices"]:
            assert choice["finish_reason"] in ("stop", "length")
            if choice["finish_reason"] == "stop":
                assert _fits_one_integer(choice["message"]["content"]), choice
    wrapper = {"type": "json_schema", "json_schema": {"name": "p", "schema": "no"}}
    assert target.refused(CHAT, {**body, "response_format": wrapper})["param"].startswith("response_format")


@_case("json-schema-stream-has-finish")
def check_cut_schema(target: Target, body: Json) -> None:
    assert _finishes(target.stream(CHAT, body)) == ["length"]
    long = target.stream(CHAT, {**body, "max_tokens": 200})
    assert _finishes(long) in (["stop"], ["length"])
    if _finishes(long) == ["stop"]:
        assert isinstance(json.loads(text_of(long))["city"], str)


@_case("tool-call-deltas-well-formed")
def check_tool_calls(target: Target, body: Json) -> None:
    schema = body["tools"][0]["function"]["parameters"]["properties"]
    other = {"type": "function", "function": {**body["tools"][0]["function"], "name": "subtract"}}
    roomy = {**body, "max_tokens": 120}
    for ask in (body, {**roomy, "tools": [*body["tools"], other], "tool_choice": "required"}, {**roomy, "n": 2}):
        events = target.stream(CHAT, ask)
        for index in range(ask.get("n", 1)):
            calls, finish = _joined_calls(events, index)
            assert finish in ("tool_calls", "length")
            if finish == "tool_calls":
                assert calls and len({call["id"] for call in calls.values()}) == len(calls)
                assert list(calls) == list(range(len(calls))), "numbered from 0"
                for call in calls.values():
                    arguments = json.loads(call["arguments"])
                    assert set(arguments) == set(schema) and all(type(v) is int for v in arguments.values())
    whole = target.ok(CHAT, {**roomy, "stream": False})["choices"][0]
    if whole["finish_reason"] == "tool_calls":
        assert whole["message"]["content"] is None and whole["message"]["tool_calls"][0]["function"]["name"] == "add"


def _joined_calls(events: list[Json], index: int) -> tuple[dict[int, Json], str]:
    """The calls of a choice and its finish_reason; checks the shape of every delta."""
    calls: dict[int, Json] = {}
    finish = ""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", ()):
            assert type(delta["index"]) is int and isinstance(delta["function"]["arguments"], str), delta
            if delta["index"] not in calls:
                assert delta["id"] and delta["type"] == "function" and delta["function"]["name"], delta
                calls[delta["index"]] = {"id": delta["id"], "arguments": ""}
            else:
                assert not {"id", "type"} & set(delta) and "name" not in delta["function"], delta
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return calls, finish
