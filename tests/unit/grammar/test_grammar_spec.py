"""Grammars as text: what is refused unread, and what the engine is given."""

from __future__ import annotations

import json

import pytest

from common.base.errors import InvalidRequest
from common.grammar.source import JSON_OPTIONS, choices_lark, json_schema, structural_tag_lark
from common.grammar.spec import GrammarKind, GrammarSpec, check_spec, choices_spec

TAG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer", "x-guidance": {"lenient": True}}, "end": "</f>"},
        {"begin": "<f=b>", "schema": True},
    ],
    "triggers": ["<f=", "<g"],
}


def spec(kind: str, text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind(kind), text)


@pytest.mark.parametrize(
    ("kind", "text", "fits"),
    [
        ("regex", "a" * 10, True),
        ("regex", "a" * 11, False),
        ("regex", "日本語", True),
        ("regex", "日本語語", False),
        ("regex", "(((((a", True),
        ("json_schema", "[[[1]]]", True),
        ("json_schema", "[[[[1]]]]", False),
        ("choices", '{"":[[[]]]}', False),
        ("structural_tag", "[", False),
        ("ebnf", "a\0b", False),
        ("regex", "\ud800", False),
    ],
)
def test_size_and_depth_have_bounds(kind: str, text: str, fits: bool) -> None:
    if fits:
        check_spec(spec(kind, text), 10, 3)
        return
    with pytest.raises(InvalidRequest) as refused:
        check_spec(spec(kind, text), 11 if kind == "choices" else 10, 3)
    assert (refused.value.param, refused.value.reason) == ("response_format", "invalid_grammar")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"const": 18446744073709551615}', True),
        ('{"enum": [-9223372036854775808, true, null, "x"]}', True),
        ('{"maximum": 1e300}', True),
        ('{"const": 18446744073709551616}', False),
        ('{"items": {"enum": [{"a": [-9223372036854775809]}]}}', False),
        ('{"anyOf": [{"const": 1.2345678901234568e22}]}', False),
        ('{"const": NaN}', False),
        ('{"const": "\\ud800"}', False),
    ],
)
def test_what_the_engine_would_write_in_another_way_is_refused(text: str, fits: bool) -> None:
    if fits:
        check_spec(spec("json_schema", text), 100, 9)
        return
    with pytest.raises(InvalidRequest) as refused:
        check_spec(spec("json_schema", text), 100, 9)
    assert refused.value.reason == "invalid_grammar"


def test_digests_tell_kind_and_text_apart() -> None:
    assert len({spec(k, t).digest for k in ("regex", "ebnf") for t in ("a", "b")}) == 4
    assert spec("regex", "a").digest == spec("regex", "a").digest


def test_choices_are_quoted() -> None:
    assert choices_lark(choices_spec(["a", 'b"c', "\n"])) == 'start: CHOICE\nCHOICE: "a" | "b\\"c" | "\\n"'


@pytest.mark.parametrize("text", ["[]", '["a", ""]', '["a", 1]', "{}", "1"])
def test_choices_must_be_strings(text: str) -> None:
    with pytest.raises(InvalidRequest):
        choices_lark(spec("choices", text))


def test_a_schema_cannot_set_the_engines_options() -> None:
    assert json_schema(spec("json_schema", '{"type": "null", "x-guidance": {"lenient": true}}')) == {"type": "null"}
    assert json_schema(spec("json_schema", "true")) == {}


@pytest.mark.parametrize("text", ["false", "null", "[]", "3", "{"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        json_schema(spec("json_schema", text))


def test_structural_tags_become_lazy_rules() -> None:
    lark = structural_tag_lark(spec("structural_tag", json.dumps(TAG)), lambda trigger: False)
    schema = json.dumps({"type": "integer", "x-guidance": dict(JSON_OPTIONS)})
    assert 'open_0[lazy]: TEXT "<f="' in lark
    assert f'tag_0: open_0 "a>" %json {schema} "</f>"' in lark
    assert lark.startswith("start: (tag_0 | tag_1)* rest\n")


def test_a_trigger_that_is_a_special_token_is_named_not_spelled() -> None:
    tag = {"structures": [{"begin": "<|call|>x", "schema": {}}], "triggers": ["<|call|>"]}
    lark = structural_tag_lark(spec("structural_tag", json.dumps(tag)), lambda trigger: trigger == "<|call|>")
    assert 'tag_0: TEXT <|call|> "x" %json' in lark


@pytest.mark.parametrize(
    "change",
    [
        {"type": "other"},
        {"structures": []},
        {"structures": [1]},
        {"triggers": []},
        {"triggers": ["<h"]},
        {"triggers": [""]},
        {"structures": [{"begin": 1, "schema": {}}]},
        {"structures": [{"begin": "<f=", "schema": False}]},
        {"structures": [{"begin": "<f=", "schema": {}, "end": None}]},
    ],
    ids=str,
)
def test_malformed_structural_tags_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        structural_tag_lark(spec("structural_tag", json.dumps(TAG | change)), lambda trigger: False)
