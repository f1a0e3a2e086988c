"""What structured output is tried with: 20 JSON schemas of growing nastiness, 20 regular expressions, 5 grammars.

Each case can say of a finished output whether it keeps what was asked, by means that share nothing with the grammar
engine: `jsonschema`, `re`, or a few lines of Python.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema

Schema = dict[str, Any]
MAX_BLANKS = 8


@dataclass(slots=True, frozen=True)
class Case:
    """One grammar. `kind` and `text` as in the API's `Grammar`; `keeps` judges a finished output."""

    name: str
    kind: str
    text: str
    keeps: Callable[[str], bool]


def _closed(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _tree() -> Schema:
    node = _closed(
        name={"type": "string", "maxLength": 8}, children={"type": "array", "items": {"$ref": "#/$defs/node"}}
    )
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def _deep(levels: int) -> Schema:
    schema: Schema = {"type": "boolean"}
    for level in range(levels):
        schema = _closed(**{f"level{level}": schema})
    return schema


STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
THREE_FIELDS = _closed(name=STRING, age=INTEGER, member=BOOLEAN)

_ODD_NAMES: dict[str, Schema] = {"naïve 日本": BOOLEAN, 'quo"te\n': {"enum": ["a\\b", "🙂"]}}

SCHEMAS: dict[str, Schema] = {
    "boolean": BOOLEAN,
    "bounded integer": {"type": "integer", "minimum": -5, "maximum": 120},
    "enum": {"enum": ["red", "green", "blue", 7, None, True]},
    "const": {"const": {"version": [1, "two", None]}},
    "short string": {"type": "string", "minLength": 1, "maxLength": 12},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "format": _closed(day={"type": "string", "format": "date"}, host={"type": "string", "format": "ipv4"}),
    "three fields": THREE_FIELDS,
    "optional fields": {"type": "object", "properties": {"a": INTEGER, "b": BOOLEAN}, "additionalProperties": False},
    "numbers": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [BOOLEAN, INTEGER], "items": False, "minItems": 2},
    "any of": {"anyOf": [_closed(ok=BOOLEAN), _closed(error=STRING), {"type": "null"}]},
    "types": {"type": ["integer", "boolean", "null"]},
    "nested": _closed(user=THREE_FIELDS, tags={"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3}),
    "all of": {
        "allOf": [{"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, _closed(a={"maximum": 9})]
    },
    "defs": {
        **_closed(home={"$ref": "#/$defs/point"}, work={"$ref": "#/$defs/point"}),
        "$defs": {"point": _closed(x=INTEGER, y=INTEGER)},
    },
    "additional": {
        "type": "object",
        "properties": {"id": INTEGER},
        "required": ["id"],
        "additionalProperties": BOOLEAN,
    },
    "unicode keys": _closed(**_ODD_NAMES),
    "tree": _tree(),
    "deep": _deep(12),
}

REGEXES: tuple[str, ...] = (
    "yes|no",
    "[0-9]{3}-[0-9]{4}",
    "(a+)+b",
    "(a|b)*abb",
    "[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?",
    "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
    "#[0-9a-f]{6}",
    "(0|[1-9][0-9]{0,5})(\\.[0-9]{1,2})?",
    "[a-z0-9_]{1,10}@[a-z]{1,8}\\.(com|org)",
    "(Mon|Tue|Wed|Thu|Fri), [0-3][0-9]",
    '\\{"ok": (true|false)\\}',
    "([01][0-9]|2[0-3]):[0-5][0-9]",
    "(red|green|blue)(,(red|green|blue)){0,3}",
    '[^\\s"]{1,20}',
    "x{5,10}y{0,3}z",
    "(?i:hello) (world|there)!?",
    "\\[[0-9](, [0-9]){1,4}\\]",
    "é{2}|日本|🙂",
    "((a|b)(c|d)){3}",
    "answer: .{1,30}\\.",
)

LARK_SUM = 'start: term (("+" | "-") term)*\nterm: /[0-9]{1,3}/ | "(" start ")"\n'
LARK_CSV = 'start: row{2}\nrow: cell ("," cell){2} "\\n"\ncell: /[a-z]{1,6}/ | /[0-9]{1,4}/\n'
LARK_LISP = 'start: form\nform: "(" /[a-z]{1,5}/ (" " (form | /[0-9]{1,2}/))* ")"\n'
GBNF_BOOL = 'root ::= expr\nexpr ::= lit (" and " lit | " or " lit)?\nlit ::= "not " lit | "True" | "False"\n'
GBNF_MOVES = 'root ::= ("e4" | "d4") " " [a-h] [1-8] ("+" | "#")?\n'


def _parses(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _is_lisp(text: str) -> bool:
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth <= 0 and place < len(text) - 1:
            return False
    return depth == 0 and re.fullmatch(r"[()a-z0-9 ]+", text) is not None


GRAMMARS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("sum", LARK_SUM, lambda text: re.fullmatch(r"[0-9()+-]+", text) is not None and _balanced(text)),
    ("csv", LARK_CSV, lambda text: re.fullmatch(r"(([a-z]{1,6}|[0-9]{1,4})(,|\n)){6}", text) is not None),
    ("lisp", LARK_LISP, _is_lisp),
    ("bool", GBNF_BOOL, _parses),
    ("moves", GBNF_MOVES, lambda text: re.fullmatch("(e4|d4) [a-h][1-8][+#]?", text) is not None),
)


def _balanced(text: str) -> bool:
    return text.count("(") == text.count(")")


def blank_run(text: str) -> int:
    """Length of the longest run of whitespace outside of JSON strings."""
    outside = re.sub(r'"(\\.|[^"\\])*"?', '""', text, flags=re.DOTALL)
    return max(map(len, re.findall(r"\s+", outside)), default=0)


def _fits(schema: Schema) -> Callable[[str], bool]:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    return lambda text: blank_run(text) <= MAX_BLANKS and validator.is_valid(json.loads(text))


def corpus() -> list[Case]:
    """All cases, schemas first."""
    schemas = [Case(f"schema {name}", "json_schema", json.dumps(s), _fits(s)) for name, s in SCHEMAS.items()]
    regexes = [Case(f"regex {r}", "regex", r, re.compile(r).fullmatch) for r in REGEXES]  # type: ignore[arg-type]
    grammars = [Case(f"grammar {name}", "ebnf", text, keeps) for name, text, keeps in GRAMMARS]
    return [*schemas, *regexes, *grammars]
