"""Prompt normalisation: rewrites the start of a conversation's first user message by the operator's rules.

"Hi, ", "hello!" and "good morning" before the same question split the prefix tree at its root: everything behind them
is computed again. A rule such as `(hi|hello)[ ,.!]*` -> "" lets such prompts share their KV. Off unless rules are
configured; each answer tells what was rewritten. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.gateway.config import RewriteRule
from services.gateway.openai_types import ChatMessage
from services.gateway.rewrite_pattern import compile_pattern

HEAD_CHARS = 512
"""Rules look at this many characters at the start of a message."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a rule did: it put `inserted` in the place of `removed`."""

    rule: str
    removed: str
    inserted: str


class Rewriter:
    """Applies rules in order, each at most once."""

    def __init__(self, rules: Iterable[RewriteRule]) -> None:
        self._rules = [(rule, compile_pattern(rule.pattern, ignore_case=rule.ignore_case)) for rule in rules]

    def apply(self, messages: Sequence[ChatMessage]) -> tuple[Sequence[ChatMessage], list[Rewrite]]:
        """The conversation as the model will see it, and what was rewritten; nothing is changed in place."""
        if not self._rules:
            return messages, []
        for position, message in enumerate(messages):
            if message.role == "user":
                text, rewrites = self._text(_first_text(message))
                if not rewrites:
                    return messages, []
                return [*messages[:position], _with_first_text(message, text), *messages[position + 1 :]], rewrites
        return messages, []

    def _text(self, text: str) -> tuple[str, list[Rewrite]]:
        rewrites: list[Rewrite] = []
        for rule, pattern in self._rules:
            removed = _matched(pattern, text)
            rest = text[len(removed) :]
            if removed and removed != rule.text and (rule.text + rest).strip():
                text = rule.text + rest
                rewrites.append(Rewrite(rule.name, removed, rule.text))
        return text, rewrites


def _matched(pattern: re.Pattern[str], text: str) -> str:
    """What the pattern matches at the start; a match that reaches the end of what rules look at is none."""
    head = text[:HEAD_CHARS]
    match = pattern.match(head)
    if match is None or (match.end() == HEAD_CHARS and len(text) > HEAD_CHARS):
        return ""
    return match[0]


def _first_text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    first = message.content[0] if message.content else {}
    text = first.get("text")
    return text if first.get("type") == "text" and isinstance(text, str) else ""


def _with_first_text(message: ChatMessage, text: str) -> ChatMessage:
    if isinstance(message.content, list):
        return message.model_copy(update={"content": [{**message.content[0], "text": text}, *message.content[1:]]})
    return message.model_copy(update={"content": text})
