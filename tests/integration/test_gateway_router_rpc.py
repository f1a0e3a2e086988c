"""What a CANCELLED from the router's side means: an abort, if it says so; else the connection broke."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import Cancelled, PandoError, PeerLost
from common.rpc.channel import ChannelPool
from common.rpc.errors import trailing_metadata
from pando.v1 import inference_pb2, inference_pb2_grpc
from services.gateway.router_rpc import RouterRpc


class Cancelling(inference_pb2_grpc.InferenceServicer):
    """Ends every call with CANCELLED."""

    def __init__(self, metadata: tuple[tuple[str, bytes], ...]) -> None:
        self._metadata = metadata

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield inference_pb2.GenerateResponse()
        await context.abort(grpc.StatusCode.CANCELLED, "", self._metadata)

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.GetModelResponse:
        await context.abort(grpc.StatusCode.CANCELLED, "", self._metadata)


@pytest.mark.parametrize(
    ("metadata", "meaning"), [((), PeerLost), (trailing_metadata(Cancelled("aborted", reason="aborted")), Cancelled)]
)
async def test_a_cancelled_call(metadata: tuple[tuple[str, bytes], ...], meaning: type[PandoError]) -> None:
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(Cancelling(metadata), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = ChannelPool(TimeoutsConfig())
    rpc = RouterRpc(f"127.0.0.1:{port}", channels, 1.0)
    try:
        with pytest.raises(meaning):
            async for _ in rpc.generate(inference_pb2.GenerateRequest(), 10.0):
                pass
        with pytest.raises(meaning):
            await rpc.get_model(inference_pb2.GetModelRequest(), 10.0)
    finally:
        await channels.close()
        await server.stop(0)
