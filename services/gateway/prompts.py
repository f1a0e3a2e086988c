"""Prompts as clients write them: a text, token ids, or a list of either; messages with text parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.base.errors import InvalidRequest
from pando.v1 import inference_pb2, types_pb2
from services.gateway.body import json_text
from services.gateway.openai_types import ChatMessage
from services.gateway.token_fields import U32_MAX

Prompt = str | list[int]


def split(value: Any, param: str, limit: int) -> list[Prompt]:
    """One prompt per entry, in order.

    Args:
        value: str, list of str, list of ids, or list of lists of ids.
        param: name of the field, for errors.
        limit: most prompts.

    Raises:
        InvalidRequest: another shape, an empty list, an id that is no unsigned 32-bit number, too many prompts.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"{param}: must be a string, or a list of strings or token ids with one entry", param=param
        )
    if isinstance(value[0], int):
        return [_token_ids(value, param)]
    if len(value) > limit:
        raise InvalidRequest(f"{param}: {len(value)} prompts; at most {limit} are allowed", param=param)
    return [_one(entry, param) for entry in value]


def _one(entry: Any, param: str) -> Prompt:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        return _token_ids(entry, param)
    raise InvalidRequest(f"{param}: every entry must be a string or a list of token ids", param=param)


def _token_ids(ids: list[Any], param: str) -> list[int]:
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id <= U32_MAX:
            raise InvalidRequest(f"{param}: {str(token_id)[:40]!r} is no token id", param=param)
    return ids


def put(request: inference_pb2.GenerateRequest, prompt: Prompt) -> None:
    """Set the request's prompt."""
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.CopyFrom(types_pb2.TokenIds(ids=prompt))


def chat_prompt(
    messages: Sequence[ChatMessage],
    *,
    continue_final_message: bool,
    template_kwargs: dict[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> types_pb2.ChatPrompt:
    """Messages for the template. Raises InvalidRequest on parts that are not text."""
    return types_pb2.ChatPrompt(
        messages=[_message(index, message) for index, message in enumerate(messages)],
        continue_final_message=continue_final_message,
        template_kwargs_json=json_text(template_kwargs) if template_kwargs else "",
        tools_json=json_text(tools) if tools else "",
    )


def _message(index: int, message: ChatMessage) -> types_pb2.ChatMessage:
    at = f"messages[{index}]"
    calls = message.calls
    return types_pb2.ChatMessage(
        role="tool" if message.role == "function" else message.role,
        content=_text(message.content, f"{at}.content"),
        name=message.name or "",
        tool_calls_json=json_text(calls) if calls else "",
        tool_call_id=message.tool_call_id or "",
    )


def _text(content: str | list[dict[str, Any]] | None, param: str) -> str:
    """Text parts are joined as they are: nothing that the client did not write gets in."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part_text(part, f"{param}[{index}]", ("text", "refusal")) for index, part in enumerate(content))


def part_text(part: Any, param: str, kinds: Sequence[str]) -> str:
    """Text of a content part, which must be of one of these kinds. Raises InvalidRequest that names the kind it has."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in kinds:
        raise InvalidRequest(
            f"{param}: content part of type {str(kind)[:40]!r} is not supported; only text", param=param
        )
    name = "refusal" if kind == "refusal" else "text"
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidRequest(f"{param}.{name}: must be a string", param=f"{param}.{name}")
    return text
