"""What a request may ask for: every semantic check of the public API, with OpenAI's field names as `param`.

Pure: values in, InvalidRequest out. Form (types, JSON) was checked before; what needs tokens or workers is checked by
`check_context` once they are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from common.grammar.spec import check_spec
from common.sched.params import SamplingParams
from services.router.job import Chat, Prompt, Wish

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
_MESSAGE_CHARS = 16
_MAX_PENALTY = 2.0
_MAX_BIAS = 100.0


def check_wish(wish: Wish, limits: LimitsConfig, vocab_size: int) -> None:
    """Check everything that needs neither tokenizer nor workers.

    Raises:
        InvalidRequest: `param` names the field at fault.
    """
    if not 1 <= wish.n <= limits.max_n:
        raise InvalidRequest(f"n must be between 1 and {limits.max_n}, not {wish.n}", param="n")
    last = wish.first_choice + wish.n
    if last > limits.max_n:
        raise InvalidRequest(f"choices up to {last - 1} are more than {limits.max_n}", param="first_choice")
    if wish.max_tokens is not None and wish.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    _check_prompt(wish.prompt, limits, vocab_size)
    _check_counts(wish, limits)
    _check_ranges(wish.params, limits)
    _check_stops(wish.params.stop, limits)
    _check_biases(wish.params.logit_bias.values())
    for param, ids in (
        ("output_token_ids", wish.output_ids),
        ("stop_token_ids", wish.params.stop_token_ids),
        ("logit_bias", wish.params.logit_bias),
    ):
        check_tokens(param, ids, vocab_size)
    if wish.params.grammar is not None:
        check_spec(wish.params.grammar, limits.max_schema_bytes, limits.max_schema_depth)


def output_budget(wish: Wish, num_prompt_tokens: int, max_model_len: int, limits: LimitsConfig, strict: bool) -> int:
    """The true max_tokens: what was asked for, cut to what context and limits leave.

    Args:
        wish: checked by `check_wish`.
        num_prompt_tokens: tokens of the prompt.
        max_model_len: tokens that prompt and output may have together.
        limits: the configured bounds.
        strict: refuse what does not fit the context instead of cutting it.

    Raises:
        InvalidRequest: the prompt leaves no room (context_length_exceeded), or the output has too many tokens already.
    """
    _require(num_prompt_tokens > 0, "prompt", "the prompt must have at least one token")
    room = max_model_len - num_prompt_tokens
    if room <= 0 or (strict and wish.max_tokens is not None and wish.max_tokens > room):
        raise InvalidRequest(
            _context_message(num_prompt_tokens, wish.max_tokens, max_model_len),
            reason=CONTEXT_LENGTH_EXCEEDED,
            param=_prompt_param(wish),
        )
    budget = room if wish.max_tokens is None else min(wish.max_tokens, room)
    if limits.max_output_tokens:
        budget = min(budget, limits.max_output_tokens)
    if wish.params.min_tokens > budget:
        raise InvalidRequest(
            f"min_tokens {wish.params.min_tokens} is more than the {budget} tokens that may be generated",
            param="min_tokens",
        )
    if len(wish.output_ids) > budget:
        raise InvalidRequest(
            f"{len(wish.output_ids)} output tokens are more than the {budget} that may be generated",
            param="output_token_ids",
        )
    return budget


def _context_message(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> str:
    asked = "" if max_tokens is None else f" and {max_tokens} tokens for the output"
    return (
        f"This model's maximum context length is {max_model_len} tokens, "
        f"but the request has {num_prompt_tokens} prompt tokens{asked}."
    )


def _require(condition: bool, param: str, message: str) -> None:
    if not condition:
        raise InvalidRequest(message, param=param)


def _prompt_param(wish: Wish) -> str:
    return "messages" if isinstance(wish.prompt, Chat) else "prompt"


def _check_prompt(prompt: Prompt | None, limits: LimitsConfig, vocab_size: int) -> None:
    if isinstance(prompt, list):
        _require(len(prompt) > 0, "prompt", "the prompt must have at least one token")
        check_tokens("prompt", prompt, vocab_size)
    elif isinstance(prompt, Chat):
        check_messages(prompt, limits)
    elif isinstance(prompt, str):
        check_text(prompt, limits)
    else:
        raise InvalidRequest("a prompt (text, messages or token ids) is required", param="prompt")


def check_messages(chat: Chat, limits: LimitsConfig) -> None:
    """Check number and length of a conversation's messages, its tools and template variables. Raises InvalidRequest."""
    count = len(chat.messages)
    _require(count > 0, "messages", "messages must not be empty")
    _require(count <= limits.max_messages, "messages", f"{count} messages; at most {limits.max_messages}")
    tools = chat.tools or ()
    _require(len(tools) <= limits.max_tools, "tools", f"{len(tools)} tools; at most {limits.max_tools}")
    _require(all(isinstance(tool, Mapping) for tool in tools), "tools", "each tool must be an object")
    refused = sorted(chat.template_kwargs.keys() - set(limits.chat_template_kwargs))
    allowed = ", ".join(limits.chat_template_kwargs)
    _require(not refused, "chat_template_kwargs", f"unknown template variable {refused[:1]}; allowed: {allowed}")
    for param, value in (
        ("messages", _told(chat)),
        ("tools", chat.tools),
        ("chat_template_kwargs", chat.template_kwargs),
    ):
        _require(_num_bytes(value) <= limits.max_prompt_bytes, param, f"longer than {limits.max_prompt_bytes} bytes")


