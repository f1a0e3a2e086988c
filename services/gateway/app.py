"""Puts the gateway together: routes, error handlers, the edge around them. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from common.base.clock import Clock, monotonic
from common.base.errors import PandoError
from services.gateway import openapi
from services.gateway.body import UnknownFields
from services.gateway.client import RouterClient
from services.gateway.config import GatewayConfig
from services.gateway.doors import Doors
from services.gateway.edge import Edge
from services.gateway.errors import on_bug, on_http_exception, on_pando_error
from services.gateway.exchange import Running
from services.gateway.health import Health
from services.gateway.metrics import GatewayMetrics
from services.gateway.native_types import GenerateBody
from services.gateway.openai_types import ChatRequest, CompletionRequest, DetokenizeBody, TokenizeBody


@dataclass(slots=True)
class Gateway:
    """One gateway.

    Attributes:
        app: what an ASGI server runs.
        running: generations under way.
        health: readiness.
    """

    app: ASGIApp
    running: Running
    health: Health


def build(
    config: GatewayConfig, client: RouterClient, registry: CollectorRegistry, clock: Clock = monotonic
) -> Gateway:
    """A gateway that calls `client` (which the caller closes) and counts in `registry`."""
    metrics = GatewayMetrics(registry)
    running = Running(config.max_running_requests, metrics)
    health = Health(client, metrics)
    doors = Doors(config, client, running, metrics, clock, UnknownFields())
    app = FastAPI(title="Pando", version="1", docs_url=None, redoc_url=None)
    _add_probes(app, health)
    _add_doors(app, doors)
    openapi.install(app, [ChatRequest, CompletionRequest, GenerateBody, TokenizeBody, DetokenizeBody])
    app.add_exception_handler(PandoError, on_pando_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_bug)
    return Gateway(Edge(app, metrics, clock), running, health)


def _add_probes(app: FastAPI, health: Health) -> None:
    for path in ("/", "/health", "/health/live"):
        app.add_api_route(path, health.live, methods=["GET"])
        app.add_api_route(path, health.live, methods=["HEAD"], include_in_schema=False)
    not_ready: dict[int | str, dict[str, str]] = {503: {"description": "not ready, with the reason"}}
    for path in ("/ready", "/health/ready"):
        app.add_api_route(path, health.ready, methods=["GET"], responses=not_ready)
    app.add_api_route("/metrics", health.export, methods=["GET"])


def _add_doors(app: FastAPI, doors: Doors) -> None:
    errors = openapi.error_responses()
    for path, handler, model in (
        ("/v1/chat/completions", doors.chat, ChatRequest),
        ("/v1/completions", doors.completions, CompletionRequest),
        ("/generate", doors.generate, GenerateBody),
        ("/tokenize", doors.tokenize, TokenizeBody),
        ("/detokenize", doors.detokenize, DetokenizeBody),
    ):
        app.add_api_route(path, handler, methods=["POST"], responses=errors, openapi_extra=openapi.body_of(model))
    app.add_api_route("/v1/models", doors.list_models, methods=["GET"], responses=errors)
    app.add_api_route("/v1/models/{model:path}", doors.get_model, methods=["GET"], responses=errors)
