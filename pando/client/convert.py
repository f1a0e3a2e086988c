"""Between the client's types and protobuf messages. Pure; what a value may mean is the router's to judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from common.base.errors import Cancelled, InvalidRequest, PandoError
from common.base.ids import new_request_id, new_seed
from pando.client.fields import content_text, json_text, put
from pando.client.types import (
    CachedTokens,
    Chat,
    Chunk,
    FinishReason,
    ModelInfo,
    Options,
    Prompt,
    PromptInfo,
    Tokenized,
    TokenLogprob,
    TopLogprob,
    Usage,
    WorkerInfo,
)
from pando.v1 import inference_pb2, types_pb2

_SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str",
    "skip_special_tokens",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "prompt_logprobs_start",
)
_TENANT = ("tenant", "tenant_weight")
_REQUEST = ("model", "n", "request_id", "cache_salt", "priority", "session_id", "return_prompt_token_ids", *_TENANT)
_OTHER = ("stop", "timeout_s")
GRAMMARS = ("regex", "json_schema", "choices", "ebnf", "structural_tag")
JSON_GRAMMARS = ("json_schema", "structural_tag")
_KNOWN = frozenset((*_SAMPLING, *_REQUEST, *_OTHER, *GRAMMARS))
_FINISH: dict[int, FinishReason] = {types_pb2.FINISH_REASON_STOP: "stop", types_pb2.FINISH_REASON_LENGTH: "length"}


def checked(options: Options) -> dict[str, Any]:
    """The options that are `given`, with an id and a seed for what has none.

    Both are made here and not by the server, so that a request can be aborted by its id at any time and a retry is
    the same request. Raises what `given` raises.
    """
    return {"request_id": new_request_id(), "seed": new_seed(), **given(options)}


def given(options: Options) -> dict[str, Any]:
    """The options that are given; None counts as not given.

    Raises:
        TypeError: an option that does not exist.
        InvalidRequest: more than one constraint on the output, or a number that is none.
    """
    found = {name: value for name, value in cast(dict[str, Any], options).items() if value is not None}
    if unknown := found.keys() - _KNOWN:
        raise TypeError(f"unknown option {min(unknown)!r}")
    if len(grammars := [name for name in GRAMMARS if name in found]) > 1:
        raise InvalidRequest(f"{grammars[0]} and {grammars[1]} exclude each other", param=grammars[1])
    for name, value in found.items():
        if not all(map(_is_finite, value.values() if isinstance(value, Mapping) else (value,))):
            raise InvalidRequest(f"{name} must be finite", param=name)
    _check_positive(found, "timeout_s", int | float)
    _check_positive(found, "n", int)
    return found


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _check_positive(options: Mapping[str, Any], name: str, kind: Any) -> None:
    value = options.get(name, 1)
    if not isinstance(value, kind) or isinstance(value, bool) or value <= 0:
        raise InvalidRequest(f"{name} must be a number above 0", param=name)


def attribute(error: PandoError, options: Mapping[str, Any]) -> None:
    """Make an error speak of the caller's request: by its id, and of the constraint by the option's name."""
    error.request_id = error.request_id or options["request_id"]
    if error.param == "response_format":
        error.param = next((name for name in GRAMMARS if name in options), error.param)


def as_chat(prompt: Prompt) -> Chat | None:
    """The conversation that a prompt is; None for text and token ids."""
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, Chat):
        return prompt
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        return Chat(cast(Any, prompt))
    return None


def as_ids(prompt: Prompt) -> Sequence[int]:
    """The token ids of a prompt that is neither text nor a conversation. Raises InvalidRequest."""
    ids = tuple(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes) else ()
    numbers = [token for token in ids if isinstance(token, int)]
    if not ids or len(numbers) != len(ids):
        raise InvalidRequest("a prompt is text, messages or token ids, and not empty", param="prompt")
    return numbers


def generate_request(prompt: Prompt, options: Mapping[str, Any]) -> inference_pb2.GenerateRequest:
    """The message for a prompt and `checked` options.

    Raises:
        InvalidRequest: a value that the field cannot hold.
    """
    request = inference_pb2.GenerateRequest()
    chat = as_chat(prompt)
    if chat is not None:
        request.chat.CopyFrom(chat_to_pb(chat))
    elif isinstance(prompt, str):
        put(request, "text", prompt, "prompt")
    else:
        put(request.token_ids, "ids", as_ids(prompt), "prompt")
    for name in _REQUEST:
        if name in options:
            put(request, name, options[name])
    for name in _SAMPLING:
        if name in options:
            put(request.sampling, name, options[name])
    put(request.sampling, "stop", stops(options))
    _put_grammar(request.sampling.grammar, options)
    return request


def stops(options: Mapping[str, Any]) -> Any:
    """Stop strings as a list; what is no text is as it came."""
    stop = options.get("stop", ())
    return [stop] if isinstance(stop, str) else stop


def schema_text(schema: str | Mapping[str, Any], param: str = "json_schema") -> str:
    """What is written in JSON as text. Raises InvalidRequest."""
    return schema if isinstance(schema, str) else json_text(schema, param)


def _put_grammar(grammar: types_pb2.Grammar, options: Mapping[str, Any]) -> None:
    for name in GRAMMARS:
        if name not in options:
            continue
        value = options[name]
        if name == "choices":
            choices = types_pb2.Grammar.Choices()
            put(choices, "values", value, name)
            grammar.choices.CopyFrom(choices)
        else:
            put(grammar, name, schema_text(value, name) if name in JSON_GRAMMARS else value)


def chat_to_pb(chat: Chat) -> types_pb2.ChatPrompt:
    """Messages for the template. Raises InvalidRequest."""
    return types_pb2.ChatPrompt(
        messages=[_message(message) for message in chat.messages],
        continue_final_message=chat.continue_final_message,
        template_kwargs_json=json_text(dict(chat.template_kwargs), "template_kwargs") if chat.template_kwargs else "",
        tools_json=json_text(list(chat.tools), "tools") if chat.tools else "",
    )


def _message(message: Mapping[str, Any]) -> types_pb2.ChatMessage:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest("a message needs a role", param="messages")
    calls = message.get("tool_calls")
    result = types_pb2.ChatMessage(tool_calls_json=json_text(calls, "messages") if calls else "")
    put(result, "content", content_text(message.get("content")), "messages")
    for name in ("role", "name", "tool_call_id"):
        put(result, name, message.get(name) or "", "messages")
    return result


def tokenize_request(prompt: Prompt, model: str, add_special_tokens: bool) -> inference_pb2.TokenizeRequest:
    """The message for text or a conversation. Raises InvalidRequest."""
    chat = as_chat(prompt)
    if chat is not None:
        return inference_pb2.TokenizeRequest(model=model, chat=chat_to_pb(chat))
    if not isinstance(prompt, str):
        raise InvalidRequest("text or messages are required", param="prompt")
    request = inference_pb2.TokenizeRequest(model=model, add_special_tokens=add_special_tokens)
    put(request, "text", prompt, "prompt")
    return request


def detokenize_request(
    token_ids: Sequence[int], model: str, skip_special_tokens: bool
) -> inference_pb2.DetokenizeRequest:
    """The message for token ids. Raises InvalidRequest."""
    request = inference_pb2.DetokenizeRequest(model=model, skip_special_tokens=skip_special_tokens)
    put(request, "token_ids", token_ids)
    return request


def tokenized_from_pb(message: inference_pb2.TokenizeResponse, prompt: Prompt) -> Tokenized:
    """The answer, with the text that was tokenised."""
    text = prompt if isinstance(prompt, str) else message.text
    return Tokenized(tuple(message.token_ids), tuple(message.tokens), text, message.max_model_len)


def chunk_from_pb(frame: inference_pb2.GenerateResponse) -> Chunk:
    """A frame as the caller sees it.

    Raises:
        Cancelled: somebody aborted the request.
    """
    if frame.finish_reason == types_pb2.FINISH_REASON_ABORT:
        raise Cancelled("the request was aborted", request_id=frame.request_id)
    finish = _FINISH.get(frame.finish_reason)
    return Chunk(
        request_id=frame.request_id,
        choice=frame.choice,
        text=frame.text,
        token_ids=tuple(frame.token_ids),
        logprobs=_logprobs(frame.logprobs),
        finish_reason=finish,
        stop_reason=frame.stop_reason,
        usage=_usage(frame.usage) if finish else None,
        prompt=_prompt(frame.prompt) if frame.HasField("prompt") else None,
    )


def _prompt(prompt: inference_pb2.PromptInfo) -> PromptInfo:
    return PromptInfo(prompt.num_tokens, tuple(prompt.token_ids), _logprobs(prompt.logprobs))


def _logprobs(entries: Iterable[types_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            entry.token_id,
            entry.logprob,
            entry.token,
            entry.rank,
            tuple(TopLogprob(top.token_id, top.logprob, top.token) for top in entry.top),
        )
        for entry in entries
    )


def _usage(usage: types_pb2.Usage) -> Usage:
    cached = usage.cached_tokens
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached=CachedTokens(cached.l1, cached.l2, cached.l3, cached.peer),
        queue_s=usage.queue_s,
        prefill_s=usage.prefill_s,
        decode_s=usage.decode_s,
        transfer_s=usage.transfer_s,
        transfer_bytes=usage.transfer_bytes,
        num_preemptions=usage.num_preemptions,
        prefill_worker=usage.prefill_worker,
        decode_worker=usage.decode_worker,
    )


def model_from_pb(model: inference_pb2.GetModelResponse) -> ModelInfo:
    """The served model."""
    return ModelInfo(
        name=model.name,
        max_model_len=model.max_model_len,
        created_unix_s=model.created_unix_s,
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        eos_token_ids=tuple(model.eos_token_ids),
        has_chat_template=model.has_chat_template,
        block_size=model.block_size,
    )


def worker_from_pb(worker: inference_pb2.WorkerStatus) -> WorkerInfo:
    """One worker of the list."""
    return WorkerInfo(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        address=worker.address,
        roles=tuple(worker.roles),
        state=worker.state,
        num_running=worker.num_running,
        num_waiting=worker.num_waiting,
        waiting_tokens=worker.waiting_tokens,
        blocks_free=worker.blocks_free,
        blocks_cached=worker.blocks_cached,
        blocks_held=worker.blocks_held,
        blocks_in_view=worker.blocks_in_view,
        transports=tuple(worker.transports),
        pid=worker.pid,
    )
