"""Tools for chat templates that know none: the same conversation with tools, calls and results written as text. Pure.

The format is that of the Hermes and Qwen models: calls are JSON between `<tool_call>` tags, results text between
`<tool_response>` tags in a user's message. Front doors hold the model's output to the same format, so a template that
shows tools in another one is treated like one that shows none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from common.base.errors import InvalidRequest
from common.base.strict_json import load_strict
from common.tokenizer.chat_template import ChatTemplate
from services.router.job import Chat

Message = Mapping[str, Any]

_BEGIN, _END = "<tool_call>", "</tool_call>"
_PROBE = "pando_probe"


def knows_tools(template: ChatTemplate) -> bool:
    """The template tells the model of tools, shows calls in our format, and shows results."""
    call = {"id": "1", "type": "function", "function": {"name": _PROBE, "arguments": {"x": "pando_argument"}}}
    tool = {"type": "function", "function": {"name": _PROBE, "description": "d", "parameters": {"type": "object"}}}
    user = {"role": "user", "content": "go"}
    history: list[Message] = [
        user,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "pando_result", "tool_call_id": "1", "name": _PROBE},
    ]
    try:
        told = template.render([user], [tool])
        shown = template.render(history)
    except InvalidRequest:
        return False
    in_format = all(word in told for word in (_PROBE, _BEGIN, '"arguments"'))
    return in_format and all(word in shown for word in (_PROBE, _BEGIN, "pando_argument", "pando_result"))


def without_tools(chat: Chat) -> Chat:
    """The conversation for a template that knows no tools. Raises InvalidRequest: a call that is no call."""
    messages: list[Message] = []
    for message in chat.messages:
        if message.get("role") == "tool":
            _add_result(messages, str(message.get("content") or ""))
        elif message.get("tool_calls"):
            messages.append(_with_calls(message))
        else:
            messages.append(message)
    if chat.tools:
        messages = _with_instructions(messages, chat.tools)
    return Chat(messages, None, chat.continue_final_message, chat.template_kwargs)


def uses_tools(chat: Chat) -> bool:
    """There is anything in the conversation that a template without tools would drop."""
    return bool(chat.tools) or any(one.get("tool_calls") or one.get("role") == "tool" for one in chat.messages)


def _add_result(messages: list[Message], text: str) -> None:
    """Results of calls that were made together are one message: many templates want users and assistants in turn."""
    result = f"<tool_response>\n{text}\n</tool_response>"
    before = messages[-1] if messages else {}
    if before.get("role") == "user" and str(before.get("content")).endswith("</tool_response>"):
        messages[-1] = {**before, "content": f"{before['content']}\n{result}"}
    else:
        messages.append({"role": "user", "content": result})


def _with_calls(message: Message) -> Message:
    calls = [_call_text(call) for call in message["tool_calls"]]
    content = message.get("content")
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join([content, *calls] if content else calls)}


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest("each tool call must be an object with a function", param="messages")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = load_strict(arguments)
        except ValueError as error:
            raise InvalidRequest("tool call arguments are not valid JSON", param="messages") from error
    body = {"name": function.get("name"), "arguments": arguments}
    return f"{_BEGIN}\n{json.dumps(body, ensure_ascii=False)}\n{_END}"


def _with_instructions(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    text = _instructions(tools)
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer"):
        content = first.get("content")
        return [{**first, "content": f"{content}\n\n{text}" if content else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions, each described by a JSON object:\n<tools>\n{functions}\n</tools>\n"
        f"To call one, write its name and arguments as JSON between tags:\n"
        f'{_BEGIN}\n{{"name": "function_name", "arguments": {{"argument": "value"}}}}\n{_END}\n'
        "You get what it returned between <tool_response> tags. Answer in plain text where no call is needed."
    )
