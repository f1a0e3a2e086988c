"""POST /v1/responses: a request and the conversation before it, to a request for the router. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from pando.v1.inference_pb2 import GenerateRequest
from pando.v1.types_pb2 import ChatPrompt
from services.gateway.answer_format import responses_answer
from services.gateway.generation import Generation, Head
from services.gateway.grammar_fields import grammar_names
from services.gateway.openai_types import ChatMessage
from services.gateway.prompts import chat_prompt
from services.gateway.responses_types import InputFields, ResponsesRequest
from services.gateway.responses_writer import ResponsesWriter, Save
from services.gateway.sampling import affinity_name, to_sampling
from services.gateway.tools import ToolUse, read_tools
from services.gateway.transcript import Transcript

_NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Names of the router -> names here."""


def to_generation(
    body: ResponsesRequest,
    messages: Sequence[ChatMessage],
    head: Head,
    limits: LimitsConfig,
    *,
    save: Save,
    notes: Mapping[str, Any] | None = None,
) -> Generation:
    """What to run for a checked body.

    Args:
        body: the request.
        messages: the whole conversation, as the model shall see it.
        head: of the answer.
        limits: bounds on tools and schemas.
        save: gets the final document.
        notes: to tell with the usage.

    Raises:
        InvalidRequest: bad tools or schemas.
    """
    use = tool_use(body, limits)
    answer = responses_answer(body.text.format if body.text else None, limits)
    transcript = Transcript(1, 1, keep=not body.stream, notes=notes)
    request = GenerateRequest(
        request_id=head.request_id,
        model=body.model or "",
        chat=prompt_of(body, messages, use),
        sampling=to_sampling(body, max_tokens=body.max_output_tokens, logprobs=body.logprobs),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        session_id=body.session_id or body.prompt_cache_key or "",
    )
    if grammar := use.grammar(answer):
        if constraint := grammar_names(body):
            (field,) = constraint.values()
            raise InvalidRequest(f"{field}: not together with text.format or tools", param=field)
        request.sampling.grammar.CopyFrom(grammar)
    if use.stop:
        request.sampling.stop.append(use.stop)
    return Generation(
        requests=[request],
        transcript=transcript,
        writer=ResponsesWriter(body, head, transcript, use.syntax(answer), save),
        stream=bool(body.stream),
        timeout_s=body.timeout_s,
        names={
            **_NAMES,
            **affinity_name(body),
            "response_format": "tools" if use.callable and answer is None else "text.format",
            **grammar_names(body),
        },
    )


def prompt_of(body: InputFields, messages: Sequence[ChatMessage], use: ToolUse) -> ChatPrompt:
    """The conversation for the chat template. Raises InvalidRequest."""
    return chat_prompt(
        messages,
        continue_final_message=False,
        template_kwargs=body.chat_template_kwargs,
        tools=use.definitions,
    )


def tool_use(body: InputFields, limits: LimitsConfig) -> ToolUse:
    """What may be called. Raises InvalidRequest."""
    tools = None if body.tools is None else [_nested(tool) for tool in body.tools]
    choice = _nested_choice(body.tool_choice)
    try:
        return read_tools(tools, choice, parallel=body.parallel_tool_calls, limits=limits)
    except InvalidRequest as error:
        error.param = error.param.replace(".function", "")
        raise


def _nested(tool: Any) -> Any:
    """A function tool in the shape that chat has; others as they are, to be refused by their type."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _nested_choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return _nested(choice)
    if kind == "allowed_tools":
        tools = choice.get("tools")
        nested = [_nested(tool) for tool in tools] if isinstance(tools, list) else tools
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": nested}}
    return choice
