"""The gateway's rules over real HTTP, with a fake router behind real gRPC and clients as users have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from common.base.errors import Cancelled, DeadlineExceeded, Internal, Leg, Overloaded, PandoError, PeerLost
from common.base.limits import LimitsConfig
from tests.support.api_cases import Target, check_broken_stream, text_of
from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread

CHAT = "/v1/chat/completions"
LIMITS = LimitsConfig(max_body_bytes=100_000, max_prompts=8, max_choices=16)
HELLO: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
PROMPT: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 8}


def _told(event: Any) -> Any:
    """What an event says, without ids and times."""
    if "choices" in event:
        return [(choice.get("delta") or choice["text"], choice["finish_reason"]) for choice in event["choices"]]
    return event["text"], event["meta_info"]["finish_reason"]


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayThread]:
    with GatewayThread(limits=LIMITS, max_parallel_prompts=3) as running:
        yield running


@pytest.fixture
def gateway(shared: GatewayThread) -> Iterator[GatewayThread]:
    shared.set_knobs(Knobs())
    shared.fake.requests.clear()
    yield shared
    shared.resume()
    shared.settle()


@pytest.fixture
def target(gateway: GatewayThread) -> Target:
    return Target(gateway.url, MODEL)


@pytest.fixture
def sdk(gateway: GatewayThread) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_sdk_streams_what_it_gets_in_one_piece(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(**HELLO)
    chunks = list(sdk.chat.completions.create(**HELLO, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8
    assert whole.usage.prefill_time == 0.25 and whole.usage.decode_time == 0.5  # type: ignore[attr-defined]
    assert whole.id.startswith("chatcmpl-") and whole.object == "chat.completion"


def test_sdk_reads_logprobs_of_both_styles(sdk: openai.OpenAI) -> None:
    chat = sdk.chat.completions.create(**HELLO, logprobs=True, top_logprobs=2)
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content] == [2] * 8
    plain = sdk.completions.create(**PROMPT, logprobs=2, echo=True)
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.tokens is not None
    assert len(plain.choices[0].logprobs.tokens) == len("hello") + 8


def test_sdk_lists_and_finds_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).owned_by == "pando"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    "case",
    [
        (Overloaded("full", retry_after_s=2.5), openai.RateLimitError, {"retry-after": "3", "x-should-retry": "true"}),
        (PeerLost("gone"), openai.InternalServerError, {"retry-after": "1", "x-should-retry": "true"}),
        (DeadlineExceeded("late"), openai.InternalServerError, {"x-should-retry": "false"}),
        (Internal("bug"), openai.InternalServerError, {"x-should-retry": "false"}),
        (Cancelled("aborted"), openai.APIStatusError, {"x-should-retry": "false"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_byte_has_its_status(
    gateway: GatewayThread, sdk: openai.OpenAI, case: tuple[PandoError, Any, dict[str, str]], stream: bool
) -> None:
    error, raised, headers = case
    gateway.set_knobs(Knobs(fail_at=0, error=error))
    with pytest.raises(raised) as caught:
        sdk.chat.completions.create(**HELLO, stream=stream)
    response = caught.value.response
    assert response.status_code == error.http_status
    assert {name: response.headers.get(name) for name in headers} == headers
    assert caught.value.code == error.reason
    assert ("retry-after" in response.headers) == (error.http_status in (429, 503))


def test_failure_in_midstream_is_an_error_event(gateway: GatewayThread, target: Target, sdk: openai.OpenAI) -> None:
    before = target.outcomes("server_error")
    gateway.set_knobs(Knobs(fail_at=5, error=PeerLost("decode worker gone", leg=Leg.DECODE)))
    events = target.stream(CHAT, HELLO)
    check_broken_stream(events)
    assert events[-1]["error"]["code"] == "peer_lost" and len(events) > 3
    with pytest.raises(openai.APIError, match="decode worker gone"):
        list(sdk.chat.completions.create(**HELLO, stream=True))
    gateway.settle()
    assert target.outcomes("server_error") == before + 2


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
def test_stream_without_an_end_is_never_finished(gateway: GatewayThread, target: Target, path: str) -> None:
    gateway.set_knobs(Knobs(abort_at=3))
    body = {CHAT: HELLO, "/v1/completions": PROMPT, "/generate": {"text": "hello"}}[path]
    events = target.stream(path, body)
    assert "error" in events[-1] and "error" not in events[-2]
    assert target.post(path, body).status_code == 499


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
def test_a_router_that_cuts_streams_short_is_asked_for_the_rest(
    gateway: GatewayThread, target: Target, path: str
) -> None:
    body = {CHAT: HELLO, "/v1/completions": PROMPT, "/generate": {"text": "hello"}}[path]
    if path == "/generate":
        body = {**body, "sampling_params": {"max_new_tokens": 8}}
    undisturbed = [_told(event) for event in target.stream(path, body)]
    num_calls = len(gateway.fake.requests)
    gateway.set_knobs(Knobs(cut_at=5))
    assert [_told(event) for event in target.stream(path, body)] == undisturbed
    first, second = gateway.fake.requests[num_calls:]
    assert second.request_id.startswith(first.request_id) and len(second.output_token_ids) == 5
    assert second.sampling.seed == first.sampling.seed


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_cancels_the_call_at_once(gateway: GatewayThread, target: Target, stream: bool) -> None:
    before, cancelled, paused = target.outcomes("disconnect"), gateway.fake.num_cancelled, gateway.fake.num_paused
    gateway.set_knobs(Knobs(pause_at=3))

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
            asking = asyncio.create_task(client.post(CHAT, json={**HELLO, "stream": stream}))
            assert await asyncio.to_thread(gateway.fake.wait_for, lambda: gateway.fake.num_paused > paused)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(leave())
    assert gateway.fake.wait_for(lambda: gateway.fake.num_cancelled == cancelled + 1)
    gateway.settle()
    assert target.outcomes("disconnect") == before + 1


def test_leaving_cancels_all_prompts_of_a_batch(gateway: GatewayThread, target: Target) -> None:
    gateway.set_knobs(Knobs(pause_at=3))
    body = {**PROMPT, "prompt": ["a", "b", "c"], "stream": True, "seed": 5}
    with target.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
        assert gateway.fake.wait_for(lambda: gateway.fake.num_active == 3)
    assert gateway.fake.wait_for(lambda: gateway.fake.num_active == 0)


def test_batch_runs_bounded_and_numbers_choices_by_prompt(gateway: GatewayThread, target: Target) -> None:
    prompts = [f"prompt {number}" for number in range(8)]
    gateway.fake.max_active = 0
    body = {**PROMPT, "prompt": prompts, "n": 2, "seed": 5}
    gateway.set_knobs(Knobs(pause_at=1))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(target.ok, "/v1/completions", body)
        as_many_as_may = gateway.fake.wait_for(lambda: gateway.fake.num_active == 3)
        gateway.resume()
        answer = asking.result(60)
    assert [choice["index"] for choice in answer["choices"]] == list(range(16))
    assert as_many_as_may and gateway.fake.max_active == 3
    gateway.set_knobs(Knobs())
    for number in (0, 7):
        alone = target.ok("/v1/completions", {**body, "prompt": prompts[number]})["choices"]
        batch = answer["choices"][2 * number : 2 * number + 2]
        assert [choice["text"] for choice in alone] == [choice["text"] for choice in batch]
    assert answer["usage"]["prompt_tokens"] == 8 * len("prompt 0") and answer["usage"]["completion_tokens"] == 128
    events = target.stream("/v1/completions", body)
    for choice in answer["choices"]:
        mine = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == ["length"]


def test_one_failing_prompt_fails_the_batch_with_its_error(target: Target) -> None:
    error = target.refused("/v1/completions", {**PROMPT, "prompt": ["a", "", "b"]})
    assert error["param"] == "prompt"


def test_prompt_shapes_mean_the_same(target: Target) -> None:
    ids = list(b"hello")
    answers = [
        target.ok("/v1/completions", {**PROMPT, "prompt": prompt}) for prompt in ("hello", ["hello"], ids, [ids])
    ]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1


def test_echo_of_ids_and_scoring_without_output(target: Target) -> None:
    body = {"model": MODEL, "prompt": list(b"hi"), "echo": True, "logprobs": 1, "max_tokens": 0}
    choice = target.ok("/v1/completions", body)["choices"][0]
    assert choice["text"] == "hi" and choice["logprobs"]["tokens"] == ["h", "i"]
    events = target.stream("/v1/completions", body)
    assert text_of(events) == "hi"


def test_model_may_be_left_out(target: Target) -> None:
    body = {key: value for key, value in HELLO.items() if key != "model"}
    assert target.ok(CHAT, body)["model"] == MODEL


@pytest.mark.parametrize(
    ("path", "raw", "expected"),
    [
        (CHAT, b"{", (400, None, "invalid_json")),
        (CHAT, b"[]", (400, None, "invalid_json")),
        (CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}', (400, None, "invalid_json")),
        (CHAT, b"{}", (400, "messages", "missing_field")),
        (CHAT, b" " * 100_001, (413, None, "body_too_large")),
        ("/v1/completions", b'{"prompt": {}}', (400, "prompt", "invalid_request")),
        ("/generate", b'{"text": "a", "input_ids": [1]}', (400, "text", "invalid_request")),
        ("/nowhere", b"{}", (404, None, "not_found")),
        ("/health", b"{}", (405, None, "method_not_allowed")),
    ],
)
def test_refusals_have_one_shape(target: Target, path: str, raw: bytes, expected: tuple[int, str | None, str]) -> None:
    status, param, code = expected
    with target.client() as client:
        response = client.post(path, content=raw)
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code) and error["message"]
    assert response.headers["x-request-id"] and response.headers["x-should-retry"] == "false"


def test_body_without_a_length_is_limited_too(target: Target) -> None:
    with target.client() as client:
        response = client.post(CHAT, content=(b" " * 1000 for _ in range(200)))
    assert response.status_code == 413


def test_request_id_is_ours_unless_the_clients_is_sane(gateway: GatewayThread, target: Target) -> None:
    with target.client() as client:
        ids = [
            client.post(CHAT, json=HELLO, headers=headers).headers["x-request-id"]
            for headers in ({}, {"x-request-id": "abc-1"}, {"x-request-id": "a b"}, {"x-request-id": "x" * 500})
        ]
    assert ids[1] == "abc-1"
    assert [ids[0], ids[2], ids[3]] == [gateway.fake.requests[index].request_id for index in (0, 2, 3)]


def test_native_answers_and_streams_the_text_so_far(target: Target) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 6}, "return_logprob": True, "logprob_start_len": 0}
    whole = target.ok("/generate", body)
    meta = whole["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (5, 6, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 6} and meta["e2e_latency"] > 0
    assert [entry[1] for entry in meta["output_token_logprobs"]] == whole["output_ids"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == list(b"hello")
    later = target.ok("/generate", {**body, "logprob_start_len": 3})["meta_info"]["input_token_logprobs"]
    assert later == meta["input_token_logprobs"][3:]
    events = target.stream("/generate", body)
    assert events[-1]["text"] == whole["text"] and events[-1]["output_ids"] == whole["output_ids"]
    assert all(events[-1]["text"].startswith(event["text"]) for event in events)
    assert [event["meta_info"]["finish_reason"] is not None for event in events] == [False] * 5 + [True]
    batch = target.post("/generate", {**body, "text": ["a", "b"]}).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in batch] == [1, 1]


def test_native_names_are_those_of_its_callers(target: Target) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 0}}
    assert target.refused("/generate", body)["param"] == "sampling_params.max_new_tokens"
    assert target.refused("/generate", {"input_ids": [999]})["param"] == "input_ids"


def test_tokenize_and_back(target: Target) -> None:
    answer = target.ok("/tokenize", {"prompt": "é!", "return_token_strs": True})
    assert answer["tokens"] == [0xC3, 0xA9, 0x21] and answer["count"] == 3 and answer["max_model_len"] == 2048
    assert answer["token_strs"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert target.ok("/detokenize", {"tokens": answer["tokens"]}) == {"prompt": "é!"}
    assert target.ok("/tokenize", {"messages": HELLO["messages"]})["count"] == len("user: hello\nassistant: ")


def test_client_deadline_reaches_the_router(gateway: GatewayThread, target: Target) -> None:
    gateway.set_knobs(Knobs(pause_at=0))
    assert target.refused(CHAT, {**HELLO, "timeout_s": 0.1}, status=504)["code"] == "deadline_exceeded"


def test_metrics_count_tokens_and_time(target: Target) -> None:
    target.ok(CHAT, HELLO)
    text = target.get("/metrics").text
    histograms = [f"{name}_seconds_count" for name in ("ttft", "itl", "tpot", "e2e")]
    for name in ("running_requests", "tokens_total", *histograms):
        assert f"pando_gateway_{name}" in text
    assert "HELP pando_gateway_ttft_seconds from arrival" in text


def test_readiness_follows_the_router_and_liveness_does_not() -> None:
    with GatewayThread() as gateway:
        target = Target(gateway.url, MODEL)
        assert target.get("/ready").json() == {"status": "ready"}
        gateway.call(gateway.rpc.set_serving(False))
        answer = target.get("/health/ready")
        assert answer.status_code == 503 and "no ready workers" in answer.json()["reason"]
        gateway.call(gateway.rpc.stop(0))
        answer = target.get("/ready")
        assert answer.status_code == 503 and gateway.router_address in answer.json()["reason"]
        assert target.get("/").json() == {"status": "healthy"}
        assert target.refused(CHAT, HELLO, status=503)["code"] == "peer_lost"


def test_bound_on_running_requests_is_429() -> None:
    with GatewayThread(max_running_requests=1) as gateway:
        target = Target(gateway.url, MODEL)
        gateway.set_knobs(Knobs(pause_at=1))
        with target.client() as client, client.stream("POST", CHAT, json={**HELLO, "stream": True}) as first:
            lines = first.iter_lines()
            next(lines)
            assert target.refused(CHAT, HELLO, status=429)["code"] == "overloaded"
            gateway.resume()
            assert "data: [DONE]" in list(lines)
        gateway.settle()
        assert target.ok(CHAT, HELLO)


def test_drain_lets_a_stream_finish() -> None:
    with GatewayThread() as gateway:
        target = Target(gateway.url, MODEL)
        gateway.set_knobs(Knobs(pause_at=3))
        with target.client() as client, client.stream("POST", CHAT, json={**HELLO, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            assert gateway.fake.wait_for(lambda: gateway.fake.num_paused == 1)
            gateway.drain()
            gateway.resume()
            rest = list(lines)
        assert rest[-2] == "data: [DONE]" and '"finish_reason":"length"' in rest[-4]
    with pytest.raises(httpx.ConnectError):
        target.get("/health")


def test_rewritten_prompts_say_so() -> None:
    rules = [{"name": "greeting", "pattern": "hi[ ,!]+"}]
    with GatewayThread(rewrites=rules) as gateway:
        target = Target(gateway.url, MODEL)
        greeted = {**HELLO, "messages": [{"role": "user", "content": "Hi, hello"}], "temperature": 0}
        responses = [target.post(CHAT, body) for body in ({**HELLO, "temperature": 0}, greeted)]
        plain, rewritten = (response.json() for response in responses)
        assert plain["choices"][0]["message"] == rewritten["choices"][0]["message"]
        assert [response.headers.get("x-pando-rewrites") for response in responses] == [None, "greeting"]
        assert "rewrites" not in plain["usage"]["pando"]
        said = [{"rule": "greeting", "removed": "Hi, ", "inserted": ""}]
        assert rewritten["usage"]["pando"]["rewrites"] == said
        streamed = target.stream(CHAT, {**greeted, "stream_options": {"include_usage": True}})
        assert streamed[-1]["usage"]["pando"]["rewrites"] == said
        answer = target.ok("/v1/responses", {"input": "hi! hello", "temperature": 0, "max_output_tokens": 8})
        assert answer["usage"]["pando"]["rewrites"][0]["removed"] == "hi! "
        stored = target.get(f"/v1/responses/{answer['id']}/input_items").json()["data"]
        assert stored[0]["content"][0]["text"] == "hi! hello", "what the client sent"
        assert 'pando_gateway_rewrites_total{rule="greeting"} 3.0' in target.get("/metrics").text


def test_best_of_draws_more_than_it_tells(gateway: GatewayThread, target: Target) -> None:
    choices = target.ok("/v1/completions", {**PROMPT, "n": 2, "best_of": 4})["choices"]
    assert [choice["index"] for choice in choices] == [0, 1] and gateway.fake.requests[-1].n == 4
    assert target.refused("/v1/completions", {**PROMPT, "best_of": 17})["param"] == "best_of"


def test_a_key_that_is_too_long_is_named_as_it_came(target: Target) -> None:
    for name in ("session_id", "prompt_cache_key"):
        assert target.refused(CHAT, {**HELLO, name: "x" * 200})["param"] == name


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {**HELLO, "n": 17}, "n"),
        ("/v1/completions", {**PROMPT, "n": 17}, "n"),
        ("/v1/completions", {**PROMPT, "n": 2, "best_of": 17}, "best_of"),
        ("/generate", {"text": "hello", "sampling_params": {"n": 17}}, "sampling_params.n"),
    ],
)
def test_too_many_choices_are_blamed_on_the_field_that_asked_for_them(
    target: Target, path: str, body: dict[str, Any], param: str
) -> None:
    response = target.post(path, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param and error["message"].startswith(f"{param}: 1 prompts x 17 choices")
