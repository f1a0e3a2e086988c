"""Patterns of rewrite rules: a part of regular expressions that matches in linear time, whatever the text. Pure.

A pattern stands at the start of the text. It has characters, `.`, classes, escapes, groups, alternatives, and a final
`$`; characters, classes and escapes may repeat (`? * + {m,n}`), groups may be optional. Nothing that has matched is
given back to let a later part match (`.*x` never matches): repetitions become possessive and groups atomic, so there is
no backtracking to blow up.
"""

from __future__ import annotations

import re

MAX_PATTERN_CHARS = 500
MAX_REPEAT = 1000

_ESCAPES = frozenset("sSdDwWbBnrt")
_REPEAT = re.compile(r"[?*+]|{(\d{1,4})(?:,(\d{0,4}))?}")
_CLASS = re.compile(r"\[\^?]?(?:\\.|[^\]\\])*]", re.DOTALL)


class PatternError(ValueError):
    """The pattern is not in the language above; the message says where."""


def compile_pattern(pattern: str, *, ignore_case: bool = True) -> re.Pattern[str]:
    """What matches the pattern at the start of a text. Raises PatternError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"longer than {MAX_PATTERN_CHARS} characters")
    source = _Translator(pattern).translated()
    try:
        return re.compile(source, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, FutureWarning) as error:
        raise PatternError(str(error)) from error


class _Translator:
    """Reads a pattern from left to right and writes the regular expression."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern.removeprefix("^")
        self._end = self._text.endswith("$") and not self._text.endswith("\\$")
        if self._end:
            self._text = self._text[:-1]
        self._at = 0

    def translated(self) -> str:
        body = self._alternatives(depth=0)
        if self._at < len(self._text):
            raise self._error("a ) that closes nothing")
        return f"(?>{body})" + (r"\Z" if self._end else "")

    def _alternatives(self, depth: int) -> str:
        if depth > 20:
            raise self._error("groups are nested too deeply")
        branches = [""]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                branches.append("")
            else:
                branches[-1] += self._piece(depth)
        return "|".join(branches)

    def _piece(self, depth: int) -> str:
        is_group = self._text[self._at] == "("
        atom = self._group(depth) if is_group else self._atom()
        match = _REPEAT.match(self._text, self._at)
        if match is None:
            return atom
        self._at = match.end()
        if is_group and match[0] != "?":
            raise self._error("a group may be optional, but it may not repeat")
        if _REPEAT.match(self._text, self._at):
            raise self._error("a second repetition")
        if any(int(bound or 0) > MAX_REPEAT for bound in match.groups()):
            raise self._error(f"more than {MAX_REPEAT} repetitions")
        return f"{atom}{match[0]}+"

    def _group(self, depth: int) -> str:
        self._at += 1
        if self._text.startswith("?", self._at) and not self._text.startswith("?:", self._at):
            raise self._error("only plain groups")
        self._at += 2 if self._text.startswith("?:", self._at) else 0
        body = self._alternatives(depth + 1)
        if not self._text.startswith(")", self._at):
            raise self._error("a group without end")
        self._at += 1
        return f"(?>{body})"

    def _atom(self) -> str:
        char = self._text[self._at]
        if char == "[":
            match = _CLASS.match(self._text, self._at)
            if match is None:
                raise self._error("a class without end")
            self._at = match.end()
            return match[0]
        if char == "\\":
            return self._escape()
        if char in "?*+{}$^]":
            raise self._error(f"{char} out of place")
        self._at += 1
        return char if char == "." else re.escape(char)

    def _escape(self) -> str:
        escape = self._text[self._at : self._at + 2]
        if len(escape) < 2 or (escape[1].isalnum() and escape[1] not in _ESCAPES):
            raise self._error(f"the escape {escape} is not known")
        self._at += 2
        return escape

    def _error(self, message: str) -> PatternError:
        return PatternError(f"{message}, at character {self._at}")
