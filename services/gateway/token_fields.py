"""What every format of a request says of its tokens: how they are drawn and where they end. Types and wire bounds only.

What a value may mean is the router's to judge, for gRPC callers too: the types describe it in the OpenAPI description,
and enforce no more than the wire does.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from services.gateway.grammar_fields import GrammarFields

U32_MAX = 2**32 - 1
U32 = Annotated[int, Field(ge=0, le=U32_MAX)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
TopK = Annotated[int, Field(ge=-1, le=U32_MAX)]

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_BIAS: dict[str, Any] = {"type": "number", "minimum": -100, "maximum": 100}

AtLeastOne = Annotated[U32, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": U32_MAX})]
Temperature = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
TopP = Annotated[float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1})]
MinP = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Penalty = Annotated[float, WithJsonSchema({"type": "number", "minimum": -2, "maximum": 2})]
Repetition = Annotated[float, WithJsonSchema({"type": "number", "minimum": 1e-6, "maximum": 2})]
Stop = Annotated[str | list[str], WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})]
LogitBias = Annotated[
    dict[str, float],
    WithJsonSchema({"type": "object", "propertyNames": {"pattern": "^[0-9]{1,10}$"}, "additionalProperties": _BIAS}),
]


class TokenFields(GrammarFields):
    """How tokens are drawn and where they end, by the names that all formats share."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: LogitBias | None = None
    stop: Stop | None = None
    stop_token_ids: list[U32] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: Seed | None = None
