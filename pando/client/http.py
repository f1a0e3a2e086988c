"""`HttpClient`: the cluster through its gateway, where only HTTP gets through. The same methods as `Client`.

Messages are tokenised by the gateway first and sent as ids, so that all requests go through the one native route.
What HTTP has no route for raises Unsupported.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from common.base.errors import DeadlineExceeded, Leg, PandoError, PeerLost, Unsupported
from pando.client import convert, http_codec
from pando.client.line import Line
from pando.client.retry import Retry
from pando.client.stream import DEFAULT_RETRY, DEFAULT_TIMEOUT_S, Stream, ask
from pando.client.target import http_url
from pando.client.types import Chunk, Generation, ModelInfo, Options, Prompt, Tokenized, WorkerInfo

CONNECT_S = 5.0
STREAM_LIMITS = httpx.Limits(max_connections=1024, max_keepalive_connections=0)
"""Every stream has a connection of its own."""


def transport_error(error: httpx.HTTPError, url: str) -> PandoError:
    """What a broken exchange with the server of a base URL means."""
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return DeadlineExceeded(f"{url}: no answer in time", leg=Leg.GATEWAY)
    return PeerLost(f"{url}: the connection was lost, or could not be made", leg=Leg.GATEWAY)


def status_error(response: httpx.Response) -> PandoError:
    """The error that a read answer stands for."""
    try:
        body = response.json()
    except ValueError:
        body = None
    after = response.headers.get("retry-after", "")
    return http_codec.error_of(response.status_code, body, float(after) if after.isdecimal() else 0.0)


class _HttpCall:
    """One POST /generate; it is sent when its chunks are asked for."""

    def __init__(self, http: httpx.Client, body: Mapping[str, Any], reader: http_codec.EventReader, timeout_s: float):
        self._http = http
        self._body = {**body, "timeout_s": timeout_s}
        self._reader = reader
        self._timeout_s = timeout_s
        self._line = Line()

    def chunks(self) -> Iterator[Chunk]:
        """See `Call`."""
        timeout = httpx.Timeout(self._timeout_s, connect=min(CONNECT_S, self._timeout_s))
        try:
            with self._http.stream(
                "POST", "/generate", json=self._body, timeout=timeout, extensions={"trace": self._line.trace}
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise status_error(response)
                for event in http_codec.events(response.iter_lines()):
                    yield self._reader.chunk(event)
        except httpx.HTTPError as error:
            raise self._line.error() or transport_error(error, str(self._http.base_url)) from error
        except PandoError as error:
            raise self._line.error() or error from None

    def cancel(self) -> None:
        """See `Call`."""
        self._line.cut()


class HttpClient:
    """A connection to a gateway; a context manager that closes it. May be shared by threads.

    Args:
        base_url: of the gateway; None: PANDO_URL, the cluster of ./run, http://localhost:30000.
        timeout_s: deadline of calls that name none.
        retry: how often calls that never began are tried again.
        headers: sent with every request.
        transport: for tests.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry = DEFAULT_RETRY,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
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
        self._http = httpx.Client(**options)
        self._streams = httpx.Client(**options, limits=STREAM_LIMITS)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Continue a prompt and return the whole answer.

        Raises:
            PandoError: what went wrong; TypeError for an option that does not exist.
        """
        with self.stream(prompt, **options) as stream:
            return stream.collect()

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Continue a prompt and return the chunks as they come; use it in a `with`."""
        given = convert.checked(options)
        convert.generate_request(prompt, given)  # for its checks, which are those of the other clients
        sent = self._sendable(prompt, given)
        body = http_codec.generate_body(sent, given)
        shown = sent if given.get("return_prompt_token_ids") and not isinstance(sent, str) else ()

        def begin(timeout_s: float) -> _HttpCall:
            reader = http_codec.EventReader(given["request_id"], given, shown)
            return _HttpCall(self._streams, body, reader, timeout_s)

        return Stream(begin, given, self._retry, self._timeout_s)

    def tokenize(
        self, prompt: Prompt, *, add_special_tokens: bool = True, model: str = "", timeout_s: float | None = None
    ) -> Tokenized:
        """Token ids of text, or of messages through the chat template."""
        convert.tokenize_request(prompt, model, add_special_tokens)  # for its checks
        body = http_codec.tokenize_body(prompt, model, add_special_tokens)
        return http_codec.tokenized(self._ask("POST", "/tokenize", body, timeout_s), prompt)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Text of token ids."""
        body = {"model": model or None, "tokens": list(token_ids), "skip_special_tokens": skip_special_tokens}
        return str(self._ask("POST", "/detokenize", body, timeout_s)["prompt"])

    def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """The served model. Raises ModelNotFound when it has another name."""
        found = self._ask("GET", f"/v1/models/{name}" if name else "/v1/models", None, timeout_s)
        card = found if name else found["data"][0]
        return ModelInfo(card["id"], card["max_model_len"], card["created"])

    def workers(self, *, timeout_s: float | None = None) -> list[WorkerInfo]:
        """Raises Unsupported: the gateway does not list workers."""
        raise Unsupported("workers are listed over gRPC only")

    def abort(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Raises Unsupported: over HTTP a request ends when its stream is closed."""
        raise Unsupported("requests are aborted over gRPC only; close the stream instead")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _sendable(self, prompt: Prompt, options: Mapping[str, Any]) -> str | Sequence[int]:
        if http_codec.needs_tokenizing(prompt, options):
            return self.tokenize(prompt, model=options.get("model", "")).token_ids
        return prompt if isinstance(prompt, str) else convert.as_ids(prompt)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float | None) -> Any:
        def once(left_s: float) -> Any:
            timeout = httpx.Timeout(left_s, connect=min(CONNECT_S, left_s))
            try:
                response = self._http.request(method, path, json=body, timeout=timeout)
            except httpx.HTTPError as error:
                raise transport_error(error, self.base_url) from error
            if response.status_code != 200:
                raise status_error(response)
            return response.json()

        return ask(once, self._retry, self._timeout_s if timeout_s is None else timeout_s)
