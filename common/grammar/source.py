"""Grammars as the grammar engine reads them: choices and structural tags become Lark, schemas lose their own options.

Pure text in, text out. Everything that comes from a client is quoted as JSON, which Lark strings are.

Whitespace in JSON is compact but not rigid: an optional space after ``,`` and ``:`` and none elsewhere. A schema cannot
ask for more; so no run of whitespace outside strings is longer than one character, a small model cannot wander off into
newlines, and most of an object's skeleton is forced, so that it costs no steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.grammar.spec import GrammarSpec, invalid_grammar, load_json

JSON_OPTIONS: Mapping[str, Any] = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}
"""How JSON is written; an unknown keyword of a schema is refused, not ignored."""

_OPTIONS_KEY = "x-guidance"


@dataclass(slots=True, frozen=True)
class Tag:
    """A stretch of structured output inside free text: `begin`, an object of `schema`, `end`; `trigger` opens it."""

    trigger: str
    begin: str
    schema: Mapping[str, Any]
    end: str


def json_schema(spec: GrammarSpec) -> dict[str, Any]:
    """A schema as plain data, without options for the engine. Raises InvalidRequest: no JSON, or no schema."""
    return _object_schema(load_json(spec))


def choices_lark(spec: GrammarSpec) -> str:
    """The Lark grammar of a JSON array of strings. Raises InvalidRequest."""
    values = load_json(spec)
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
        raise invalid_grammar("choices must be a JSON array of strings that are not empty")
    return "start: CHOICE\nCHOICE: " + " | ".join(map(_quoted, values))


def structural_tag_lark(spec: GrammarSpec, is_special: Callable[[str], bool]) -> str:
    """The Lark grammar of ``{"type": "structural_tag", "structures": [{begin, schema, end}], "triggers": [...]}``.

    Free text is allowed until a trigger appears; from there on one of the structures that begin with it follows, and
    then free text again.

    Args:
        spec: of this kind.
        is_special: whether a string is one special token, which text cannot spell.

    Raises:
        InvalidRequest: another shape, or a structure that no trigger opens.
    """
    rules = [_tag_rules(index, tag, is_special(tag.trigger)) for index, tag in enumerate(_tags(spec))]
    names = " | ".join(f"tag_{index}" for index in range(len(rules)))
    return "\n".join([f"start: ({names})* rest", "rest: TEXT", "TEXT: /(.|\\n)*/", *rules])


def _tag_rules(index: int, tag: Tag, special: bool) -> str:
    schema = {**tag.schema, _OPTIONS_KEY: dict(JSON_OPTIONS)}
    body = [f"%json {json.dumps(schema, ensure_ascii=False)}"]
    left = tag.begin[len(tag.trigger) :]
    if left:
        body.insert(0, _quoted(left))
    if tag.end:
        body.append(_quoted(tag.end))
    if special:
        return f"tag_{index}: TEXT {tag.trigger} {' '.join(body)}"
    opening = f"open_{index}[lazy]: TEXT {_quoted(tag.trigger)}"
    return f"{opening}\ntag_{index}: open_{index} {' '.join(body)}"


def _tags(spec: GrammarSpec) -> list[Tag]:
    value = load_json(spec)
    if not isinstance(value, dict) or value.get("type", "structural_tag") != "structural_tag":
        raise invalid_grammar("structural_tag must be an object of type structural_tag")
    structures: Any = value.get("structures")
    triggers: Any = value.get("triggers")
    _check_list(structures, dict, "structures (objects)")
    _check_list(triggers, str, "triggers (strings)")
    return [_tag(structure, triggers) for structure in structures]


def _check_list(value: Any, kind: type, what: str) -> None:
    if not (isinstance(value, list) and value and all(isinstance(one, kind) and one for one in value)):
        raise invalid_grammar(f"structural_tag needs a list of {what}, not empty ones")


def _tag(structure: Mapping[str, Any], triggers: Sequence[str]) -> Tag:
    begin, end = structure.get("begin"), structure.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise invalid_grammar("a structure needs begin and end, which are strings")
    opening = [trigger for trigger in triggers if begin.startswith(trigger)]
    if not opening:
        raise invalid_grammar(f"no trigger opens the structure that begins with {begin[:40]!r}")
    return Tag(opening[0], begin, _object_schema(structure.get("schema")), end)


def _object_schema(schema: Any) -> dict[str, Any]:
    """The schema as an object (``true`` is the empty one), without what would set the engine's options."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise invalid_grammar("a JSON schema must be an object that something can satisfy")
    return {name: value for name, value in schema.items() if name != _OPTIONS_KEY}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
