"""The four clients over real sockets, against a gateway and a router without a cluster: one surface, one behaviour."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pando
from common.base.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Leg,
    ModelNotFound,
    Overloaded,
    PeerLost,
    Unsupported,
)
from pando.client.types import Chat
from tests.support.fake_inference import Knobs
from tests.support.gateway_thread import GatewayThread

KINDS = ("Client", "AsyncClient", "HttpClient", "AsyncHttpClient")
MESSAGES = [{"role": "user", "content": "Repeat exactly: héllo 😀 world"}]
QUICK = pando.Retry(first_pause_s=0.001)


class Blocking:
    """An async client (or stream) with the face of a sync one, so that one test serves both."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._wrapped(value) if callable(value) else value

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            async def run() -> Any:
                result = method(*args, **options)
                return await result if inspect.isawaitable(result) else result

            result = self._runner.run(run())
            return Blocking(result, self._runner) if isinstance(result, pando.AsyncStream) else result

        return call

    def __iter__(self) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(chunks, None)

        chunks = aiter(self._inner)
        while (chunk := self._runner.run(following())) is not None:
            yield chunk

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


@pytest.fixture(scope="module")
def served() -> Iterator[GatewayThread]:
    with GatewayThread() as thread:
        yield thread


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, served: GatewayThread) -> Iterator[Any]:
    where = served.url if "Http" in kind else served.router_address
    served.set_knobs(Knobs())
    served.fake.requests.clear()
    made = getattr(pando, kind)(where, retry=QUICK, timeout_s=60.0)
    if "Async" not in kind:
        with made:
            yield made
    else:
        with asyncio.Runner() as runner, Blocking(made, runner) as blocking:
            yield blocking
    served.settle()


def test_generate_text_chat_and_ids(client: Any, kind: str) -> None:
    text = client.generate("Repeat exactly: alpha", max_tokens=50)
    assert (text.text, text.choices[0].finish_reason) == ("alpha", "stop")
    chat = client.generate(MESSAGES, max_tokens=50)
    assert chat.text == "héllo 😀 world"
    ids = client.generate(list(b"Repeat exactly: beta"), max_tokens=3, return_prompt_token_ids=True)
    assert (ids.text, ids.token_ids, ids.choices[0].finish_reason) == ("bet", tuple(b"bet"), "length")
    assert ids.prompt.token_ids == tuple(b"Repeat exactly: beta") and ids.prompt.num_tokens == 20
    assert (ids.usage.prompt_tokens, ids.usage.completion_tokens, ids.usage.decode_s) == (20, 3, 0.5)


def test_a_conversation_can_be_continued(client: Any) -> None:
    open_end = Chat([*MESSAGES, {"role": "assistant", "content": "he"}], continue_final_message=True)
    asked = client.generate(open_end, max_tokens=1, return_prompt_token_ids=True)
    assert bytes(asked.prompt.token_ids).endswith(b"assistant: he")


def test_options_arrive(client: Any, served: GatewayThread) -> None:
    client.generate(
        "hi", max_tokens=2, temperature=0.5, top_k=3, stop=["x", "y"], seed=11, logit_bias={5: 1.0}, request_id="mine"
    )
    request = served.fake.requests[-1]
    sampling = request.sampling
    assert (request.request_id, request.text, sampling.max_tokens, sampling.top_k) == ("mine", "hi", 2, 3)
    assert (sampling.temperature, sampling.seed, list(sampling.stop)) == (0.5, 11, ["x", "y"])
    assert dict(sampling.logit_bias) == {5: 1.0}


def test_choices_and_cached_tokens(client: Any) -> None:
    prompt = "a prompt that is longer than a block of sixteen tokens"
    first = client.generate(prompt, n=3, max_tokens=4, temperature=1.0, seed=5)
    assert len(first.choices) == 3 and len({choice.text for choice in first.choices}) == 3
    again = client.generate(prompt, n=3, max_tokens=4, temperature=1.0, seed=5)
    assert [choice.text for choice in again.choices] == [choice.text for choice in first.choices]
    assert again.usage.cached_tokens == 48 and again.usage.completion_tokens == 12


def test_stream_is_the_same_text_in_pieces(client: Any, kind: str) -> None:
    with client.stream(MESSAGES, max_tokens=50) as stream:
        chunks = list(stream)
        whole = stream.collect()
    assert len(chunks) > 5 and "".join(chunk.text for chunk in chunks) == whole.text == "héllo 😀 world"
    assert [chunk.finish_reason for chunk in chunks][:-1] == [None] * (len(chunks) - 1)
    assert chunks[0].prompt.num_tokens > 0 and chunks[-1].usage.completion_tokens == len(whole.token_ids)
    assert whole.request_id == stream.request_id


def test_logprobs(client: Any) -> None:
    asked = client.generate(list(b"Repeat exactly: xyz"), max_tokens=3, logprobs=2, prompt_logprobs=2)
    entries = asked.choices[0].logprobs
    assert [(entry.token, len(entry.top)) for entry in entries] == [(b"x", 2), (b"y", 2), (b"z", 2)]
    assert entries[1].logprob == pytest.approx(-0.51) and entries[0].top[0].token_id == entries[0].token_id
    assert [entry.token for entry in asked.prompt.logprobs[:3]] == [b"e", b"p", b"e"]


