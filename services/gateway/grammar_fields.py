"""Fields beside OpenAI's that constrain the output, as other servers named them, and the grammar they ask for.

Pure. A request has at most one constraint. What a grammar means, and whether it may be served, is the router's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from common.base.errors import InvalidRequest
from pando.v1.types_pb2 import Grammar, SamplingParams
from services.gateway.body import Body, json_text

Json = str | dict[str, Any] | bool
Choices = Annotated[
    list[str], WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}})
]


class GrammarFields(Body):
    """Constraints that a request may carry, one at most."""

    regex: str | None = None
    ebnf: str | None = None
    json_schema: Json | None = None
    choices: Choices | None = None
    structural_tag: Json | None = None
    guided_json: Json | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{param}: must be a string", param=param)
    return value


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _choices(value: Any, param: str) -> Grammar.Choices:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise InvalidRequest(f"{param}: must be a list of strings that are not empty", param=param)
    return Grammar.Choices(values=value)


def _regex(value: Any, param: str) -> Grammar:
    return Grammar(regex=_text(value, param))


def _ebnf(value: Any, param: str) -> Grammar:
    return Grammar(ebnf=_text(value, param))


def _schema(value: Any, param: str) -> Grammar:
    return Grammar(json_schema=_json(value))


def _choice(value: Any, param: str) -> Grammar:
    return Grammar(choices=_choices(value, param))


def _tag(value: Any, param: str) -> Grammar:
    return Grammar(structural_tag=_json(value))


def _any_object(value: Any, param: str) -> Grammar:
    if value is not True:
        raise InvalidRequest(f"{param}: must be true where it is given", param=param)
    return Grammar(json_schema='{"type":"object"}')


Reader = Callable[[Any, str], Grammar]
_READERS: dict[str, Reader] = {
    "regex": _regex,
    "ebnf": _ebnf,
    "json_schema": _schema,
    "choices": _choice,
    "structural_tag": _tag,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _ebnf,
}
_INNER_READERS: dict[str, Reader] = {
    "json": _schema,
    "json_object": _any_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _ebnf,
    "structural_tag": _tag,
}
"""Fields of `structured_outputs`; others say how the constraint is kept, and have no effect."""


def constrain(sampling: SamplingParams, fields: GrammarFields) -> None:
    """Set the grammar that the request's own fields ask for, if any do.

    Raises:
        InvalidRequest: more than one does, or one has another shape.
    """
    asked = _asked(fields)
    if fields.structured_outputs is not None and not asked:
        raise InvalidRequest("structured_outputs: no constraint in it", param="structured_outputs")
    if len(asked) > 1:
        raise InvalidRequest(f"{asked[1][0]}: only one of {asked[0][0]} and {asked[1][0]}", param=asked[1][0])
    for param, reader, value in asked:
        sampling.grammar.CopyFrom(reader(value, param))


def grammar_names(fields: GrammarFields) -> dict[str, str]:
    """The router's name for a request's constraint -> the field that it came in."""
    asked = _asked(fields)
    return {"response_format": asked[0][0]} if asked else {}


def _asked(fields: GrammarFields) -> list[tuple[str, Reader, Any]]:
    """(field, its reader, value) of every constraint of the request."""
    asked = [(name, reader, getattr(fields, name)) for name, reader in _READERS.items()]
    inner = fields.structured_outputs or {}
    asked += [(f"structured_outputs.{name}", reader, inner.get(name)) for name, reader in _INNER_READERS.items()]
    return [one for one in asked if one[2] is not None]
