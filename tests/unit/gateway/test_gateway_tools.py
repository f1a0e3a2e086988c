"""Tools and response formats: what is refused, what may be called, and the grammar it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from services.gateway.answer_format import chat_answer, responses_answer
from services.gateway.schemas import check_schema, check_size, closed, moved
from services.gateway.tools import Syntax, ToolUse, read_tools

LIMITS = LimitsConfig(max_tools=2, max_schema_bytes=200, max_schema_depth=4)
INTEGER = {"type": "integer"}


def tool(name: str = "add", parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def use(choice: Any = None, *tools: Any, parallel: bool | None = None) -> ToolUse:
    return read_tools(list(tools) or [tool("add"), tool("sub")], choice, parallel=parallel, limits=LIMITS)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: Any, *names: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("choice", "names", "required", "parallel"),
    [
        (None, ["add", "sub"], False, True),
        ("auto", ["add", "sub"], False, True),
        ("required", ["add", "sub"], True, True),
        (named("sub"), ["sub"], True, False),
        (allowed("auto", "sub"), ["sub"], False, True),
        (allowed("required", "sub", "sub"), ["sub"], True, True),
    ],
)
def test_choices(choice: Any, names: list[str], required: bool, parallel: bool) -> None:
    found = use(choice)
    assert [one.name for one in found.callable] == names
    assert (found.required, found.parallel) == (required, parallel)
    assert len(found.definitions) == 2, "the prompt shows all tools, so that it stays the same"


def test_none_offers_nothing_and_no_tools_are_no_tools() -> None:
    for found in (use("none"), read_tools([], "auto", parallel=None, limits=LIMITS)):
        assert found == ToolUse() and found.grammar(None) is None and found.syntax(None) is None


@pytest.mark.parametrize(
    ("choice", "tools", "param"),
    [
        ("required", None, "tool_choice"),
        ("maybe", [tool()], "tool_choice"),
        (named("other"), [tool()], "tool_choice"),
        ({"type": "function"}, [tool()], "tool_choice"),
        ({"type": "custom"}, [tool()], "tool_choice"),
        (allowed("none", "add"), [tool()], "tool_choice"),
        (allowed("auto"), [tool()], "tool_choice"),
        (allowed("auto", "other"), [tool()], "tool_choice"),
        (None, [{"type": "web_search"}], "tools[0]"),
        (None, [1], "tools[0]"),
        (None, [{"type": "function"}], "tools[0].function"),
        (None, [tool(), tool("a b")], "tools[1].function.name"),
        (None, [tool("")], "tools[0].function.name"),
        (None, [tool("x" * 129)], "tools[0].function.name"),
        (None, [tool(), tool()], "tools[1]"),
        (None, [tool(parameters=[])], "tools[0].function.parameters"),
        (None, [tool("a"), tool("b"), tool("c")], "tools"),
    ],
)
def test_refusals_name_the_field(choice: Any, tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools, choice, parallel=None, limits=LIMITS)
    assert caught.value.param == param


def test_schemas_are_bounded_at_both_ends() -> None:
    assert check_schema({"a": [{"b": {}}]}, "p", LIMITS) and use(None, tool("a"), tool("b" * 128))
    for bad in ({"a": [{"b": {"c": {}}}]}, {"a": "x" * 200}, "x", None):
        with pytest.raises(InvalidRequest) as caught:
            check_schema(bad, "p", LIMITS)
        assert caught.value.param == "p"
    exact = {"a": "x" * (LIMITS.max_schema_bytes - len('{"a":""}'))}
    check_size(exact, "p", LIMITS)
    with pytest.raises(InvalidRequest):
        check_size({"a": exact["a"] + "x"}, "p", LIMITS)
    half = {"type": "object", "description": "x" * 80}
    with pytest.raises(InvalidRequest) as caught:
        use(None, tool("a", half), tool("b", half))
    assert caught.value.param == "tools", "all schemas together"


def test_arguments_have_no_undeclared_properties_unless_the_schema_says_so() -> None:
    assert closed({}) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert closed({"properties": {"a": INTEGER}})["additionalProperties"] is False
    for opened in ({"additionalProperties": True}, {"anyOf": [{}]}, {"$ref": "#/$defs/a"}, {"patternProperties": {}}):
        assert closed(opened) == opened


def test_references_move_with_their_schema() -> None:
    schema = {"$ref": "#/$defs/a", "x": [{"$ref": "#"}, {"$ref": "other.json"}], "properties": {"$ref": INTEGER}}
    assert moved(schema, "#/$defs/r") == {
        "$ref": "#/$defs/r/$defs/a",
        "x": [{"$ref": "#/$defs/r"}, {"$ref": "other.json"}],
        "properties": {"$ref": INTEGER},
    }


def test_auto_becomes_a_structural_tag() -> None:
    found = use("auto", tool("add", {"properties": {"a": INTEGER}}))
    grammar = found.grammar(None)
    assert grammar is not None and found.syntax(None) is Syntax.TAGGED
    assert json.loads(grammar.structural_tag) == {
        "type": "structural_tag",
        "triggers": ["<tool_call>"],
        "structures": [
            {
                "begin": '<tool_call>\n{"name": "add", "arguments": ',
                "schema": {"properties": {"a": INTEGER}, "type": "object", "additionalProperties": False},
                "end": "}\n</tool_call>",
            }
        ],
    }


def test_required_becomes_an_array_of_calls_and_a_named_tool_one_call() -> None:
    many = use("required").grammar(None)
    one = use(named("sub")).grammar(None)
    assert many is not None and one is not None
    schema = json.loads(many.json_schema)
    names = [item["properties"]["name"]["const"] for item in schema["items"]["anyOf"]]
    assert schema["type"] == "array" and schema["minItems"] == 1 and names == ["add", "sub"]
    assert list(schema["items"]["anyOf"][0]["properties"]) == ["name", "arguments"], "the name comes first"
    single = json.loads(one.json_schema)
    assert single["maxItems"] == 1 and single["items"]["properties"]["name"] == {"const": "sub"}
    serial = use("required", parallel=False).grammar(None)
    assert serial is not None and json.loads(serial.json_schema)["maxItems"] == 1


def test_stop_after_one_call_only_where_the_grammar_cannot() -> None:
    assert use("auto", parallel=False).stop == "</tool_call>"
    assert use("auto").stop is None and use("required", parallel=False).stop is None and use("none").stop is None


def test_tools_beside_a_schema_are_calls_or_the_answer() -> None:
    answer = {"type": "object", "properties": {"x": {"$ref": "#/$defs/i"}}, "$defs": {"i": INTEGER}}
    found = use("auto")
    grammar = found.grammar(answer)
    assert grammar is not None and found.syntax(answer) is Syntax.CALLS_OR_JSON
    schema = json.loads(grammar.json_schema)
    assert schema["anyOf"][1] == {"$ref": "#/$defs/answer"} and schema["anyOf"][0]["type"] == "array"
    assert schema["$defs"]["answer"]["properties"]["x"] == {"$ref": "#/$defs/answer/$defs/i"}
    with pytest.raises(InvalidRequest) as caught:
        found.grammar({"type": "array"})
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}, {"a": 1}),
    ],
)
def test_response_formats(value: Any, schema: Any) -> None:
    assert chat_answer(value, LIMITS) == schema


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "response_format"),
        ({"type": "yaml"}, "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": 1}}, "response_format.json_schema.schema"),
    ],
)
def test_other_response_formats_are_refused(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_answer(value, LIMITS)
    assert caught.value.param == param


def test_formats_of_responses_have_their_schema_beside_the_type() -> None:
    assert responses_answer(None, LIMITS) is None
    assert responses_answer({"type": "json_schema", "name": "n", "schema": INTEGER}, LIMITS) == INTEGER
    with pytest.raises(InvalidRequest) as caught:
        responses_answer({"type": "json_schema", "name": "n"}, LIMITS)
    assert caught.value.param == "text.format.schema"
