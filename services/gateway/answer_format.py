"""`response_format` of chat and `text.format` of responses -> the schema that the answer must fit. Pure."""

from __future__ import annotations

from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from services.gateway.schemas import Schema, check_schema

JSON_OBJECT: Schema = {"type": "object"}


def chat_answer(response_format: Any, limits: LimitsConfig) -> Schema | None:
    """None: any text. Raises InvalidRequest with `param`."""
    if response_format is None:
        return None
    inner = response_format.get("json_schema")
    if response_format.get("type") == "json_schema" and not isinstance(inner, dict):
        raise InvalidRequest("response_format.json_schema: must be an object", param="response_format.json_schema")
    return _answer(response_format.get("type"), inner, "response_format", "response_format.json_schema", limits)


def responses_answer(text_format: Any, limits: LimitsConfig) -> Schema | None:
    """As `chat_answer`; here the schema's name and the schema stand beside the type."""
    if text_format is None:
        return None
    return _answer(text_format.get("type"), text_format, "text.format", "text.format", limits)


def _answer(kind: Any, wrapper: Any, param: str, at: str, limits: LimitsConfig) -> Schema | None:
    if kind == "text":
        return None
    if kind == "json_object":
        return JSON_OBJECT
    if kind != "json_schema":
        raise InvalidRequest(f"{param}.type: must be text, json_object or json_schema", param=param)
    schema = wrapper.get("schema")
    if schema is None:
        raise InvalidRequest(f"{at}.schema: this field is required", param=f"{at}.schema", reason="missing_field")
    return check_schema(schema, f"{at}.schema", limits)
