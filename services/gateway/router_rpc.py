"""Calls to one router, typed, that raise the error tree. The only file here that imports grpc."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.base.errors import Cancelled, Leg, NotReady, PandoError, PeerLost
from common.rpc.channel import ChannelPool
from common.rpc.errors import METADATA_KEY, cancelled_elsewhere, from_rpc_error
from pando.v1 import inference_pb2, inference_pb2_grpc

SERVICE = "pando.v1.Inference"
T = TypeVar("T")


class RouterRpc:
    """Calls to one router over one channel. Lives on one asyncio loop.

    Args:
        address: host:port.
        channels: owned by the caller.
        probe_s: seconds for a health probe.
    """

    def __init__(self, address: str, channels: ChannelPool, probe_s: float) -> None:
        self.address = address
        self._probe_s = probe_s
        channel = channels.get(address)
        self._inference = inference_pb2_grpc.InferenceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)

    async def generate(
        self, request: inference_pb2.GenerateRequest, timeout_s: float
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Frames of one request. Closing the iterator, or cancelling the task, cancels the call at once.

        Raises:
            PandoError: whatever ended the call.
        """
        call = self._inference.Generate(request, timeout=timeout_s)
        try:
            async for frame in call:
                yield frame
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error
        except asyncio.CancelledError as error:
            raise await _meaning(error, call) from error
        finally:
            call.cancel()

    async def tokenize(
        self, request: inference_pb2.TokenizeRequest, timeout_s: float
    ) -> inference_pb2.TokenizeResponse:
        """Token ids of a text or chat. Raises PandoError."""
        return await self._unary(self._inference.Tokenize(request, timeout=timeout_s))

    async def detokenize(
        self, request: inference_pb2.DetokenizeRequest, timeout_s: float
    ) -> inference_pb2.DetokenizeResponse:
        """Text of token ids. Raises PandoError."""
        return await self._unary(self._inference.Detokenize(request, timeout=timeout_s))

    async def get_model(
        self, request: inference_pb2.GetModelRequest, timeout_s: float
    ) -> inference_pb2.GetModelResponse:
        """Facts about a model. Raises ModelNotFound and other PandoErrors."""
        return await self._unary(self._inference.GetModel(request, timeout=timeout_s))

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
        except asyncio.CancelledError:
            if not cancelled_elsewhere():
                raise
            raise NotReady(f"router at {self.address} cut the probe off", leg=Leg.ROUTER) from None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise NotReady(f"router at {self.address} is up but has no ready workers", leg=Leg.ROUTER)

    async def _unary(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error
        except asyncio.CancelledError as error:
            raise await _meaning(error, call) from error


def _failure(error: grpc.aio.AioRpcError) -> PandoError:
    """What a failed call means here."""
    if error.code() is grpc.StatusCode.CANCELLED:
        return _end(error.trailing_metadata())
    return from_rpc_error(error, Leg.ROUTER)


async def _meaning(error: asyncio.CancelledError, call: Any) -> PandoError:
    """grpc.aio can show a CANCELLED of the other side as CancelledError: tell it from our own cancellation."""
    if not cancelled_elsewhere():
        raise error
    return _end(await call.trailing_metadata())


def _end(metadata: Any) -> PandoError:
    """What a CANCELLED means: an abort comes with its detail; without one the connection broke under the call."""
    if any(key == METADATA_KEY for key, _ in metadata or ()):
        return Cancelled("the request was aborted", leg=Leg.ROUTER)
    return PeerLost("the connection to the router was lost", leg=Leg.ROUTER)
