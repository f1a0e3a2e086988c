"""Liveness, readiness and metrics. Liveness asks nobody; readiness asks the router, within the probe's time."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from common.base.errors import NotReady
from services.gateway.client import RouterClient
from services.gateway.errors import JsonResponse, error_headers
from services.gateway.metrics import GatewayMetrics


@dataclass(slots=True)
class Health:
    """Handlers of the probes.

    Attributes:
        draining: the process is going down: not ready, whatever the router says.
    """

    client: RouterClient
    metrics: GatewayMetrics
    draining: bool = False

    async def live(self, request: Request) -> Response:
        """The process answers."""
        return JsonResponse({"status": "healthy"})

    async def ready(self, request: Request) -> Response:
        """Requests will be served: 200, else 503 with the reason."""
        reason = "" if not self.draining else "the gateway is going down"
        if not reason:
            try:
                await self.client.check_ready()
            except NotReady as error:
                reason = error.message
        if reason:
            body = {"status": "not_ready", "reason": reason}
            return JsonResponse(body, status_code=503, headers=error_headers(503))
        return JsonResponse({"status": "ready"})

    async def export(self, request: Request) -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)
