"""Rendering conversations: normalised messages, template reasons, sandbox, bounds."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from common.base.errors import InvalidRequest
from common.base.model_config import ModelError
from common.tokenizer import chat_template
from common.tokenizer.chat_template import ChatTemplate
from tests.support.tiny_vocab import TEMPLATE, tiny_vocab, write_tokenizer

USER = {"role": "user", "content": "hi"}


def template(source: str = TEMPLATE, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens, now=lambda: datetime(2031, 5, 6))


def refused(call: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        call()
    return caught.value


def test_plain_conversation() -> None:
    messages = [{"role": "system", "content": "s"}, USER]
    assert template().render(messages) == "<|start|>system\ns<|end|>\n<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert template().render(messages, add_generation_prompt=False).endswith("hi<|end|>\n")


def test_developer_is_system_and_content_is_text() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "tool"},
    ]
    text = template().render(messages, add_generation_prompt=False)
    assert text == "<|start|>system\na b<|end|>\n<|start|>assistant\n<|end|>\n<|start|>tool\n<|end|>\n"


def test_callers_messages_are_not_changed() -> None:
    messages: list[dict[str, Any]] = [{"role": "developer", "content": None}, {"role": "assistant", "content": "x"}]
    before = json.dumps(messages)
    template().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ([{"role": "robot", "content": "x"}], "'robot'"),
        ([{"content": "x"}], "role"),
        (["hi"], "object"),
        ([{"role": "user", "content": 3}], "content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "text parts"),
        ([{"role": "user", "content": ["x"]}], "text parts"),
        ([{**USER, "tool_calls": 3}], "tool_calls"),
        ([{**USER, "tool_calls": [3]}], "tool call"),
        ([{**USER, "tool_calls": [{"function": {"arguments": "{"}}]}], "valid JSON"),
        ([{**USER, "tool_calls": [{"function": {"arguments": '{"a": "\\ud800"}'}}]}], "valid JSON"),
        ([{**USER, "tool_calls": [{"function": {"arguments": "[]"}}]}], "JSON object"),
    ],
)
def test_malformed_messages_name_the_parameter(messages: Any, words: str) -> None:
    error = refused(lambda: template().render(messages))
    assert words in error.message
    assert error.param == "messages"


def test_the_templates_own_reason_is_told() -> None:
    source = "{% if messages|length > 1 %}{{ raise_exception('roles must alternate') }}{% endif %}ok"
    assert template(source).render([USER]) == "ok"
    error = refused(lambda: template(source).render([USER, USER]))
    assert "roles must alternate" in error.message
    assert error.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].missing.deeper }}",
        "{{ messages[0].content + 3 }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(10000000)|list }}",
    ],
)
def test_faults_and_sandbox_escapes_are_refused(source: str) -> None:
    assert refused(lambda: template(source).render([USER])).param == "messages"


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_PROMPT_CHARS", 50)
    source = "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}"
    assert "50 characters" in refused(lambda: template(source).render([USER])).message
    assert template("{{ messages[0].content }}").render([USER]) == "hi"


def test_helpers_that_templates_use() -> None:
    source = (
        "{%- for m in messages %}\n    {%- if loop.index > 1 %}{% break %}{% endif %}\n"
        "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}{{ tools[0]|tojson }}{{ enable_thinking }}"
        "{% generation %}{{ m.content }}{% endgeneration %}\n{%- endfor %}"
    )
    tool = {"b": "<é>", "a": 1}
    text = template(source, bos_token="<s>").render([USER, USER], tools=[tool], enable_thinking=False)
    assert text == '<s>2031-05-06{"b": "<é>", "a": 1}Falsehi'


def test_blocks_are_trimmed_as_transformers_does() -> None:
    assert template("  {% if true %}\nx\n  {% endif %}\ny").render([USER]) == "x\ny"


def test_tool_call_arguments_become_objects() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    for arguments in ('{"x": "é"}', {"x": "é"}):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        assert template(source).render([{"role": "assistant", "tool_calls": [call]}]) == '{"x": "é"}'
    call = {"function": {"name": "f", "arguments": ""}}
    assert template(source).render([{"role": "assistant", "tool_calls": [call]}]) == "{}"


def test_reserved_template_arguments() -> None:
    assert refused(lambda: template().render([USER], bos_token="x")).param == "chat_template_kwargs"


def test_final_message_is_left_open() -> None:
    messages = [USER, {"role": "assistant", "content": "The answer "}]
    text = template().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|start|>assistant\nThe answer ")
    trimming = "{% for m in messages %}{{ m.content | trim }};{% endfor %}"
    text = template(trimming).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "hi;The answer"


def test_final_message_that_cannot_be_continued() -> None:
    def render(messages: list[Any], source: str = TEMPLATE, generation: bool = False) -> None:
        template(source).render(messages, add_generation_prompt=generation, continue_final_message=True)

    assistant = {"role": "assistant", "content": "x"}
    for call in (
        lambda: render([USER]),
        lambda: render([assistant], generation=True),
        lambda: render([assistant], source="nothing"),
    ):
        assert refused(call).param == "continue_final_message"


def test_source_that_does_not_compile() -> None:
    with pytest.raises(ModelError, match="compile"):
        template("{% if %}")


def test_load_prefers_the_jinja_file(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    write_tokenizer(tmp_path, tiny_vocab())
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    assert loaded.render([USER]).startswith("<|start|>user")
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}!")
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    assert loaded.render([USER]) == "<|end|>!"


def test_load_named_templates_and_token_objects(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ bos_token }}d"}]
    config = {"chat_template": named, "bos_token": {"content": "<b>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    assert loaded.render([USER]) == "<b>d"
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": 3}')
    with pytest.raises(ModelError, match="not text"):
        ChatTemplate.load(tmp_path)
