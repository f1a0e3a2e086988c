"""gRPC servers as every Pando process runs them: health, reflection, keepalives, one error edge.

Handlers raise `PandoError`; the interceptor turns it into a status with an `ErrorDetail`. Anything else is a bug: it is
logged with its traceback once and leaves as INTERNAL.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from common.base.config import TimeoutsConfig
from common.base.failpoints import DISABLED, Failpoints
from common.rpc.channel import keepalive_options
from common.rpc.edge import at_the_edge
from common.rpc.errors import status_of, status_text, trailing_metadata
from common.rpc.failpoint_interceptor import FailpointInterceptor, Handler
from common.rpc.framed_server import FramedServer, Served
from common.rpc.frames import Method

Context = grpc.aio.ServicerContext[Any, Any]


class RpcServer:
    """A grpc.aio server with the standard services on it.

    `services` are the full names that health and reflection report. The overall health ("") follows `set_serving`.
    With failpoints that are enabled, every method of the services but the admin's has some.
    """

    def __init__(self, timeouts: TimeoutsConfig, services: Sequence[str], failpoints: Failpoints = DISABLED) -> None:
        interceptors: list[grpc.aio.ServerInterceptor] = [_ErrorEdge()]
        self._failing = FailpointInterceptor(failpoints, services) if failpoints.enabled else None
        if self._failing is not None:
            interceptors.append(self._failing)
        options = [*keepalive_options(timeouts), ("grpc.so_reuseport", 0)]
        self.grpc = grpc.aio.server(options=options, interceptors=interceptors)
        self._framed: FramedServer | None = None
        self._services = ("", *services)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = (*services, reflection.SERVICE_NAME, "grpc.health.v1.Health")
        reflection.enable_server_reflection(names, self.grpc)

    def bind(self, host: str, port: int) -> int:
        """Take a port without serving yet; returns it (useful with 0).

        Raises:
            OSError: the port is taken or the address is not ours.
        """
        try:
            if port:
                socket.create_server((host, port)).close()  # a taken port fails here; gRPC would log a line of its own
            return self.grpc.add_insecure_port(f"{host}:{port}")
        except (OSError, RuntimeError) as error:
            raise OSError(f"cannot listen on {host}:{port}: is the port taken?") from error

    async def listen_framed(
        self, host: str, incarnation: int, servicer: object, service: str, methods: Sequence[Method[Any, Any]]
    ) -> int:
        """Serve methods of a service over framed connections too, at once; returns the port.

        Raises:
            OSError: the address is not ours.
        """
        served = []
        for method in methods:
            handler = getattr(servicer, method.name)
            if self._failing is not None:
                handler = self._failing.unary(f"/{service}/{method.name}", handler)
            served.append(Served(method, handler))
        self._framed = FramedServer(incarnation, served)
        return await self._framed.listen(host)

    async def start(self) -> None:
        """Serve; all services have been added and a port is bound. Health says NOT_SERVING until told otherwise."""
        await self.set_serving(False)
        await self.grpc.start()

    async def set_serving(self, serving: bool) -> None:
        """What health answers from now on."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in self._services:
            await self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let running ones end within the grace time, then cut them."""
        await self.set_serving(False)
        stopping = [self.grpc.stop(grace_s)]
        if self._framed is not None:
            stopping.append(self._framed.stop(grace_s))
        await asyncio.gather(*stopping)


class _ErrorEdge(grpc.aio.ServerInterceptor):
    """Turns exceptions of handlers into statuses."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/pando."):
            return handler
        known = self._wrapped.get(handler_call_details.method)
        if known is None or known[0] is not handler:  # a failpoint makes a handler for every call
            known = self._wrapped[handler_call_details.method] = handler, _wrap(handler)
        return known[1]


def _wrap(handler: Any) -> Handler:
    codecs = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary), **codecs)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_stream(handler.unary_stream), **codecs)
    assert handler.stream_stream, "client-streaming RPCs are not used"
    return grpc.stream_stream_rpc_method_handler(_stream(handler.stream_stream), **codecs)


def _unary(method: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await method(request, context)
        except Exception as error:  # noqa: BLE001 - the edge: everything leaves as a status
            await _abort(context, error)

    return call


def _stream(method: Callable[[Any, Context], AsyncGenerator[Any, None]]) -> Callable[[Any, Context], Awaitable[None]]:
    """A coroutine that writes what the handler yields: when the call is cut, the handler is closed at once."""

    async def call(request: Any, context: Context) -> None:
        try:
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    await context.write(response)
        except Exception as error:  # noqa: BLE001 - the edge: everything leaves as a status
            await _abort(context, error)

    return call


async def _abort(context: Context, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    failure = at_the_edge(error)
    await context.abort(status_of(failure), status_text(failure), trailing_metadata(failure))


class Timed(Protocol):
    """What handlers of small calls need of a context."""

    def time_remaining(self) -> float | None:
        """Seconds until the call's deadline; None when there is none."""


def remaining_s(context: Timed, default_s: float) -> float:
    """Seconds until the call's deadline; `default_s` when the caller set none."""
    remaining = context.time_remaining()
    return default_s if remaining is None else max(0.0, remaining)
