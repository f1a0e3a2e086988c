"""`Client`: the cluster over gRPC, for programs without an event loop. May be shared by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from pando.client import convert
from pando.client.channel import OPTIONS, as_pando_error, channel_target
from pando.client.retry import Retry
from pando.client.stream import DEFAULT_RETRY, DEFAULT_TIMEOUT_S, Stream, ask
from pando.client.target import grpc_target
from pando.client.types import Chunk, Generation, ModelInfo, Options, Prompt, Tokenized, WorkerInfo
from pando.v1 import inference_pb2, inference_pb2_grpc


class _GrpcCall:
    """One Generate call."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target

    def chunks(self) -> Iterator[Chunk]:
        """See `Call`."""
        try:
            for frame in self._call:
                yield convert.chunk_from_pb(frame)
        except grpc.RpcError as error:
            raise as_pando_error(error, self._target) from error

    def cancel(self) -> None:
        """See `Call`."""
        self._call.cancel()


class Client:
    """A connection to a router; a context manager that closes it.

    Args:
        target: host:port; None: PANDO_TARGET, the cluster of ./run, localhost:50051.
        timeout_s: deadline of calls that name none.
        retry: how often calls that never began are tried again.
        credentials: for TLS; None: plain text.
        metadata: sent with every call.
    """

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
        self._metadata = tuple((metadata or {}).items())
        if credentials is None:
            self._channel = grpc.insecure_channel(channel_target(self.target), options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(self.target, credentials, options=OPTIONS)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

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
        request = convert.generate_request(prompt, given)

        def begin(timeout_s: float) -> _GrpcCall:
            return _GrpcCall(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata), self.target)

        return Stream(begin, given, self._retry, self._timeout_s)

    def tokenize(
        self, prompt: Prompt, *, add_special_tokens: bool = True, model: str = "", timeout_s: float | None = None
    ) -> Tokenized:
        """Token ids of text, or of messages through the chat template."""
        request = convert.tokenize_request(prompt, model, add_special_tokens)
        return convert.tokenized_from_pb(self._ask(self._stub.Tokenize, request, timeout_s), prompt)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Text of token ids."""
        request = convert.detokenize_request(token_ids, model, skip_special_tokens)
        return str(self._ask(self._stub.Detokenize, request, timeout_s).text)

    def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """The served model. Raises ModelNotFound when it has another name."""
        request = inference_pb2.GetModelRequest(model=name)
        return convert.model_from_pb(self._ask(self._stub.GetModel, request, timeout_s))

    def workers(self, *, timeout_s: float | None = None) -> list[WorkerInfo]:
        """The workers that the router knows, with their load."""
        answer = self._ask(self._stub.ListWorkers, inference_pb2.ListWorkersRequest(), timeout_s)
        return [convert.worker_from_pb(worker) for worker in answer.workers]

    def abort(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """End a running request; its stream raises Cancelled. Returns whether it was running."""
        request = inference_pb2.AbortRequest(request_id=request_id)
        return bool(self._ask(self._stub.Abort, request, timeout_s).found)

    def close(self) -> None:
        """Close the connection; what still runs on it ends with Cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, method: Callable[..., Any], request: Any, timeout_s: float | None) -> Any:
        def once(left_s: float) -> Any:
            try:
                return method(request, timeout=left_s, metadata=self._metadata)
            except grpc.RpcError as error:
                raise as_pando_error(error, self.target) from error

        return ask(once, self._retry, self._timeout_s if timeout_s is None else timeout_s)
