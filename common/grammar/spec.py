"""What a request asks of its output's form: a grammar as the client wrote it, checked for size and shape only.

Pure. Whether the text is a grammar at all is for `llg` to say; whether it is cheap enough for `checker`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import is_deeper
from common.base.strict_json import load_strict

PARAM = "response_format"
"""Name of the request's field in errors, as OpenAI's callers know it."""


class GrammarKind(StrEnum):
    """How a grammar is written down."""

    REGEX = "regex"
    EBNF = "ebnf"
    JSON_SCHEMA = "json_schema"
    CHOICES = "choices"
    STRUCTURAL_TAG = "structural_tag"


_LITERALS = ("const", "enum")
_MIN_NUMBER, _MAX_NUMBER = -(2**63), 2**64 - 1
_IN_JSON = (GrammarKind.JSON_SCHEMA, GrammarKind.CHOICES, GrammarKind.STRUCTURAL_TAG)


@dataclass(slots=True, frozen=True)
class GrammarSpec:
    """A constraint on the output text.

    Attributes:
        kind: how `text` is to be read.
        text: a regular expression (the whole output matches it), a Lark or GBNF grammar, a JSON schema, a JSON array
            of strings, or a structural tag object.
    """

    kind: GrammarKind
    text: str

    @property
    def digest(self) -> bytes:
        """32 bytes that name this grammar in caches."""
        return hashlib.sha256(f"{self.kind}:{self.text}".encode()).digest()


def invalid_grammar(message: str) -> InvalidRequest:
    """The error for a grammar that is none, or that nothing can match."""
    return InvalidRequest(message, reason="invalid_grammar", param=PARAM)


def too_complex(message: str) -> InvalidRequest:
    """The error for a grammar that costs more time or memory than one request may have."""
    return InvalidRequest(message, reason="grammar_too_complex", param=PARAM)


def check_spec(spec: GrammarSpec, max_bytes: int, max_depth: int) -> None:
    """Check size and nesting, without looking at the grammar's sense.

    Args:
        spec: as the client wrote it.
        max_bytes: longest text in UTF-8.
        max_depth: most levels of objects and arrays, where the grammar is written in JSON.

    Raises:
        InvalidRequest: `param` names the request's field.
    """
    try:
        size = len(spec.text.encode())
    except UnicodeEncodeError:
        raise invalid_grammar(f"the {spec.kind} is not valid Unicode") from None
    if size > max_bytes:
        raise invalid_grammar(f"the {spec.kind} has {size} bytes; at most {max_bytes} are allowed")
    if "\0" in spec.text:
        raise invalid_grammar(f"the {spec.kind} contains a NUL character")
    if spec.kind in _IN_JSON:
        value = load_json(spec)
        if is_deeper(value, max_depth):
            raise invalid_grammar(f"the {spec.kind} is nested more than {max_depth} levels deep")
        _check_literals(value)


def _check_literals(schema: Any) -> None:
    """The engine reads numbers as 64 bits: of larger ones in `const` and `enum` it would write other digits."""
    left = [(schema, False)]
    while left:
        value, is_literal = left.pop()
        if isinstance(value, dict):
            left += [(inner, is_literal or name in _LITERALS) for name, inner in value.items()]
        elif isinstance(value, list):
            left += [(inner, is_literal) for inner in value]
        elif is_literal and isinstance(value, int | float) and not _MIN_NUMBER <= value <= _MAX_NUMBER:
            raise invalid_grammar("a number in const or enum has more than 64 bits")


def load_json(spec: GrammarSpec) -> Any:
    """The data of a grammar that is written in JSON. Raises InvalidRequest."""
    try:
        return load_strict(spec.text)
    except ValueError as error:
        raise invalid_grammar(f"the {spec.kind} is not valid JSON: {str(error)[:80]}") from error


def choices_spec(values: list[str]) -> GrammarSpec:
    """The grammar of exactly these strings. Raises InvalidRequest when one of them is empty, or there is none."""
    if not values or not all(values):
        raise invalid_grammar("choices must be one or more strings that are not empty")
    return GrammarSpec(GrammarKind.CHOICES, json.dumps(values, ensure_ascii=False))
