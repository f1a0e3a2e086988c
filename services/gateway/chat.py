"""POST /v1/chat/completions: messages to a request for the router. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from pando.v1.inference_pb2 import GenerateRequest
from services.gateway.answer_format import chat_answer
from services.gateway.chat_writer import ChatWriter
from services.gateway.generation import Generation, Head
from services.gateway.grammar_fields import grammar_names
from services.gateway.openai_types import ChatMessage, ChatRequest
from services.gateway.prompts import chat_prompt
from services.gateway.sampling import affinity_name, to_sampling
from services.gateway.schemas import Schema
from services.gateway.tools import ToolUse, read_tools
from services.gateway.transcript import Transcript


def to_generation(
    body: ChatRequest,
    messages: Sequence[ChatMessage],
    head: Head,
    limits: LimitsConfig,
    notes: Mapping[str, Any] | None = None,
) -> Generation:
    """What to run for a checked body.

    Args:
        body: the request.
        messages: its conversation, as the model shall see it.
        head: of the answer.
        limits: bounds on tools and schemas.
        notes: to tell with the usage.

    Raises:
        InvalidRequest: content that is not text, bad tools, bad schemas.
    """
    tools, choice, parallel = body.tool_fields()
    use = read_tools(tools, choice, parallel=parallel, limits=limits)
    answer = chat_answer(body.response_format, limits)
    transcript = Transcript(1, body.num_choices, keep=not body.stream, notes=notes)
    return Generation(
        requests=[_request(body, messages, head, use, answer)],
        transcript=transcript,
        writer=ChatWriter(body, head, transcript, use.syntax(answer)),
        stream=bool(body.stream),
        timeout_s=body.timeout_s,
        names=_names(body, use),
    )


def _names(body: ChatRequest, use: ToolUse) -> dict[str, str]:
    names = {"prompt": "messages", "logprobs": "top_logprobs", **grammar_names(body), **affinity_name(body)}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if use.callable and body.response_format is None:
        names["response_format"] = names["grammar"] = "tools"
    return names


def _request(
    body: ChatRequest, messages: Sequence[ChatMessage], head: Head, use: ToolUse, answer: Schema | None
) -> GenerateRequest:
    newer = body.max_completion_tokens
    sampling = to_sampling(
        body,
        max_tokens=body.max_tokens if newer is None else newer,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    if body.prompt_logprobs is not None:
        sampling.prompt_logprobs = body.prompt_logprobs
    if grammar := use.grammar(answer):
        if constraint := grammar_names(body):
            (field,) = constraint.values()
            raise InvalidRequest(f"{field}: not together with response_format or tools", param=field)
        sampling.grammar.CopyFrom(grammar)
    if use.stop:
        sampling.stop.append(use.stop)
    return GenerateRequest(
        request_id=head.request_id,
        model=body.model or "",
        chat=chat_prompt(
            messages,
            continue_final_message=bool(body.continue_final_message),
            template_kwargs=body.chat_template_kwargs,
            tools=use.definitions,
        ),
        sampling=sampling,
        n=body.num_choices,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        session_id=body.session_id or body.prompt_cache_key or "",
        return_prompt_token_ids=bool(body.return_token_ids),
    )
