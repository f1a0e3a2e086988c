"""The gateway's view of the router: typed calls that raise the error tree. The only file here that imports grpc."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.base.config import TimeoutsConfig
from common.base.errors import Cancelled, Leg, NotReady
from common.rpc.channel import ChannelPool
from common.rpc.errors import from_rpc_error
from pando.v1 import inference_pb2, inference_pb2_grpc

SERVICE = "pando.v1.Inference"
T = TypeVar("T")


class RouterClient:
    """Calls to one router over one channel. Lives on one asyncio loop.

    Args:
        address: host:port.
        timeouts: the cluster's limits, scaled; `request_s` is the deadline of every generation.
        probe_s: seconds for a health probe.
    """

    def __init__(self, address: str, timeouts: TimeoutsConfig, probe_s: float) -> None:
        self.address = address
        self._pool = ChannelPool(timeouts)
        self._request_s = timeouts.request_s
        self._probe_s = probe_s
        channel = self._pool.get(address)
        self._inference = inference_pb2_grpc.InferenceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)

    async def generate(
        self, request: inference_pb2.GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Frames of one request. Closing the iterator, or cancelling the task, cancels the call at once.

        Args:
            request: what to generate.
            timeout_s: the caller's deadline; the server's own caps it.

        Raises:
            PandoError: whatever ended the call.
        """
        limit_s = self._request_s if timeout_s is None else min(timeout_s, self._request_s)
        call = self._inference.Generate(request, timeout=limit_s)
        try:
            async for frame in call:
                yield frame
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.ROUTER) from error
        except asyncio.CancelledError as error:
            _raise_unless_remote(error)
        finally:
            call.cancel()

    async def tokenize(self, request: inference_pb2.TokenizeRequest) -> inference_pb2.TokenizeResponse:
        """Token ids of a text or chat. Raises PandoError."""
        return await self._unary(self._inference.Tokenize(request, timeout=self._request_s))

    async def detokenize(self, model: str, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids. Raises PandoError."""
        request = inference_pb2.DetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
        answer: inference_pb2.DetokenizeResponse = await self._unary(
            self._inference.Detokenize(request, timeout=self._request_s)
        )
        return answer.text

    async def get_model(self, name: str = "") -> inference_pb2.GetModelResponse:
        """Facts about a model; "" is the served one. Raises ModelNotFound and other PandoErrors."""
        request = inference_pb2.GetModelRequest(model=name)
        return await self._unary(self._inference.GetModel(request, timeout=self._request_s))

    async def check_ready(self) -> None:
        """Return if the router serves.

        Raises:
            NotReady: it does not, or does not answer within the probe's time; the message says which.
        """
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            answer = await self._health.Check(request, timeout=self._probe_s)
        except grpc.aio.AioRpcError as error:
            raise NotReady(
                f"router at {self.address}: {error.details() or error.code().name}", leg=Leg.ROUTER
            ) from error
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise NotReady(f"router at {self.address} is up but has no ready workers", leg=Leg.ROUTER)

    async def close(self) -> None:
        """Close the channel; running calls end as cancelled."""
        await self._pool.close()

    async def _unary(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.ROUTER) from error
        except asyncio.CancelledError as error:
            _raise_unless_remote(error)
            raise AssertionError("unreachable") from error


def _raise_unless_remote(error: asyncio.CancelledError) -> None:
    """grpc.aio shows a CANCELLED status from the other side as CancelledError: tell it from our own cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise error
    raise Cancelled("the request was aborted", leg=Leg.ROUTER) from error
