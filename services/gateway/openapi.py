"""The OpenAPI description: FastAPI's, plus the bodies that the handlers parse themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"

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
    404: "no such model",
    413: "the body is too large",
    429: "a bound is reached; Retry-After says when to come back",
    500: "a bug or an operator's mistake",
    501: "not supported by this build",
    503: "not ready, going down, or a peer was lost; Retry-After says when to come back",
    504: "the deadline has passed",
}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose handler parses this model."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def error_responses() -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that calls the router."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def install(app: FastAPI, models: list[type[BaseModel]]) -> None:
    """Make the application describe these models among its components."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
            components = document.setdefault("components", {}).setdefault("schemas", {})
            components.update(schemas["$defs"], Error=_ERROR_SCHEMA)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
