"""Tools in prompts: which templates show them, and what the others get instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.tokenizer.chat_template import ChatTemplate
from services.router.job import Chat
from services.router.tool_prompt import knows_tools, uses_tools, without_tools

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
HERMES = """{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}
<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}
{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{% endfor %}
{% endfor %}"""
OTHER_FORMAT = HERMES.replace("<tool_call>", "<|python_tag|>")
FORGETS_CALLS = HERMES.replace("m.tool_calls or []", "[]")
REFUSES_TOOLS = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "go"}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "1"}


@pytest.mark.parametrize(
    ("source", "known"),
    [(PLAIN, False), (HERMES, True), (OTHER_FORMAT, False), (FORGETS_CALLS, False), (REFUSES_TOOLS, False)],
)
def test_templates_are_asked_what_they_show(source: str, known: bool) -> None:
    assert knows_tools(ChatTemplate(source, {})) is known


def test_tools_are_told_in_the_system_message() -> None:
    added = without_tools(Chat([USER], [ADD])).messages
    assert [message["role"] for message in added] == ["system", "user"]
    assert json.dumps(ADD["function"]) in added[0]["content"] and "<tool_call>" in added[0]["content"]
    kept = without_tools(Chat([{"role": "developer", "content": "Be brief."}, USER], [ADD])).messages
    assert len(kept) == 2 and kept[0]["content"].startswith("Be brief.\n\n") and '"add"' in kept[0]["content"]
    empty = without_tools(Chat([{"role": "system", "content": None}, USER], [ADD])).messages
    assert empty[0]["content"].startswith("You can call")


def test_calls_and_results_stay_in_the_history() -> None:
    calls = {"role": "assistant", "content": "Hm.", "tool_calls": [call("add", '{"a": 1}'), call("now", {})]}
    chat = Chat([USER, calls, result("9"), result("noon"), USER], None, False, {"x": 1})
    changed = without_tools(chat)
    assert changed.template_kwargs == {"x": 1} and changed.tools is None
    assert [message["role"] for message in changed.messages] == ["user", "assistant", "user", "user"]
    assert changed.messages[1]["content"] == (
        'Hm.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    )
    assert "tool_calls" not in changed.messages[1]
    assert changed.messages[2]["content"] == (
        "<tool_response>\n9\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    )
    assert ChatTemplate(PLAIN, {}).render(changed.messages).count("<tool_") == 4


def test_only_what_would_be_dropped_counts() -> None:
    assert not uses_tools(Chat([USER, {"role": "assistant", "content": "a", "tool_calls": None}]))
    assert uses_tools(Chat([USER], [ADD])) and uses_tools(Chat([result("9")]))
    assert uses_tools(Chat([{"role": "assistant", "tool_calls": [call("f", {})]}]))


@pytest.mark.parametrize(
    "bad", ["x", {}, {"function": 1}, call("f", "{"), call("f", "[" * 100_000), call("f", '"\\ud800"')]
)
def test_calls_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        without_tools(Chat([{"role": "assistant", "tool_calls": [bad]}]))
    assert caught.value.param == "messages"
