"""Constraints by the names of other servers: one becomes the grammar, two are an error, and errors name the field."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from pando.v1.types_pb2 import Grammar, SamplingParams
from services.gateway import chat, completions
from services.gateway.body import parse
from services.gateway.generation import Generation, Head
from services.gateway.grammar_fields import GrammarFields, constrain, grammar_names
from services.gateway.openai_types import ChatRequest, CompletionRequest

HEAD = Head("req-1", "m", 1)
SCHEMA = {"type": "integer"}
CHOICES = Grammar(choices=Grammar.Choices(values=["a", "b"]))
TOOL = {"type": "function", "function": {"name": "f"}}


def grammar(fields: dict[str, Any]) -> Grammar:
    sampling = SamplingParams()
    constrain(sampling, parse(GrammarFields, orjson.dumps(fields)))
    return sampling.grammar


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"regex": "a+"}, Grammar(regex="a+")),
        ({"guided_regex": "a+"}, Grammar(regex="a+")),
        ({"ebnf": "root ::= x"}, Grammar(ebnf="root ::= x")),
        ({"guided_grammar": "start: x"}, Grammar(ebnf="start: x")),
        ({"json_schema": SCHEMA}, Grammar(json_schema='{"type":"integer"}')),
        ({"json_schema": json.dumps(SCHEMA)}, Grammar(json_schema=json.dumps(SCHEMA))),
        ({"guided_json": SCHEMA}, Grammar(json_schema='{"type":"integer"}')),
        ({"choices": ["a", "b"]}, CHOICES),
        ({"guided_choice": ["a", "b"]}, CHOICES),
        ({"structural_tag": {"structures": []}}, Grammar(structural_tag='{"structures":[]}')),
        ({"structured_outputs": {"regex": "a+", "disable_fallback": True}}, Grammar(regex="a+")),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar(json_schema='{"type":"integer"}')),
        ({"structured_outputs": {"json_object": True}}, Grammar(json_schema='{"type":"object"}')),
        ({"structured_outputs": {"choice": ["a", "b"]}}, CHOICES),
        ({"structured_outputs": {"grammar": "start: x"}}, Grammar(ebnf="start: x")),
        ({}, Grammar()),
        ({"regex": None, "other": 1}, Grammar()),
    ],
    ids=str,
)
def test_every_name_becomes_its_grammar(fields: dict[str, Any], expected: Grammar) -> None:
    assert grammar(fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a", "guided_json": SCHEMA}, "guided_json"),
        ({"regex": "a", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"choices": []}, "choices"),
        ({"choices": [""]}, "choices"),
    ],
    ids=str,
)
def test_what_is_no_constraint_or_two_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(fields)
    assert caught.value.param == param


def chat_generation(**fields: Any) -> Generation:
    body = parse(ChatRequest, orjson.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}))
    body.check()
    return chat.to_generation(body, body.messages, HEAD, LimitsConfig())


@pytest.mark.parametrize("other", [{"response_format": {"type": "json_object"}}, {"tools": [TOOL]}], ids=str)
def test_beside_a_format_or_tools_there_is_no_room(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_generation(regex="a", **other)
    assert caught.value.param == "regex"
    assert chat_generation(regex="a", response_format={"type": "text"}).requests[0].sampling.grammar.regex == "a"


def test_the_routers_error_names_the_field_that_was_sent() -> None:
    assert chat_generation(guided_regex="(").names["response_format"] == "guided_regex"
    assert "response_format" not in chat_generation().names
    body = parse(CompletionRequest, orjson.dumps({"prompt": "a", "structured_outputs": {"regex": "("}}))
    made = completions.to_generation(body, ["a"], [], HEAD)
    assert made.names["response_format"] == "structured_outputs.regex"
    assert made.requests[0].sampling.grammar.regex == "("
    assert not grammar_names(parse(GrammarFields, b"{}"))
