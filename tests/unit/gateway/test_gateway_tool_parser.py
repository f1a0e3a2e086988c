"""Calls in text, in whatever pieces the text comes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.chat_writer import collected
from services.gateway.tool_parser import CallArguments, CallStart, Part, TextPart, ToolParser
from services.gateway.tools import Syntax

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(st.text(max_size=4), JSON, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["add", "a-b.c"]), OBJECT | JSON), max_size=3)


def parse(syntax: Syntax, pieces: list[str]) -> list[Part]:
    parser = ToolParser(syntax)
    return [part for piece in pieces for part in parser.feed(piece)] + parser.finish()


def tagged(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


PLACES = st.lists(st.integers(0, 10_000), max_size=30)


@given(text=st.text(alphabet="ab<>tool_c \n", max_size=20), calls=CALLS, places=PLACES)
def test_tagged_calls_come_out_whatever_the_pieces(text: str, calls: Any, places: list[int]) -> None:
    text = text.replace("<tool_call>", "")
    whole = text + "\n".join(tagged(name, arguments) for name, arguments in calls)
    found, parsed = collected(parse(Syntax.TAGGED, cut(whole, places)))
    assert [(name, json.loads(arguments)) for name, arguments in parsed] == list(calls)
    assert found == (text.rstrip() if calls else text)


@given(calls=CALLS.filter(bool), places=PLACES, indent=st.sampled_from([None, 1]))
def test_an_array_of_calls_comes_out_whatever_the_pieces(calls: Any, places: list[int], indent: int | None) -> None:
    whole = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls], indent=indent)
    for syntax in (Syntax.CALLS, Syntax.CALLS_OR_JSON):
        text, parsed = collected(parse(syntax, cut(whole, places)))
        assert text == "" and [(name, json.loads(arguments)) for name, arguments in parsed] == list(calls)


@given(answer=OBJECT, places=PLACES)
def test_an_answer_that_is_no_array_stays_text(answer: Any, places: list[int]) -> None:
    whole = json.dumps(answer)
    assert collected(parse(Syntax.CALLS_OR_JSON, cut(whole, places))) == (whole, [])


def test_the_name_is_told_first_and_arguments_as_they_come() -> None:
    parser = ToolParser(Syntax.TAGGED)
    told = [parser.feed(piece) for piece in ("I ", 'will <tool_call>\n{"name": "f"', ', "arguments": {"a"', ": 1}}\n")]
    assert told == [
        [TextPart("I")],
        [TextPart(" will"), CallStart(0, "f")],
        [CallArguments(0, '{"a"')],
        [CallArguments(0, ": 1}")],
    ]
    assert parser.feed("</tool_call>") == [] and parser.finish() == [] and parser.num_calls == 1


@pytest.mark.parametrize(
    ("syntax", "text", "expected"),
    [
        (Syntax.TAGGED, "a < b <tool", ("a < b <tool", [])),
        (Syntax.TAGGED, " \n", (" \n", [])),
        (Syntax.TAGGED, tagged("f", {}) + " done ", (" done", [("f", "{}")])),
        (Syntax.TAGGED, tagged("f", {}) + "\n", ("", [("f", "{}")])),
        (Syntax.TAGGED, '<tool_call>{"na', ("", [])),
        (Syntax.TAGGED, '<tool_call>{"name": "f", "arguments": {"a": "}', ("", [("f", '{"a": "}')])),
        (Syntax.TAGGED, '<tool_call>{"name": "f", "arguments": {"a": "\\\\"}}', ("", [("f", '{"a": "\\\\"}')])),
        (Syntax.TAGGED, "<tool_call>" + "x" * 600, ("<tool_call>" + "x" * 600, [])),
        (Syntax.CALLS, '[{"name": "f", "arguments": {}}', ("", [("f", "{}")])),
        (Syntax.CALLS, '[{"name"', ("", [])),
        (Syntax.CALLS_OR_JSON, "", ("", [])),
        (Syntax.CALLS_OR_JSON, "  [", ("", [])),
    ],
)
def test_odd_ends(syntax: Syntax, text: str, expected: Any) -> None:
    assert collected(parse(syntax, [text])) == expected
    assert collected(parse(syntax, list(text))) == expected