def num_chat_chars(chat: Chat) -> int:
    """Characters that the template of a conversation may print, names, tools and variables included, at least 16 a
    message: how much work it will be."""
    texts = _texts((_told(chat), chat.tools, chat.template_kwargs))
    return sum(map(len, texts)) + _MESSAGE_CHARS * len(chat.messages)


def _told(chat: Chat) -> list[Any]:
    """What messages say: the values of their fields, but for the role, which is one of a few words."""
    return [value for message in chat.messages for name, value in message.items() if name != "role"]


def _num_bytes(value: Any) -> int:
    return sum(len(text.encode()) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """All strings in plain data, keys of objects included."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one


def check_text(text: str, limits: LimitsConfig) -> None:
    """Check the length of a prompt's text. Raises InvalidRequest."""
    _require(len(text) > 0, "prompt", "the prompt must not be empty")
    _require(
        len(text.encode()) <= limits.max_prompt_bytes,
        "prompt",
        f"the prompt is longer than {limits.max_prompt_bytes} bytes",
    )


def check_tokens(param: str, ids: Iterable[int], vocab_size: int) -> None:
    """Check that all ids are in the vocabulary. Raises InvalidRequest."""
    highest = max(ids, default=0)
    if highest >= vocab_size:
        raise InvalidRequest(f"{param}: token id {highest} is out of the vocabulary of {vocab_size}", param=param)


def _check_counts(wish: Wish, limits: LimitsConfig) -> None:
    params = wish.params
    for param, count, most, what in (
        ("request_id", len(wish.request_id), limits.max_id_chars, "characters"),
        ("session_id", len(wish.session_id), limits.max_id_chars, "characters"),
        ("cache_salt", len(wish.cache_salt), limits.max_id_chars, "characters"),
        ("tenant", len(wish.tenant), limits.max_id_chars, "characters"),
        ("stop", len(params.stop), limits.max_stop_strings, "stop strings"),
        ("stop_token_ids", len(params.stop_token_ids), limits.max_stop_token_ids, "ids"),
        ("logit_bias", len(params.logit_bias), limits.max_logit_bias, "entries"),
        ("logprobs", params.logprobs or 0, limits.max_logprobs, "alternatives"),
        ("prompt_logprobs", params.prompt_logprobs or 0, limits.max_logprobs, "alternatives"),
    ):
        if count > most:
            raise InvalidRequest(f"{param}: {count} {what}; at most {most}", param=param)


def _check_ranges(params: SamplingParams, limits: LimitsConfig) -> None:
    for param, value, low, high in (
        ("temperature", params.temperature, 0.0, limits.max_temperature),
        ("min_p", params.min_p, 0.0, 1.0),
        ("presence_penalty", params.presence_penalty, -_MAX_PENALTY, _MAX_PENALTY),
        ("frequency_penalty", params.frequency_penalty, -_MAX_PENALTY, _MAX_PENALTY),
    ):
        if not low <= value <= high:  # so is what is not a number
            raise _out_of_range(param, value, f"at least {low:g}", high)
    for param, value, high in (
        ("top_p", params.top_p, 1.0),
        ("repetition_penalty", params.repetition_penalty, _MAX_PENALTY),
    ):
        if not 0.0 < value <= high:
            raise _out_of_range(param, value, "above 0", high)


def _out_of_range(param: str, value: float, least: str, high: float) -> InvalidRequest:
    return InvalidRequest(f"{param} must be {least} and at most {high:g}, not {value:g}", param=param)


def _check_stops(stops: Sequence[str], limits: LimitsConfig) -> None:
    for stop in stops:
        if not 0 < len(stop) <= limits.max_stop_chars:
            raise InvalidRequest(
                f"a stop string must have 1 to {limits.max_stop_chars} characters, not {len(stop)}", param="stop"
            )


def _check_biases(biases: Iterable[float]) -> None:
    for bias in biases:
        if not -_MAX_BIAS <= bias <= _MAX_BIAS:
            raise _out_of_range("logit_bias", bias, f"at least {-_MAX_BIAS:g}", _MAX_BIAS)
