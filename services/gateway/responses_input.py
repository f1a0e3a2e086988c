"""Items of the responses API -> messages for the chat template. Pure.

An *item* is a message, a function call or its output, as JSON. Items that come in get an id and one shape, in which
they are stored and listed; a stored response's own output is in that shape already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from common.base.errors import InvalidRequest
from services.gateway.openai_types import ChatMessage
from services.gateway.prompts import part_text

Item = dict[str, Any]
Lookup = Callable[[str], Item | None]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")


def read_items(given: str | Sequence[Item] | None, prefix: str, lookup: Lookup) -> list[Item]:
    """The items of a request, in one shape.

    Args:
        given: `input` as it came.
        prefix: of the ids of items that bring none.
        lookup: an earlier item by its id, for references.

    Raises:
        InvalidRequest: an item or a content part that is no text; `param` says which.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(entry, f"input[{index}]", f"{prefix}_{index}", lookup) for index, entry in enumerate(given or ())]


def _item(entry: Item, at: str, item_id: str, lookup: Lookup) -> Item:
    kind = entry.get("type") or ("message" if "role" in entry else "item_reference")
    if kind == "message":
        return _message(entry, at, item_id)
    if kind == "function_call":
        return {
            "id": _own_id(entry) or f"fc_{item_id}",
            "type": kind,
            "status": "completed",
            **{name: _string(entry, name, at) for name in ("call_id", "name", "arguments")},
        }
    if kind == "function_call_output":
        text = "".join(_texts(entry.get("output"), f"{at}.output"))
        item = {"id": _own_id(entry) or f"fco_{item_id}", "type": kind, "status": "completed", "output": text}
        return {**item, "call_id": _string(entry, "call_id", at)}
    if kind == "reasoning":
        return {"id": _own_id(entry) or f"rs_{item_id}", "type": kind, "summary": entry.get("summary") or []}
    if kind == "item_reference":
        return _referred(entry, at, lookup)
    raise InvalidRequest(f"{at}: items of type {str(kind)[:40]!r} are not supported", param=at)


def _message(entry: Item, at: str, item_id: str) -> Item:
    role = entry.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"{at}.role: must be one of {', '.join(_ROLES)}", param=f"{at}.role")
    kind = "output_text" if role == "assistant" else "input_text"
    content: list[Item] = [{"type": kind, "text": text} for text in _texts(entry.get("content"), f"{at}.content")]
    if role == "assistant":
        content = [{**part, "annotations": []} for part in content]
    return {
        "id": _own_id(entry) or f"msg_{item_id}",
        "type": "message",
        "status": "completed",
        "role": role,
        "content": content,
    }


def _own_id(entry: Item) -> str:
    own = entry.get("id")
    return own if isinstance(own, str) else ""


def _texts(content: Any, param: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidRequest(f"{param}: must be a string or a list of parts", param=param)
    return [part_text(part, f"{param}[{index}]", _TEXT_PARTS) for index, part in enumerate(content)]


def _string(entry: Item, name: str, at: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}.{name}: must be a string", param=f"{at}.{name}")
    return value


def _referred(entry: Item, at: str, lookup: Lookup) -> Item:
    item_id = _string(entry, "id", at)
    found = lookup(item_id)
    if found is None:
        raise InvalidRequest(f"{at}.id: no item {item_id[:80]!r} is stored", param=f"{at}.id", reason="item_not_found")
    return found


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[ChatMessage]:
    """The conversation. Calls that were made together, and the text before them, are one message."""
    messages = [ChatMessage(role="system", content=instructions)] if instructions else []
    for item in items:
        if item["type"] == "function_call":
            _add_call(messages, item)
        elif item["type"] == "function_call_output":
            messages.append(ChatMessage(role="tool", content=item["output"], tool_call_id=item["call_id"]))
        elif item["type"] == "message":
            text = "".join(part["text"] for part in item["content"])
            messages.append(ChatMessage(role=item["role"], content=text))
    return messages


def _add_call(messages: list[ChatMessage], item: Item) -> None:
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant"))
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
