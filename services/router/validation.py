"""What a request may ask for: every semantic check of the public API, with OpenAI's field names as `param`.

Pure: values in, InvalidRequest out. Form (types, JSON) was checked before; what needs tokens or workers is checked by
`check_context` once they are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from common.grammar.spec import check_spec
from common.sched.params import SamplingParams
from services.router.job import Chat, Wish

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
_MESSAGE_CHARS = 16
_MAX_PENALTY = 2.0
_MAX_BIAS = 100.0


def check_wish(wish: Wish, limits: LimitsConfig, vocab_size: int) -> None:
    """Check everything that needs neither tokenizer nor workers.

    Raises:
        InvalidRequest: `param` names the field at fault.
    """
    _check_ids(wish, limits)
    _require(1 <= wish.n <= limits.max_n, "n", f"n must be between 1 and {limits.max_n}, not {wish.n}")
    last = wish.first_choice + wish.n
    _require(last <= limits.max_n, "first_choice", f"choices up to {last - 1} are more than {limits.max_n}")
    _check_prompt(wish, limits, vocab_size)
    check_tokens("output_token_ids", wish.output_ids, vocab_size)
    if wish.max_tokens is not None:
        _require(wish.max_tokens >= 1, "max_tokens", "max_tokens must be at least 1")
    _check_sampling(wish.params, limits)
    _check_stops(wish.params, limits, vocab_size)
    _check_logit_bias(wish.params, limits, vocab_size)
    _check_logprobs(wish.params, limits)
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
    _require(
        wish.params.min_tokens <= budget,
        "min_tokens",
        f"min_tokens {wish.params.min_tokens} is more than the {budget} tokens that may be generated",
    )
    _require(
        len(wish.output_ids) <= budget,
        "output_token_ids",
        f"{len(wish.output_ids)} output tokens are more than the {budget} that may be generated",
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


def _check_ids(wish: Wish, limits: LimitsConfig) -> None:
    for param, value in (
        ("request_id", wish.request_id),
        ("session_id", wish.session_id),
        ("cache_salt", wish.cache_salt),
        ("tenant", wish.tenant),
    ):
        if len(value) > limits.max_id_chars:
            raise InvalidRequest(f"{param} is longer than {limits.max_id_chars} characters", param=param)


def _check_prompt(wish: Wish, limits: LimitsConfig, vocab_size: int) -> None:
    prompt = wish.prompt
    _require(prompt is not None, "prompt", "a prompt (text, messages or token ids) is required")
    if isinstance(prompt, Chat):
        check_messages(prompt, limits)
    elif isinstance(prompt, str):
        check_text(prompt, limits)
    elif prompt is not None:
        _require(len(prompt) > 0, "prompt", "the prompt must have at least one token")
        check_tokens("prompt", prompt, vocab_size)


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


def _check_sampling(params: SamplingParams, limits: LimitsConfig) -> None:
    _check_range("temperature", params.temperature, 0.0, limits.max_temperature)
    _check_range("min_p", params.min_p, 0.0, 1.0)
    _check_range("presence_penalty", params.presence_penalty, -_MAX_PENALTY, _MAX_PENALTY)
    _check_range("frequency_penalty", params.frequency_penalty, -_MAX_PENALTY, _MAX_PENALTY)
    _check_range("top_p", params.top_p, 0.0, 1.0, above=True)
    _check_range("repetition_penalty", params.repetition_penalty, 0.0, _MAX_PENALTY, above=True)


def _check_range(param: str, value: float, low: float, high: float, above: bool = False) -> None:
    if not math.isfinite(value) or not (low < value if above else low <= value) or value > high:
        least = f"{'above' if above else 'at least'} {low:g}"
        raise InvalidRequest(f"{param} must be {least} and at most {high:g}, not {value:g}", param=param)


def _check_stops(params: SamplingParams, limits: LimitsConfig, vocab_size: int) -> None:
    count = len(params.stop)
    _require(count <= limits.max_stop_strings, "stop", f"{count} stop strings; at most {limits.max_stop_strings}")
    for stop in params.stop:
        _require(
            0 < len(stop) <= limits.max_stop_chars,
            "stop",
            f"a stop string must have 1 to {limits.max_stop_chars} characters, not {len(stop)}",
        )
    count = len(params.stop_token_ids)
    _require(
        count <= limits.max_stop_token_ids,
        "stop_token_ids",
        f"{count} stop_token_ids; at most {limits.max_stop_token_ids}",
    )
    check_tokens("stop_token_ids", params.stop_token_ids, vocab_size)


def _check_logit_bias(params: SamplingParams, limits: LimitsConfig, vocab_size: int) -> None:
    count = len(params.logit_bias)
    _require(count <= limits.max_logit_bias, "logit_bias", f"{count} entries; at most {limits.max_logit_bias}")
    check_tokens("logit_bias", params.logit_bias, vocab_size)
    for value in params.logit_bias.values():
        _check_range("logit_bias", value, -_MAX_BIAS, _MAX_BIAS)


def _check_logprobs(params: SamplingParams, limits: LimitsConfig) -> None:
    for param, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        _require((value or 0) <= limits.max_logprobs, param, f"{param} must be at most {limits.max_logprobs}")
