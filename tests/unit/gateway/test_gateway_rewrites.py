"""Prompt normalisation: the language of patterns, what rules do, and that no text makes them slow."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.base.config import ConfigError, load
from services.gateway.config import GatewaySettings, RewriteRule
from services.gateway.openai_types import ChatMessage
from services.gateway.rewrite_pattern import MAX_PATTERN_CHARS, PatternError, compile_pattern
from services.gateway.rewrites import HEAD_CHARS, Rewrite, Rewriter

GREETING = RewriteRule(name="greeting", pattern=r"\s*(hi|hello|good (?:morning|evening))( there)?[ ,.!]*\b")
PLEASE = RewriteRule(name="please", pattern="please ", text="")


def user(content: Any) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def rewritten(text: str, *rules: RewriteRule) -> str:
    (message,), _ = Rewriter(rules or (GREETING, PLEASE)).apply([user(text)])
    assert isinstance(message.content, str)
    return message.content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi, please sum up", "sum up"),
        ("  hello there!! Sum up", "Sum up"),
        ("Good morning. Sum up", "Sum up"),
        ("please sum up", "sum up"),
        ("sum up, hi", "sum up, hi"),
        ("history", "history"),
        ("Hello", "Hello"),
        ("", ""),
    ],
)
def test_greetings_do_not_split_the_tree(text: str, expected: str) -> None:
    assert rewritten(text) == expected


def test_only_the_first_user_message_changes_and_a_copy_of_it() -> None:
    system, first, later = ChatMessage(role="system", content="hi x"), user("hi a"), user("hi b")
    messages, rewrites = Rewriter([GREETING]).apply([system, first, later])
    assert [message.content for message in messages] == ["hi x", "a", "hi b"] and first.content == "hi a"
    assert rewrites == [Rewrite("greeting", "hi ", "")]
    parts = user([{"type": "text", "text": "hi a"}, {"type": "text", "text": "hi b"}])
    messages, _ = Rewriter([GREETING]).apply([parts])
    assert messages[0].content == [{"type": "text", "text": "a"}, {"type": "text", "text": "hi b"}]


@pytest.mark.parametrize("content", [None, [], [{"type": "image_url"}], [{"type": "text", "text": 1}]])
def test_odd_contents_stay(content: Any) -> None:
    messages = [user(content)]
    assert Rewriter([GREETING]).apply(messages) == (messages, [])


def test_no_rules_no_work() -> None:
    messages = [user("hi a")]
    assert Rewriter([]).apply(messages) == (messages, [])


def test_what_is_longer_than_rules_look_at_is_no_match() -> None:
    blanks = RewriteRule(name="b", pattern=r"\s+", text=" ")
    assert rewritten(" " * (HEAD_CHARS - 1) + "x", blanks) == " x"
    assert rewritten(" " * HEAD_CHARS + "x", blanks) == " " * HEAD_CHARS + "x"
    assert rewritten(" x", blanks) == " x", "already so"


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|aa)*", "(a){2}", "(?=a)", "(?P<n>a)", r"(a)\1", "a**", "a+?", "*", "a{2000}", "(", ")", "a)", "[a",
     "\\", r"\q", "a^b", "$a", "a{", "x" * (MAX_PATTERN_CHARS + 1), "(" * 30 + ")" * 30, "[z-a]"],
)  # fmt: skip
def test_what_could_blow_up_or_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


SIMPLE = st.lists(st.sampled_from(["a", "b", "[ab]", ".", r"\s", "(a|b)", "(?:ab)?", "x{1,3}", r"\."]), max_size=6)


@given(parts=SIMPLE, text=st.text(alphabet="abx .", max_size=12), end=st.booleans())
def test_without_open_repetitions_it_is_what_re_says(parts: list[str], text: str, end: bool) -> None:
    """Optional parts are possessive: where plain `re` has to give one back, ours may find no match, never another."""
    pattern = "".join(parts) + ("$" if end else "")
    ours = compile_pattern(pattern, ignore_case=False).match(text)
    plain = re.match(pattern.replace("$", r"\Z"), text)
    assert ours is None or (plain is not None and ours[0] == plain[0])
    if plain is not None and not {"(?:ab)?", "x{1,3}"} & set(parts):
        assert ours is not None


def test_no_text_makes_a_pattern_slow() -> None:
    hostile = [
        "(a|a|a)?" * 40 + "c", "a*" * 200 + "c", "[ab]*" * 80 + "(c|d)", r"(\w*|a)?" * 40 + "c$",
        "(" * 20 + "a*" * 20 + ")?" * 20 + "c",
    ]  # fmt: skip
    patterns = [compile_pattern(pattern) for pattern in hostile]
    started_s = time.perf_counter()
    for pattern in patterns:
        for text in ("a" * HEAD_CHARS, "ab" * (HEAD_CHARS // 2)):
            assert pattern.match(text) is None
    assert time.perf_counter() - started_s < 10.0  # ms; a pattern that backtracks takes for ever


def test_rules_are_checked_when_the_configuration_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANDO_GATEWAY__REWRITES", '[{"name": "greeting", "pattern": "hi ", "text": ""}]')
    assert load(GatewaySettings, [], "gateway").gateway.rewrites[0].name == "greeting"
    monkeypatch.setenv("PANDO_GATEWAY__REWRITES", '[{"name": "greeting", "pattern": "(a+)+"}]')
    with pytest.raises(ConfigError, match="may not repeat"):
        load(GatewaySettings, [], "gateway")