def test_leaving_a_stream_cancels_it(client: Any, served: GatewayThread) -> None:
    served.set_knobs(Knobs(pause_at=2))
    before = served.fake.num_cancelled
    with client.stream("hi", max_tokens=10) as stream:
        next(iter(stream))
    assert served.fake.wait_for(lambda: served.fake.num_cancelled == before + 1)


@pytest.mark.parametrize("pause_at", [0, 2])
@pytest.mark.parametrize("name", ["Client", "HttpClient"])
def test_closing_wakes_the_thread_that_waits(served: GatewayThread, name: str, pause_at: int) -> None:
    served.set_knobs(Knobs(pause_at=pause_at))
    before = served.fake.num_paused
    where = served.url if name == "HttpClient" else served.router_address
    with getattr(pando, name)(where) as client, ThreadPoolExecutor(1) as pool:
        stream = client.stream("hi", max_tokens=10)
        waiting = pool.submit(stream.collect)
        assert served.fake.wait_for(lambda: served.fake.num_paused > before)
        stream.close()
        assert isinstance(waiting.exception(timeout=60), Cancelled)
    served.settle()


@pytest.mark.parametrize("pause_at", [0, 2])
@pytest.mark.parametrize("name", ["AsyncClient", "AsyncHttpClient"])
async def test_closing_wakes_the_task_that_waits(served: GatewayThread, name: str, pause_at: int) -> None:
    served.set_knobs(Knobs(pause_at=pause_at))
    before = served.fake.num_paused
    where = served.url if name == "AsyncHttpClient" else served.router_address
    async with getattr(pando, name)(where) as client:
        stream = client.stream("hi", max_tokens=10)
        waiting = asyncio.create_task(stream.collect())
        assert await asyncio.to_thread(served.fake.wait_for, lambda: served.fake.num_paused > before)
        await stream.close()
        async with asyncio.timeout(60):
            with pytest.raises(Cancelled):
                await waiting
    await asyncio.to_thread(served.settle)


def test_errors_are_typed(client: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.generate("hi", temperature=9.0)
    assert "temperature" in refused.value.param
    with pytest.raises(InvalidRequest) as too_long:
        client.generate("x" * 5000)
    assert too_long.value.reason == "context_length_exceeded"
    with pytest.raises(ModelNotFound):
        client.generate("hi", model="other", max_tokens=1)
    with pytest.raises(TypeError, match="max_token"):
        client.generate("hi", max_token=1)


def test_a_full_cluster_is_asked_again_with_the_same_request(client: Any, served: GatewayThread, kind: str) -> None:
    patience = 0.001 if "Http" not in kind else 1.0  # Retry-After has whole seconds
    served.set_knobs(Knobs(fail_at=0, error=Overloaded("full", retry_after_s=patience)))
    with pytest.raises(Overloaded) as failed:
        client.generate("hi", max_tokens=2, temperature=1.0)
    assert failed.value.retry_after_s == patience
    requests = served.fake.requests
    assert len(requests) == 3 and len({(r.request_id, r.sampling.seed) for r in requests}) == 1
    assert requests[0].sampling.HasField("seed")


def test_what_began_is_not_repeated(client: Any, served: GatewayThread) -> None:
    served.set_knobs(Knobs(fail_at=2, error=PeerLost("gone", leg=Leg.DECODE)))
    with pytest.raises(PeerLost), client.stream("hi", max_tokens=8) as stream:
        list(stream)
    assert len(served.fake.requests) == 1


def test_deadlines(client: Any, served: GatewayThread) -> None:
    served.set_knobs(Knobs(pause_at=1))
    with pytest.raises(DeadlineExceeded):
        client.generate("hi", max_tokens=8, timeout_s=0.3)


def test_somebody_aborts(client: Any, served: GatewayThread) -> None:
    served.set_knobs(Knobs(abort_at=1))
    with pytest.raises(Cancelled):
        client.generate("hi", max_tokens=8)


def test_tokenize_and_back(client: Any) -> None:
    tokens = client.tokenize("héllo 😀")
    assert bytes(tokens.token_ids).decode() == "héllo 😀" == b"".join(tokens.tokens).decode() == tokens.text
    assert client.detokenize(tokens.token_ids) == "héllo 😀"
    rendered = client.tokenize(MESSAGES)
    assert rendered.text.endswith("assistant: ") and "héllo 😀" in rendered.text
    assert bytes(rendered.token_ids).decode() == rendered.text


def test_model(client: Any) -> None:
    model = client.model()
    assert (model.name, model.max_model_len, model.created_unix_s) == ("fake-model", 2048, 1_700_000_000)
    assert client.model("fake-model") == model
    with pytest.raises(ModelNotFound):
        client.model("other")


def test_what_http_cannot_do(client: Any, kind: str) -> None:
    if "Http" in kind:
        with pytest.raises(Unsupported):
            client.abort("x")
        with pytest.raises(Unsupported):
            client.workers()


def test_nobody_there(kind: str) -> None:
    where = "http://127.0.0.1:9" if "Http" in kind else "127.0.0.1:9"

    async def run() -> None:
        async with getattr(pando, kind)(where, retry=QUICK) as made:
            with pytest.raises(PeerLost):
                await made.generate("hi", max_tokens=1)
            with pytest.raises(PeerLost):
                await made.model()

    if "Async" in kind:
        asyncio.run(run())
        return
    with getattr(pando, kind)(where, retry=QUICK) as made:
        with pytest.raises(PeerLost):
            made.generate("hi", max_tokens=1)
        with pytest.raises(PeerLost):
            made.model()
