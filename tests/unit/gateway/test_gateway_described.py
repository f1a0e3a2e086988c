"""The OpenAPI description draws the lines where the checks of gateway and router do."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from services.gateway import chat
from services.gateway.body import parse
from services.gateway.generation import Head
from services.gateway.openai_types import ChatRequest
from services.router.convert import wish_from_pb
from services.router.validation import check_wish

LIMITS = LimitsConfig()
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def is_described(body: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(ChatRequest.model_json_schema()).is_valid(body)


def is_served(body: dict[str, Any]) -> bool:
    try:
        parsed = parse(ChatRequest, json.dumps(body).encode())
        parsed.check()
        generation = chat.to_generation(parsed, parsed.messages, Head("req-1", "m", 0), LIMITS)
        check_wish(wish_from_pb(generation.requests[0]), LIMITS, 50_000)
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0, 1.5], [-0.1, "1", True]),
        ("top_p", [0.001, 1], [0, 1.1, -1]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("repetition_penalty", [0.01, 2], [0, 2.1]),
        ("top_k", [-1, 0, 2**32 - 1], [-2, 2**32, 1.5]),
        ("seed", [-(2**63), 2**64 - 1], [2**64]),
        ("max_completion_tokens", [1, 2**32 - 1], [0, -1]),
        ("n", [1, 16], [0, -1]),
        ("stop", ["x", ["x"], []], ["", [""], [1], {}]),
        ("stop_token_ids", [[], [0]], [[-1], ["x"], 5]),
        ("logit_bias", [{}, {"5": -100}, {"5": 100}], [{"x": 1}, {"-5": 1}, {"5": 101}, {"5": "x"}, []]),
        ("choices", [["a"]], [[], [""], [1], "a"]),
        ("guided_choice", [["a"]], [[], [""], "a"]),
        ("tools", [[], [TOOL]], [[{}], [{"type": "web"}], [{**TOOL, "function": {}}], [{"type": "function"}]]),
        ("tools", [[TOOL]], [[{**TOOL, "function": {"name": "a b"}}], [{**TOOL, "function": {"name": ""}}]]),
        ("functions", [[{"name": "f"}]], [[{}], [{"name": 5}], [{"name": "f", "parameters": 5}]]),
        ("response_format", [{"type": "text"}, {"type": "json_object"}, SCHEMA], [{}, {"type": "x"}, [], "text"]),
        ("response_format", [SCHEMA], [{"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}]),
        ("timeout_s", [0.1], [0, -1]),
    ],
)
def test_a_field_is_described_as_it_is_checked(field: str, good: list[Any], bad: list[Any]) -> None:
    plain = {"messages": [{"role": "user", "content": "hi"}]}
    for value in [None, *good]:
        assert is_described({**plain, field: value}) and is_served({**plain, field: value}), value
    for value in bad:
        assert not is_described({**plain, field: value}), f"described: {value}"
        assert not is_served({**plain, field: value}), f"served: {value}"
