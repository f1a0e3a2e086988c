"""Grammars that mean harm: each ends soon, as a 400 or as a stream that keeps to it, whatever it does to an engine."""

from __future__ import annotations

import json


def _nested(levels: int) -> str:
    return '{"properties":{"a":' * levels + '{"type":"integer"}' + '},"required":["a"]}' * levels


REFUSED: dict[str, tuple[str, str]] = {
    "a reference to itself": ("json_schema", '{"$ref": "#"}'),
    "a cycle of references": (
        "json_schema",
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
    ),
    "200 levels": ("json_schema", _nested(200)),
    "100,000 levels": ("json_schema", '{"items":' * 100_000 + "true" + "}" * 100_000),
    "a multiple that takes for ever": ("json_schema", '{"type": "integer", "multipleOf": 99999999}'),
    "patterns that explode together": (
        "json_schema",
        json.dumps({"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in range(10, 20)]}),
    ),
    "nothing fits": ("json_schema", '{"type": "object", "properties": {"a": false}, "required": ["a"]}'),
    "false": ("json_schema", "false"),
    "no schema": ("json_schema", "[1]"),
    "no JSON": ("json_schema", '{"type": '),
    "an unknown keyword": ("json_schema", '{"type": "string", "format": "no such format"}'),
    "a remote reference": ("json_schema", '{"$ref": "https://example.com/schema.json"}'),
    "1 MB of alternatives": ("json_schema", json.dumps({"enum": [f"v{n:06}" for n in range(90_000)]})),
    "repetition of 10^8": ("regex", "((a{1000}){1000}){100}"),
    "a repetition count of 10^8": ("regex", "a{100000000}"),
    "1 MB of text": ("regex", "ab" * 500_000),
    "100,000 parentheses": ("regex", "(" * 100_000 + "a" + ")" * 100_000),
    "NUL": ("regex", "a\0b"),
    "no character": ("regex", r"[^\s\S]"),
    "look-ahead": ("regex", "(?=a)b"),
    "a back-reference": ("regex", r"(a)\1"),
    "an open group": ("regex", "(a"),
    "a rule without end": ("ebnf", "start: start\n"),
    "a token within itself": ("ebnf", 'start: A\nA: A "a"\n'),
    "a missing rule": ("ebnf", "root ::= nowhere\n"),
    "intersections": ("ebnf", "start: A\nA: /(.*a.{20}b)/ & /(.*b.{20}a)/ & ~/(.*c.{20}d)/\n"),
    "no grammar": ("ebnf", "\N{SNOWMAN}"),
    "a structure without its trigger": (
        "structural_tag",
        '{"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b"]}',
    ),
    "no structures": ("structural_tag", '{"structures": [], "triggers": ["<"]}'),
    "no choice": ("choices", "[]"),
    "choices that are numbers": ("choices", "[1, 2]"),
}

SERVED: dict[str, tuple[str, str]] = {
    "nested stars": ("regex", "(a+)+$"),
    "nested stars before another letter": ("regex", "(a+)+b"),
    "the same twice": ("regex", "(a|a)*b"),
    "200 parentheses": ("regex", "(" * 200 + "a" + ")" * 200),
    "a range up to 10^8": ("regex", "(a|b){1,100000000}"),
    "only the empty text": ("regex", ""),
    "left recursion": ("ebnf", 'start: start start | "a" |\n'),
    "ambiguity": ("ebnf", 'start: s\ns: s s s | s s | "a"+ |\n'),
    "a tree without end": (
        "json_schema",
        '{"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}},'
        ' "required": ["c"], "additionalProperties": false}}}',
    ),
    "a huge string": ("json_schema", '{"type": "string", "minLength": 100000000}'),
    "a huge array": ("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 100000000}'),
    "options of the engine": ("json_schema", '{"type": "object", "x-guidance": {"whitespace_pattern": "[ ]*"}}'),
}
"""Strange, but cheap: these are served."""
