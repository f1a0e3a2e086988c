"""The OpenAPI description, from the table of doors. It only describes: handlers parse and check bodies themselves."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

_REF = "#/components/schemas/{model}"
_CONVERTER = re.compile(r":\w+}")

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}

_ERRORS = {
    400: "the request can never work as it is",
    404: "no such model or object",
    408: "the body did not come in time",
    413: "the body is too large",
    429: "a bound is reached; Retry-After says when to come back",
    499: "somebody aborted the request",
    500: "a bug or an operator's mistake",
    501: "not supported by this build",
    503: "not ready, going down, or a peer was lost; Retry-After says when to come back",
    504: "the deadline has passed",
}

_KEY_ERROR = {401: "API keys are configured, and the request brings none of them"}

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Door:
    """One route.

    Attributes:
        method: GET, POST or DELETE.
        path: as Starlette writes it.
        handler: answers; the first line of its docstring is the route's summary.
        body: model of the JSON body, if it takes one.
        query: query parameters: name -> JSON schema.
        streams: the answer may be server-sent events.
        media_type: of the answer.
        errors: statuses of refusals.
        needs_key: where API keys are configured, it answers only those who bring one.
    """

    method: str
    path: str
    handler: Handler
    body: type[BaseModel] | None = None
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    streams: bool = False
    media_type: str = "application/json"
    errors: Iterable[int] = tuple(_ERRORS)
    needs_key: bool = True

    @property
    def open_path(self) -> str:
        """The path as OpenAPI writes it."""
        return _CONVERTER.sub("}", self.path)


def document(doors: Iterable[Door]) -> dict[str, Any]:
    """The whole description."""
    doors = list(doors)
    models = {door.body for door in doors if door.body is not None}
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)], ref_template=_REF
    )
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        paths.setdefault(door.open_path, {})[door.method.lower()] = _operation(door)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pando", "version": "1"},
        "paths": paths,
        "components": {"schemas": {**schemas["$defs"], "Error": _ERROR_SCHEMA}},
    }


def _operation(door: Door) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": (door.handler.__doc__ or "").splitlines()[0],
        "operationId": f"{door.method.lower()}{re.sub(r'[^a-z0-9]+', '_', door.open_path)}",
        "responses": _responses(door),
    }
    if parameters := [*_path_parameters(door), *_query_parameters(door)]:
        operation["parameters"] = parameters
    if door.body is not None:
        operation["requestBody"] = {"required": True, "content": _json({"$ref": _REF.format(model=door.body.__name__)})}
    return operation


def _path_parameters(door: Door) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    names = re.findall(r"{(\w+)}", door.open_path)
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(door: Door) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "schema": schema} for name, schema in door.query.items()]


def _responses(door: Door) -> dict[str, Any]:
    content: dict[str, Any] = {door.media_type: {}}
    if door.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    error = _json({"$ref": _REF.format(model="Error")})
    refusals = {status: _ERRORS[status] for status in door.errors} | (_KEY_ERROR if door.needs_key else {})
    responses = {str(status): {"description": text, "content": error} for status, text in sorted(refusals.items())}
    return {"200": {"description": "OK", "content": content}, **responses}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
