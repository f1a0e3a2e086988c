"""`AsyncClient`: the cluster over gRPC, for programs with an event loop. Lives on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from common.base.errors import Cancelled
from pando.client import convert
from pando.client.async_stream import AsyncStream, ask
from pando.client.channel import OPTIONS, as_pando_error, channel_target
from pando.client.retry import Retry
from pando.client.stream import DEFAULT_RETRY, DEFAULT_TIMEOUT_S
from pando.client.target import grpc_target
from pando.client.types import Chunk, Generation, ModelInfo, Options, Prompt, Tokenized, WorkerInfo
from pando.v1 import inference_pb2, inference_pb2_grpc


class _GrpcCall:
    """One Generate call."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target
        self._cancelled = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """See `AsyncCall`. A call that `cancel` ended raises Cancelled; the task's own cancellation passes through."""
        try:
            async for frame in self._call:
                yield convert.chunk_from_pb(frame)
        except grpc.RpcError as error:
            raise as_pando_error(error, self._target) from error
        except asyncio.CancelledError as error:
            if not self._cancelled:
                raise
            raise Cancelled("the stream was closed") from error

    async def cancel(self) -> None:
        """See `AsyncCall`."""
        self._cancelled = True
        self._call.cancel()


class AsyncClient:
    """A connection to a router; an async context manager that closes it. The arguments are those of `Client`."""

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry = DEFAULT_RETRY,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.target = target or grpc_target()
        self._timeout_s = timeout_s
        self._retry = retry
        self._credentials = credentials
        self._metadata = tuple((metadata or {}).items())
        self._channel: grpc.aio.Channel | None = None

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
        request = convert.generate_request(prompt, given)
        stub = self._stub()

        def begin(timeout_s: float) -> _GrpcCall:
            return _GrpcCall(stub.Generate(request, timeout=timeout_s, metadata=self._metadata), self.target)

        return AsyncStream(begin, given, self._retry, self._timeout_s)

    async def tokenize(
        self, prompt: Prompt, *, add_special_tokens: bool = True, model: str = "", timeout_s: float | None = None
    ) -> Tokenized:
        """Token ids of text, or of messages through the chat template."""
        request = convert.tokenize_request(prompt, model, add_special_tokens)
        return convert.tokenized_from_pb(await self._ask(self._stub().Tokenize, request, timeout_s), prompt)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Text of token ids."""
        request = convert.detokenize_request(token_ids, model, skip_special_tokens)
        return str((await self._ask(self._stub().Detokenize, request, timeout_s)).text)

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """The served model. Raises ModelNotFound when it has another name."""
        request = inference_pb2.GetModelRequest(model=name)
        return convert.model_from_pb(await self._ask(self._stub().GetModel, request, timeout_s))

    async def workers(self, *, timeout_s: float | None = None) -> list[WorkerInfo]:
        """The workers that the router knows, with their load."""
        answer = await self._ask(self._stub().ListWorkers, inference_pb2.ListWorkersRequest(), timeout_s)
        return [convert.worker_from_pb(worker) for worker in answer.workers]

    async def abort(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """End a running request; its stream raises Cancelled. Returns whether it was running."""
        request = inference_pb2.AbortRequest(request_id=request_id)
        return bool((await self._ask(self._stub().Abort, request, timeout_s)).found)

    async def close(self) -> None:
        """Close the connection; what still runs on it ends with Cancelled."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _stub(self) -> Any:
        """The channel belongs to the loop that is running now, so it is opened on first use."""
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(channel_target(self.target), options=OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(self.target, self._credentials, options=OPTIONS)
        return inference_pb2_grpc.InferenceStub(self._channel)

    async def _ask(self, method: Callable[..., Any], request: Any, timeout_s: float | None) -> Any:
        async def once(left_s: float) -> Any:
            try:
                return await method(request, timeout=left_s, metadata=self._metadata)
            except grpc.RpcError as error:
                raise as_pando_error(error, self.target) from error

        return await ask(once, self._retry, self._timeout_s if timeout_s is None else timeout_s)
