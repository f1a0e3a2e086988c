"""Conversation -> prompt text by the model's own chat template, in Jinja's sandbox.

The template is data from the model directory and may fail on messages it does not like: that is the caller's error and
comes back as InvalidRequest with the template's reason. What the template sees is normalised: roles are the five known
ones (developer becomes system), content is a string, tool-call arguments are objects. Text that spells a special token
is left as it is: the tokenizer turns it into that token, as transformers does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.base.errors import InvalidRequest
from common.base.model_config import ModelError, read_json
from common.base.strict_json import load_strict

MAX_PROMPT_CHARS = 16 << 20
ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, Any]

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_RESERVED = {"messages", "tools", "add_generation_prompt", *_SPECIAL_TOKENS}
_CONTINUE_MARK = "PANDO_CONTINUES_HERE "
_TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ChatTemplate:
    """A compiled chat template. Immutable; may be used from several threads.

    Args:
        source: Jinja source.
        special_tokens: bos_token, eos_token, ... -> their spelling.
        now: local time for templates that print a date.

    Raises:
        ModelError: the source does not compile.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment(now).from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"the model's chat template does not compile: {error}") from error

    @classmethod
    def load(cls, path: Path) -> ChatTemplate | None:
        """Read the template of the model directory `path`; None if the model has none.

        chat_template.jinja wins over tokenizer_config.json; of several named templates `default` is taken.

        Raises:
            ModelError: a file is damaged.
        """
        config_path = path / "tokenizer_config.json"
        config = read_json(config_path) if config_path.exists() else {}
        source = _template_source(path, config)
        if source is None:
            return None
        return cls(source, {name: text for name in _SPECIAL_TOKENS if (text := _spelling(config.get(name)))})

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """Return the prompt text; encode it without adding special tokens.

        Args:
            messages: role, content and whatever else the template reads.
            tools: OpenAI tool objects.
            add_generation_prompt: end with the opening of an assistant message.
            continue_final_message: leave the last message, an assistant's, open instead.
            template_kwargs: further variables for the template, such as enable_thinking.

        Raises:
            InvalidRequest: a message is malformed, the template refuses, or the text is too long.
        """
        if taken := _RESERVED & template_kwargs.keys():
            raise InvalidRequest(f"template argument {min(taken)!r} is reserved", param="chat_template_kwargs")
        chat = [_normalised(message) for message in messages]
        if not chat:
            _refuse("messages must not be empty")
        if continue_final_message:
            _mark_final_message(chat, add_generation_prompt)
        variables = {
            "documents": None,
            **self._special_tokens,
            **template_kwargs,
            "messages": chat,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._rendered(variables)
        return _cut_at_mark(text) if continue_final_message else text

    def _rendered(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(variables):
                num_chars += len(piece)
                if num_chars > MAX_PROMPT_CHARS:
                    _refuse(f"the rendered messages exceed {MAX_PROMPT_CHARS} characters")
                pieces.append(piece)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error
        except _TEMPLATE_FAULTS as error:
            kind = type(error).__name__
            raise InvalidRequest(f"the chat template failed on the messages ({kind})", param="messages") from error
        return "".join(pieces)


class _GenerationTag(Extension):
    """Renders the body of {% generation %}, a mark that training code puts around the assistant's text."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares a plain set

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as transformers' templates expect it: no HTML escaping."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _template_source(path: Path, config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {file}: {error}") from error
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if source is not None and not isinstance(source, str):
        raise ModelError(f"chat_template in {path / 'tokenizer_config.json'} is not text")
    return source


def _spelling(token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest(message, param="messages")


def _normalised(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse("each message must be an object")
    role = message.get("role")
    if role not in ROLES:
        _refuse(f"unknown message role {str(role)[:40]!r} (known: {', '.join(ROLES)})")
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = "system" if role == "developer" else role
    result["content"] = _text_content(message.get("content"))
    if calls := result.get("tool_calls"):
        if not isinstance(calls, Sequence):
            _refuse("tool_calls must be a list")
        result["tool_calls"] = [_normalised_call(call) for call in calls]
    return result


def _text_content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        _refuse("message content must be text or a list of text parts")
    parts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            _refuse("only text parts are supported in message content")
        parts.append(part["text"])
    return "".join(parts)


def _normalised_call(call: Any) -> dict[str, Any]:
    """A tool call whose arguments are an object: OpenAI sends them as JSON text, templates print them as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        _refuse("each tool call must be an object with a function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = load_strict(arguments)
        except ValueError:
            _refuse("tool call arguments are not valid JSON")
    if not isinstance(arguments, Mapping):
        _refuse("tool call arguments must be a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


def _mark_final_message(chat: list[dict[str, Any]], add_generation_prompt: bool) -> None:
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    if chat[-1]["role"] != "assistant":
        raise InvalidRequest("the message to continue must be an assistant's", param="continue_final_message")
    chat[-1]["content"] += _CONTINUE_MARK


def _cut_at_mark(text: str) -> str:
    """Cut at the last mark; if the template stripped the space at its end, it strips the message's end too."""
    position = text.rfind(_CONTINUE_MARK.rstrip())
    if position < 0:
        raise InvalidRequest("the chat template drops the message to continue", param="continue_final_message")
    kept = text[:position]
    return kept if text.startswith(_CONTINUE_MARK, position) else kept.rstrip()
