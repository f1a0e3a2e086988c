"""JSON schemas on their way into a grammar: bounds, and how several become one. Pure; what a keyword means is the
grammar engine's to judge."""

from __future__ import annotations

from typing import Any

import orjson

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig, is_deeper

Schema = dict[str, Any]

_OPENERS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf")
"""Keywords that say themselves which properties there are."""


def check_schema(schema: Any, param: str, limits: LimitsConfig) -> Schema:
    """The schema, if it is an object within the bounds.

    Raises:
        InvalidRequest: with `param`.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param}: must be a JSON schema, which is an object", param=param)
    if is_deeper(schema, limits.max_schema_depth):
        raise InvalidRequest(f"{param}: nested deeper than {limits.max_schema_depth} levels", param=param)
    check_size(schema, param, limits)
    return schema


def check_size(value: Any, param: str, limits: LimitsConfig) -> None:
    """Raises InvalidRequest when plain data has more bytes as JSON than a schema may."""
    size = len(orjson.dumps(value))
    if size > limits.max_schema_bytes:
        raise InvalidRequest(f"{param}: {size} bytes of JSON schema; at most {limits.max_schema_bytes}", param=param)


def closed(schema: Schema) -> Schema:
    """The schema of an object that has no other properties than the declared ones, unless the schema says otherwise."""
    if any(name in schema for name in _OPENERS):
        return schema
    return {"properties": {}, **schema, "type": schema.get("type", "object"), "additionalProperties": False}


def moved(schema: Any, root: str) -> Any:
    """A copy of a schema that will stand at `root` of another: its references to itself, `#/...`, begin there."""
    if isinstance(schema, dict):
        return {key: _moved_entry(key, value, root) for key, value in schema.items()}
    return [moved(entry, root) for entry in schema] if isinstance(schema, list) else schema


def _moved_entry(key: str, value: Any, root: str) -> Any:
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return root + value[1:]
    return moved(value, root)
