"""Failpoints at the RPCs of a server: calls that are late, fail or are never answered, on purpose.

::

    rpc.WorkerService.Lend            hit when the call comes in, before its handler
    rpc.WorkerService.Lend.message    hit before each answer of a stream: `3*off;1*fail` breaks it after three

A server has this interceptor only when its process was started with failpoints. The admin service has no failpoints,
so that what an operator broke can be mended. It does not know what the calls mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf import descriptor_pool

from common.base.errors import Unavailable
from common.base.failpoints import Failpoints, Kind, inflict

ADMIN_SERVICE = "pando.v1.AdminService"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # subscriptable in the stubs only


class FailpointInterceptor(grpc.aio.ServerInterceptor):
    """Hits the failpoints of all methods of some services.

    Args:
        failpoints: of the process; the names are registered with it.
        services: full names; their generated modules must have been imported.
    """

    def __init__(self, failpoints: Failpoints, services: Sequence[str]) -> None:
        self._failpoints = failpoints
        self._names: dict[str, str] = {}
        for service in services:
            if service != ADMIN_SERVICE:
                self._register(service)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler behind the method's failpoint."""
        handler = await continuation(handler_call_details)
        name = self._names.get(handler_call_details.method)
        return handler if handler is None or name is None else self._wrap(handler, name)

    def unary(self, method: str, handler: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """A handler of `/service/Method`, served in another way, behind the same failpoint."""
        return self._unary(handler, self._names[method])

    def _register(self, service: str) -> None:
        for method in descriptor_pool.Default().FindServiceByName(service).methods:
            name = f"rpc.{service.rpartition('.')[2]}.{method.name}"
            self._failpoints.register(name, Kind.CALL, "a call comes in")
            if method.server_streaming:
                self._failpoints.register(f"{name}.message", Kind.CALL, "a message of the answer goes out")
            self._names[f"/{service}/{method.name}"] = name

    def _wrap(self, handler: Any, name: str) -> Handler:
        codecs = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary, name), **codecs)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream, name), **codecs)
        assert handler.stream_stream, "client-streaming RPCs are not used"
        return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream, name), **codecs)

    def _unary(self, method: Callable[[Any, Any], Awaitable[Any]], name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(request: Any, context: Any) -> Any:
            await self._suffer(name)
            return await method(request, context)

        return call

    def _stream(
        self, method: Callable[[Any, Any], AsyncGenerator[Any, None]], name: str
    ) -> Callable[[Any, Any], AsyncGenerator[Any, None]]:
        async def call(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            await self._suffer(name)
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    await self._suffer(f"{name}.message")
                    yield response

        return call

    async def _suffer(self, name: str) -> None:
        await inflict(self._failpoints.hit(name), lambda: Unavailable(f"failpoint {name} fired", reason="failpoint"))
