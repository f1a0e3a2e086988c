"""Bounds on what one request may ask for: one section for every front door.

The gateway enforces what it can see before the router is asked (bytes, heads, prompts, tools, schemas); the router
enforces the rest, for gRPC callers too. Each bound is inclusive: the value itself is still allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from common.base.config import Section

MAX_TENANT_WEIGHT = 100
"""Highest weight of a tenant in fair shares; a higher one counts as this much."""


class LimitsConfig(Section):
    """Bounds on what one request may ask for."""

    max_body_bytes: int = Field(16 * 2**20, gt=0, description="largest HTTP request body in bytes; over it: 413")
    max_header_bytes: int = Field(
        64 * 1024, ge=1024, description="most bytes of an HTTP request's line and headers, give or take one read"
    )
    max_prompts: int = Field(256, gt=0, description="prompts in one completions or generate request; over it: 400")
    max_choices: int = Field(1024, gt=0, description="prompts x n of one request; over it: 400")
    max_n: int = Field(16, ge=1, description="most choices of one request")
    max_stop_strings: int = Field(4, ge=0, description="most stop strings")
    max_stop_chars: int = Field(256, ge=1, description="longest stop string, in characters")
    max_stop_token_ids: int = Field(64, ge=0, description="most stop token ids")
    max_logprobs: int = Field(20, ge=0, description="most alternatives per token in logprobs and prompt_logprobs")
    max_logit_bias: int = Field(300, ge=0, description="most entries of logit_bias")
    max_temperature: float = Field(2.0, ge=0, description="highest temperature")
    max_output_tokens: int = Field(0, ge=0, description="max_tokens is cut to this; 0: only the context limits it")
    max_prompt_bytes: int = Field(4 * 1024 * 1024, ge=1, description="longest prompt text in bytes of UTF-8")
    max_messages: int = Field(4096, ge=1, description="most messages of a chat prompt")
    max_tools: int = Field(128, ge=0, description="most tools of one request")
    max_schema_bytes: int = Field(
        128 * 1024, ge=1, description="largest grammar or JSON schema, of all tools together too, in bytes"
    )
    max_schema_depth: int = Field(64, ge=1, description="most levels of objects and arrays in a JSON schema")
    chat_template_kwargs: tuple[str, ...] = Field(
        ("enable_thinking", "thinking", "reasoning_effort", "date_string"),
        description="template variables that a request may set",
    )
    max_id_chars: int = Field(128, ge=1, description="longest request id, session id and cache salt, in characters")


def is_deeper(value: Any, limit: int) -> bool:
    """Plain data has more than `limit` levels of objects and arrays; {} has one, a scalar none."""
    layer = _containers([value])
    for _ in range(limit):
        layer = _containers(inner for outer in layer for inner in _values(outer))
    return bool(layer)


def _values(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _containers(values: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, dict | list)]
