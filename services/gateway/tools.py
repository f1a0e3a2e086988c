"""Tools that a request offers: their shape, which of them may be called, and the grammar that holds calls to it.

The model writes a call as `<tool_call>{"name": ..., "arguments": ...}</tool_call>` amid text when it may choose
(auto), and as a JSON array of such objects and nothing else when it must call (required, a named tool) or when the
rest of the answer is JSON too. Arguments always obey their schema. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from pando.v1 import types_pb2
from services.gateway.body import json_text
from services.gateway.schemas import Schema, check_schema, check_size, closed, moved

BEGIN = "<tool_call>"
END = "</tool_call>"
MAX_CALLS = 64
"""Most calls of one answer that must consist of calls."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Syntax(Enum):
    """How calls are told from text.

    TAGGED: amid text, between tags. CALLS: the whole answer is a JSON array of calls. CALLS_OR_JSON: it is that, or
    another JSON value, which is no array.
    """

    TAGGED = "tagged"
    CALLS = "calls"
    CALLS_OR_JSON = "calls_or_json"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is the schema of its arguments."""

    name: str
    parameters: Schema


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request may and must call.

    Attributes:
        definitions: tool objects as templates expect them, for the prompt.
        callable: those that may be called; empty: none.
        required: the answer is calls and nothing else.
        parallel: more than one call in an answer is fine.
    """

    definitions: Sequence[Mapping[str, Any]] = ()
    callable: Sequence[Tool] = ()
    required: bool = False
    parallel: bool = True

    def syntax(self, answer: Schema | None) -> Syntax | None:
        """How calls will be written, if any can be; `answer` is the schema of an answer that is no call."""
        if not self.callable:
            return None
        if self.required:
            return Syntax.CALLS
        return Syntax.TAGGED if answer is None else Syntax.CALLS_OR_JSON

    def grammar(self, answer: Schema | None) -> types_pb2.Grammar | None:
        """What holds the output to calls that fit, and to `answer` otherwise. Raises InvalidRequest."""
        syntax = self.syntax(answer)
        if syntax is None:
            return None if answer is None else types_pb2.Grammar(json_schema=json_text(answer))
        if syntax is Syntax.TAGGED:
            return types_pb2.Grammar(structural_tag=json_text(self._tags()))
        if syntax is Syntax.CALLS:
            return types_pb2.Grammar(json_schema=json_text({**self._calls(), "$defs": self._definitions()}))
        if answer is None or answer.get("type") != "object":
            raise InvalidRequest(
                "response_format: beside tools the schema's type must be object", param="response_format"
            )
        parts = {**self._definitions(), "answer": moved(answer, "#/$defs/answer")}
        return types_pb2.Grammar(
            json_schema=json_text({"anyOf": [self._calls(), {"$ref": "#/$defs/answer"}], "$defs": parts})
        )

    @property
    def stop(self) -> str | None:
        """A stop string that ends the answer after its first tagged call, where one is all it may have."""
        return END if self.callable and not self.required and not self.parallel else None

    def _tags(self) -> dict[str, Any]:
        structures = [
            {"begin": _opening(tool), "schema": tool.parameters, "end": f"}}\n{END}"} for tool in self.callable
        ]
        return {"type": "structural_tag", "structures": structures, "triggers": [BEGIN]}

    def _calls(self) -> Schema:
        calls = [_call(tool, f"#/$defs/arguments_{index}") for index, tool in enumerate(self.callable)]
        items = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"type": "array", "minItems": 1, "maxItems": MAX_CALLS if self.parallel else 1, "items": items}

    def _definitions(self) -> dict[str, Schema]:
        return {
            f"arguments_{index}": moved(tool.parameters, f"#/$defs/arguments_{index}")
            for index, tool in enumerate(self.callable)
        }


def _opening(tool: Tool) -> str:
    return f'{BEGIN}\n{{"name": "{tool.name}", "arguments": '


def _call(tool: Tool, arguments: str) -> Schema:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": {"$ref": arguments}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def read_tools(tools: Any, choice: Any, *, parallel: bool | None, limits: LimitsConfig) -> ToolUse:
    """What a request may call, from `tools` and `tool_choice` as chat has them.

    Args:
        tools: list of `{"type": "function", "function": {...}}`, or None.
        choice: none, auto, required, a named function, or allowed_tools.
        parallel: parallel_tool_calls.
        limits: bounds on number and schemas.

    Raises:
        InvalidRequest: with `param`.
    """
    known = _known(tools, limits)
    if not known:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: only allowed when tools are given", param="tool_choice")
        return ToolUse()
    names, required = _chosen(choice, list(known))
    if not names:
        return ToolUse()
    one = isinstance(choice, dict) and choice.get("type") == "function"
    return ToolUse(
        definitions=tools,
        callable=[known[name] for name in names],
        required=required,
        parallel=parallel is not False and not one,
    )


def _known(tools: Any, limits: LimitsConfig) -> dict[str, Tool]:
    tools = tools or []
    if len(tools) > limits.max_tools:
        raise InvalidRequest(f"tools: {len(tools)} tools; at most {limits.max_tools}", param="tools")
    known: dict[str, Tool] = {}
    for index, entry in enumerate(tools):
        tool = _tool(entry, f"tools[{index}]", limits)
        if tool.name in known:
            raise InvalidRequest(f"tools[{index}]: a second tool named {tool.name!r}", param=f"tools[{index}]")
        known[tool.name] = tool
    check_size([tool.parameters for tool in known.values()], "tools", limits)
    return known


def _tool(entry: Any, at: str, limits: LimitsConfig) -> Tool:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if kind != "function":
        raise InvalidRequest(f"{at}: type {str(kind)[:40]!r} is not supported; only function", param=at)
    function = entry.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{at}.function: must be an object", param=f"{at}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"{at}.function.name: must be 1 to 128 of A-Z a-z 0-9 _ . -", param=f"{at}.function.name")
    parameters = function.get("parameters")
    if parameters is not None:
        parameters = check_schema(parameters, f"{at}.function.parameters", limits)
    return Tool(name, closed(parameters or {}))


def _chosen(choice: Any, names: list[str]) -> tuple[list[str], bool]:
    """Names that may be called, and whether one must be."""
    if choice == "none":
        return [], False
    if choice in (None, "auto", "required"):
        return names, choice == "required"
    if isinstance(choice, dict) and choice.get("type") == "function":
        return [_named(choice, names)], True
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), names)
    raise InvalidRequest("tool_choice: must be none, auto, required, a function or allowed_tools", param="tool_choice")


def _allowed(allowed: Any, names: list[str]) -> tuple[list[str], bool]:
    entries = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(entries, list) or not entries or allowed.get("mode") not in ("auto", "required"):
        raise InvalidRequest(
            "tool_choice.allowed_tools: needs a mode (auto or required) and tools", param="tool_choice"
        )
    return list(dict.fromkeys(_named(entry, names) for entry in entries)), allowed["mode"] == "required"


def _named(entry: Any, names: list[str]) -> str:
    function = entry.get("function") if isinstance(entry, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(f"tool_choice: {str(name)[:64]!r} is none of the tools", param="tool_choice")
    return name
