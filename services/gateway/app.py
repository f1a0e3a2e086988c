"""Puts the gateway together: routes, error handlers, the edge around them. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from common.base.clock import Clock, monotonic
from common.base.errors import PandoError
from common.base.limits import LimitsConfig
from services.gateway import openapi
from services.gateway.body import UnknownFields
from services.gateway.client import RouterClient
from services.gateway.config import GatewayConfig
from services.gateway.context import context_of
from services.gateway.doors import Doors
from services.gateway.edge import Edge
from services.gateway.errors import JsonResponse, on_bug, on_http_exception, on_pando_error
from services.gateway.exchange import Running
from services.gateway.health import Health
from services.gateway.metrics import GatewayMetrics
from services.gateway.native_types import GenerateBody
from services.gateway.openai_types import ChatRequest, CompletionRequest, DetokenizeBody, TokenizeBody
from services.gateway.openapi import Door
from services.gateway.response_store import ResponseStore
from services.gateway.responses_doors import DEFAULT_PAGE, MAX_PAGE, ResponsesDoors
from services.gateway.responses_types import InputFields, ResponsesRequest
from services.gateway.rewrites import Rewriter
from services.gateway.tenants import Tenants


@dataclass(slots=True)
class Gateway:
    """One gateway.

    Attributes:
        app: what an ASGI server runs.
        running: generations under way.
        health: readiness.
        doors: the table of routes.
    """

    app: ASGIApp
    running: Running
    health: Health
    doors: list[Door]


def build(
    config: GatewayConfig,
    client: RouterClient,
    registry: CollectorRegistry,
    limits: LimitsConfig | None = None,
    clock: Clock = monotonic,
) -> Gateway:
    """A gateway that calls `client` (which the caller closes) and counts in `registry`.

    Raises:
        InvalidRequest: the file of API keys is wrong.
    """
    metrics = GatewayMetrics(registry)
    client.on_move = metrics.router_moved
    running = Running(config.max_running_requests, metrics)
    health = Health(client, metrics)
    rewriter = Rewriter(config.rewrites)
    doors = Doors(config, limits or LimitsConfig(), client, running, metrics, clock, UnknownFields(), rewriter)
    tenants = Tenants.load(config.api_keys_file)
    store = ResponseStore(config.max_stored_responses, config.max_stored_bytes)
    table = [*_doors(doors), *_responses(ResponsesDoors(doors, store)), *_probes(health)]
    app = Starlette(
        routes=[_route(door, tenants) for door in [*table, _description(table)]],
        exception_handlers={PandoError: on_pando_error, HTTPException: on_http_exception, Exception: on_bug},
    )
    return Gateway(Edge(app, metrics, clock), running, health, table)


def _route(door: Door, tenants: Tenants) -> Route:
    async def run(request: Request) -> Response:
        context = context_of(request.scope)
        context.route = door.path
        if door.needs_key:
            context.tenant = tenants.identify(request.headers.get("authorization"))
        return await door.handler(request)

    return Route(door.path, run, methods=[door.method])


def _probes(health: Health) -> list[Door]:
    return [
        *(Door("GET", path, health.live, errors=(), needs_key=False) for path in ("/", "/health", "/health/live")),
        *(Door("GET", path, health.ready, errors=(503,), needs_key=False) for path in ("/ready", "/health/ready")),
        Door("GET", "/metrics", health.export, media_type="text/plain", errors=(), needs_key=False),
    ]


def _doors(doors: Doors) -> list[Door]:
    return [
        Door("POST", "/v1/chat/completions", doors.chat, ChatRequest, streams=True),
        Door("POST", "/v1/completions", doors.completions, CompletionRequest, streams=True),
        Door("POST", "/generate", doors.generate, GenerateBody, streams=True),
        Door("POST", "/tokenize", doors.tokenize, TokenizeBody),
        Door("POST", "/detokenize", doors.detokenize, DetokenizeBody),
        Door("GET", "/v1/models", doors.list_models),
        Door("GET", "/v1/models/{model:path}", doors.get_model),
    ]


def _responses(doors: ResponsesDoors) -> list[Door]:
    one = "/v1/responses/{response_id}"
    page: dict[str, dict[str, Any]] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE},
        "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
        "after": {"type": "string"},
    }
    return [
        Door("POST", "/v1/responses", doors.create, ResponsesRequest, streams=True),
        Door("POST", "/v1/responses/input_tokens", doors.count, InputFields),
        Door("GET", one, doors.retrieve, query={"stream": {"type": "boolean"}}, errors=(400, 404)),
        Door("DELETE", one, doors.delete, errors=(404,)),
        Door("POST", f"{one}/cancel", doors.cancel, errors=(400, 404)),
        Door("GET", f"{one}/input_items", doors.list_items, query=page, errors=(400, 404)),
    ]


def _description(table: list[Door]) -> Door:
    text = openapi.document(table)

    async def describe(request: Request) -> Response:
        """This description."""
        return JsonResponse(text)

    return Door("GET", "/openapi.json", describe, errors=(), needs_key=False)
