"""The outermost ASGI layer: every request gets a context, an `x-request-id`, exactly one count, and no bare 500."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.base.clock import Clock
from common.base.ids import new_request_id
from common.base.logging import get_logger
from services.gateway.context import Outcome, RequestContext, attach, sane_id
from services.gateway.metrics import GatewayMetrics

REQUEST_ID_HEADER = "x-request-id"


class Edge:
    """Wraps the application. What it cannot answer any more it logs; the server then closes the connection."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, clock: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        assert scope["type"] == "http", "lifespan and websockets are off"
        request_id = new_request_id()
        header_id = sane_id(Headers(scope=scope).get(REQUEST_ID_HEADER)) or request_id
        context = RequestContext(request_id, header_id, self._clock())
        attach(scope, context)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = header_id
                headers.update(context.headers)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            context.outcome = Outcome.DISCONNECT
        except Exception as error:  # noqa: BLE001 - the edge: a bug is logged once, here
            context.outcome = Outcome.SERVER_ERROR
            get_logger().error("unhandled error", request_id=request_id, exc_info=error)
        finally:
            self._count(context)

    def _count(self, context: RequestContext) -> None:
        outcome = context.final_outcome()
        self._metrics.count(context.route, outcome)
        if outcome is Outcome.SERVER_ERROR and context.error:
            log = get_logger()
            tell = log.debug if context.is_late else log.error  # a client's own limit is no fault of ours
            tell("request failed", request_id=context.request_id, route=context.route, reason=context.error)
