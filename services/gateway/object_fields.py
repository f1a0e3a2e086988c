"""Fields that pydantic takes as plain data and other modules read: their shape in the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from services.gateway.token_fields import U32_MAX

_FUNCTION: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"},
        "parameters": {"type": ["object", "null"]},
    },
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
}
_FORMAT: dict[str, Any] = {
    "anyOf": [
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["schema"],
                    "properties": {"schema": {"type": "object"}},
                },
            },
        },
    ]
}
Tools = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _TOOL})]
Functions = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _FUNCTION})]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(_FORMAT)]
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": U32_MAX}, "minItems": 1}
_PROMPT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1},
    ]
}
Prompts = Annotated[Any, WithJsonSchema(_PROMPT)]
