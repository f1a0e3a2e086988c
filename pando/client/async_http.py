"""`AsyncHttpClient`: `HttpClient` for programs with an event loop. Lives on one loop."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from common.base.errors import Leg, PandoError, PeerLost, Unsupported
from pando.client import convert, http_codec
from pando.client.async_stream import AsyncStream, ask
from pando.client.http import CONNECT_S, STREAM_LIMITS, status_error, transport_error
from pando.client.line import Line
from pando.client.retry import Retry
from pando.client.stream import DEFAULT_RETRY, DEFAULT_TIMEOUT_S
from pando.client.target import http_url
from pando.client.types import Chunk, Generation, ModelInfo, Options, Prompt, Tokenized, WorkerInfo


class _HttpCall:
    """One POST /generate; it is sent when its chunks are asked for, a conversation is tokenised before."""

    def __init__(
        self,
        client: AsyncHttpClient,
        http: httpx.AsyncClient,
        prompt: Prompt,
        options: Mapping[str, Any],
        left_s: float,
    ) -> None:
        self._client = client
        self._http = http
        self._prompt = prompt
        self._options = options
        self._left_s = left_s
        self._line = Line()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """See `AsyncCall`."""
        timeout = httpx.Timeout(self._left_s, connect=min(CONNECT_S, self._left_s))
        sent = await self._sendable()
        shown = sent if self._options.get("return_prompt_token_ids") and not isinstance(sent, str) else ()
        reader = http_codec.EventReader(self._options["request_id"], self._options, shown)
        body = {**http_codec.generate_body(sent, self._options), "timeout_s": self._left_s}
        try:
            async with self._http.stream(
                "POST", "/generate", json=body, timeout=timeout, extensions={"trace": self._line.trace_async}
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise status_error(response)
                async for event in _events(response):
                    yield reader.chunk(event)
        except httpx.HTTPError as error:
            raise self._line.error() or transport_error(error, self._client.base_url) from error
        except PandoError as error:
            raise self._line.error() or error from None

    async def cancel(self) -> None:
        """See `AsyncCall`."""
        self._line.cut()

    async def _sendable(self) -> str | Sequence[int]:
        prompt = self._prompt
        if http_codec.needs_tokenizing(prompt, self._options):
            model = self._options.get("model", "")
            return (await self._client.tokenize(prompt, model=model, timeout_s=self._left_s)).token_ids
        return prompt if isinstance(prompt, str) else convert.as_ids(prompt)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        event = http_codec.event_of(line)
        if event == {}:
            return
        if event is not None:
            yield event
    raise PeerLost("the stream was cut", leg=Leg.GATEWAY)


class AsyncHttpClient:
    """A connection to a gateway; an async context manager that closes it. The arguments are those of `HttpClient`."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry = DEFAULT_RETRY,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = (base_url or http_url()).rstrip("/")
        self._timeout_s = timeout_s
        self._retry = retry
        options: dict[str, Any] = {
            "base_url": self.base_url,
            "headers": headers,
            "transport": transport,
            "verify": ssl.create_default_context(),
            "trust_env": False,
        }
        self._http = httpx.AsyncClient(**options)
        self._streams = httpx.AsyncClient(**options, limits=STREAM_LIMITS)

    async def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Continue a prompt and return the whole answer.

        Raises:
            PandoError: what went wrong; TypeError for an option that does not exist.
        """
        async with self.stream(prompt, **options) as stream:
            return await stream.collect()

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """Continue a prompt and return the chunks as they come; use it in an `async with`."""
        given = convert.checked(options)
        convert.generate_request(prompt, given)  # for its checks, which are those of the other clients

        def begin(timeout_s: float) -> _HttpCall:
            return _HttpCall(self, self._streams, prompt, given, timeout_s)

        return AsyncStream(begin, given, self._retry, self._timeout_s)

    async def tokenize(
        self, prompt: Prompt, *, add_special_tokens: bool = True, model: str = "", timeout_s: float | None = None
    ) -> Tokenized:
        """Token ids of text, or of messages through the chat template."""
        convert.tokenize_request(prompt, model, add_special_tokens)  # for its checks
        body = http_codec.tokenize_body(prompt, model, add_special_tokens)
        return http_codec.tokenized(await self._ask("POST", "/tokenize", body, timeout_s), prompt)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Text of token ids."""
        body = {"model": model or None, "tokens": list(token_ids), "skip_special_tokens": skip_special_tokens}
        return str((await self._ask("POST", "/detokenize", body, timeout_s))["prompt"])

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """The served model. Raises ModelNotFound when it has another name."""
        found = await self._ask("GET", f"/v1/models/{name}" if name else "/v1/models", None, timeout_s)
        card = found if name else found["data"][0]
        return ModelInfo(card["id"], card["max_model_len"], card["created"])

    async def workers(self, *, timeout_s: float | None = None) -> list[WorkerInfo]:
        """Raises Unsupported: the gateway does not list workers."""
        raise Unsupported("workers are listed over gRPC only")

    async def abort(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Raises Unsupported: over HTTP a request ends when its stream is closed."""
        raise Unsupported("requests are aborted over gRPC only; close the stream instead")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        await self._streams.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, method: str, path: str, body: Any, timeout_s: float | None) -> Any:
        async def once(left_s: float) -> Any:
            timeout = httpx.Timeout(left_s, connect=min(CONNECT_S, left_s))
            try:
                response = await self._http.request(method, path, json=body, timeout=timeout)
            except httpx.HTTPError as error:
                raise transport_error(error, self.base_url) from error
            if response.status_code != 200:
                raise status_error(response)
            return response.json()

        return await ask(once, self._retry, self._timeout_s if timeout_s is None else timeout_s)
