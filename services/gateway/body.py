"""From bytes to a typed request: size limit, JSON, shape. Everything that fails here is the client's error."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, TypeVar, get_args

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from common.base.errors import InvalidRequest
from common.base.limits import is_deeper
from common.base.logging import get_logger
from services.gateway.errors import BodyTooLarge, BodyTooSlow

_DISCARD_FACTOR = 4
"""A body up to this many times the limit is read before it is refused."""

_MAX_DEPTH = 128
"""Most levels of objects and arrays in a field: parts of a body are written again, and orjson writes 254 levels."""

_MAX_LENGTH_DIGITS = 19
_MAX_NAMES = 256
_MAX_NAME_CHARS = 64


class Body(BaseModel):
    """Base of request models: no coercion between types, unknown fields kept aside."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=(), allow_inf_nan=False)

    def unknown_names(self) -> list[str]:
        """Fields that came and that this model does not know."""
        return list(self.model_extra or {})


B = TypeVar("B", bound=Body)


class UnknownFields:
    """Logs each unknown field of each route once, up to a bound."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def note(self, route: str, names: list[str]) -> None:
        """These fields came and had no effect."""
        for name in names:
            key = (route, name[:_MAX_NAME_CHARS])
            if key not in self._seen and len(self._seen) < _MAX_NAMES:
                self._seen.add(key)
                get_logger().info("unknown request field has no effect", route=route, field=key[1])


async def read_body(request: Request, limit: int, timeout_s: float) -> bytes:
    """The whole body.

    A body that is too large is read to its end within reason and thrown away: many clients look for an answer only
    after they have sent everything, and a connection that closes before that hides it from them.

    Raises:
        BodyTooLarge: more than `limit` bytes, by its Content-Length or as they came.
        BodyTooSlow: it took longer than `timeout_s`.
        ClientDisconnect: the client left while sending.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, limit)
    except TimeoutError as error:
        raise BodyTooSlow(f"the request body took longer than {timeout_s:g} seconds") from error


async def _read(request: Request, limit: int) -> bytes:
    too_large = BodyTooLarge(f"the request body is larger than {limit} bytes")
    num_declared = _content_length(request)
    if num_declared > limit and (num_declared > _DISCARD_FACTOR * limit or "expect" in request.headers):
        raise too_large
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if max(size, num_declared) <= limit:
            pieces.append(piece)
        elif size > _DISCARD_FACTOR * limit:
            raise too_large
        else:
            pieces.clear()
    if size > limit:
        raise too_large
    return b"".join(pieces)


def _content_length(request: Request) -> int:
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) <= _MAX_LENGTH_DIGITS else 0


def parse(model: type[B], raw: bytes) -> B:
    """A typed request.

    Raises:
        InvalidRequest: not JSON, not an object, or a field of the wrong type or nested too deeply (named in `param`).
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", reason="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object", reason="invalid_json")
    if raw.count(b"[") + raw.count(b"{") > _MAX_DEPTH:
        _check_depth(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise shape_error(error, model) from error


def _check_depth(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if is_deeper(value, _MAX_DEPTH):
            param = name[:_MAX_NAME_CHARS]
            raise InvalidRequest(f"{param}: nested deeper than {_MAX_DEPTH} levels", param=param)


def shape_error(error: ValidationError, model: type[Body]) -> InvalidRequest:
    """The most specific complaint about a body of this model, with the field as the client wrote it."""
    detail = max(error.errors(include_url=False, include_context=False), key=lambda item: len(item["loc"]))
    param = param_of(detail["loc"], model)
    if detail["type"] == "missing":
        return InvalidRequest(f"{param}: this field is required", param=param, reason="missing_field")
    return InvalidRequest(f"{param}: {detail['msg']}", param=param)


def param_of(loc: tuple[int | str, ...], model: type[Body]) -> str:
    """A field's path: `stop`, `messages[0].role`, `stream_options.include_usage`.

    What pydantic adds for branches of unions is left out.
    """
    name = str(loc[0]) if loc else ""
    if len(loc) > 2 and isinstance(loc[1], int):
        name += f"[{loc[1]}].{loc[2]}"
    elif len(loc) > 1 and loc[1] in _inner_fields(model, name):
        name += f".{loc[1]}"
    return name


def _inner_fields(model: type[Body], name: str) -> Collection[str]:
    """Names in a field that is an object of known shape."""
    field = model.model_fields.get(name)
    kinds = get_args(field.annotation) if field is not None else ()
    return next((kind.model_fields for kind in kinds if isinstance(kind, type) and issubclass(kind, Body)), ())


def json_text(value: Any) -> str:
    """Plain data, such as a part of a parsed body, as JSON."""
    return orjson.dumps(value).decode()
