"""How errors look over HTTP: OpenAI's body, the status of the error tree, and the headers SDKs act on.

Knows nothing of routes. `code` is the error's reason, so programs tell errors apart by it and by nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from common.base.errors import Internal, InvalidRequest, PandoError
from services.gateway.context import context_of

RETRY_AFTER_S = 1.0
"""Wait named in `Retry-After` when the error brings none."""

_RETRIABLE = frozenset({429, 503})
_HTTP_REASONS = {404: "not_found", 405: "method_not_allowed"}


class BodyTooLarge(InvalidRequest):
    """The request body is over the configured limit."""

    http_status, default_reason = 413, "body_too_large"


class BodyTooSlow(InvalidRequest):
    """The request body did not come in time."""

    http_status, default_reason = 408, "request_timeout"


class ResponseNotFound(InvalidRequest):
    """No such response is stored."""

    http_status, default_reason = 404, "response_not_found"


class JsonResponse(Response):
    """A JSON answer written by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body's bytes."""
        return orjson.dumps(content)


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status < 500 or status == 501:
        return "invalid_request_error"
    return "server_error"


def _body(status: int, message: str, param: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": _type_of(status), "param": param or None, "code": code}}


def error_body(error: PandoError) -> dict[str, Any]:
    """The error as OpenAI clients read it."""
    return _body(error.http_status, error.message, error.param, error.reason)


def error_headers(status: int, retry_after_s: float = 0.0) -> dict[str, str]:
    """`x-should-retry` always, `Retry-After` (whole seconds, rounded up) where trying again makes sense."""
    if status not in _RETRIABLE:
        return {"x-should-retry": "false"}
    return {"x-should-retry": "true", "retry-after": str(math.ceil(retry_after_s or RETRY_AFTER_S))}


def error_response(error: PandoError) -> Response:
    """A whole HTTP answer for an error before the first byte."""
    headers = error_headers(error.http_status, error.retry_after_s)
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, BodyTooLarge | BodyTooSlow):
        headers["connection"] = "close"
    return JsonResponse(error_body(error), status_code=error.http_status, headers=headers)


async def on_pando_error(request: Request, error: Exception) -> Response:
    """Exception handler for the error tree."""
    assert isinstance(error, PandoError)
    context_of(request.scope).fail(error)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what the framework refuses: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = _HTTP_REASONS.get(status, "invalid_request" if status < 500 else "internal")
    headers = {**(error.headers or {}), **error_headers(status)}
    return JsonResponse(_body(status, message, "", code), status_code=status, headers=headers)


async def on_bug(request: Request, error: Exception) -> Response:
    """Exception handler for everything else; the edge logs the traceback."""
    return error_response(Internal(f"internal error: {type(error).__name__}"))


def renamed(error: PandoError, names: Mapping[str, str]) -> PandoError:
    """The error with `param` as this front door's callers know it; changes and returns it."""
    error.param = names.get(error.param, error.param)
    return error
