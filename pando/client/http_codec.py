"""The gateway's native JSON <-> the client's types. Pure.

POST /generate streams events that carry a choice's text and ids *so far*; `EventReader` makes chunks of them. Of usage
it tells the counts and three times; cached tokens are not told apart by tier and count as l1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.base.errors import Internal, Leg, PandoError, PeerLost, Unsupported
from pando.client.convert import GRAMMARS, JSON_GRAMMARS, as_chat, schema_text, stops
from pando.client.types import (
    CachedTokens,
    Chunk,
    FinishReason,
    Prompt,
    PromptInfo,
    Tokenized,
    TokenLogprob,
    TopLogprob,
    Usage,
)

_SAMPLING = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "include_stop_str": "no_stop_trim",
    **{
        name: name
        for name in (
            "n",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "stop_token_ids",
            "ignore_eos",
            "skip_special_tokens",
            "seed",
        )
    },
}
_TOP = {"model": "model", "request_id": "rid", "cache_salt": "cache_salt", "priority": "priority"}
_OPTIONS = {theirs: ours for ours, theirs in (_SAMPLING | _TOP).items()}
_OPTIONS |= {"text": "prompt", "input_ids": "prompt", "top_logprobs_num": "logprobs"}
"""Field of the native format -> the caller's option."""
_CODES = {
    400: "invalid_request",
    401: "permission_denied",
    404: "model_not_found",
    413: "invalid_request",
    429: "overloaded",
}
_CODES |= {499: "cancelled", 501: "unsupported", 502: "peer_lost", 503: "unavailable", 504: "deadline_exceeded"}
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def generate_body(prompt: str | Sequence[int], options: Mapping[str, Any]) -> dict[str, Any]:
    """Body of POST /generate for `convert.checked` options; a conversation has been tokenised before.

    Raises:
        Unsupported: a tenant is named; over HTTP the API key does that.
    """
    for name in ("tenant", "tenant_weight"):
        if name in options:
            raise Unsupported(f"{name} needs the gRPC client; over HTTP the API key tells the tenant", param=name)
    sampling = {theirs: options[ours] for ours, theirs in _SAMPLING.items() if ours in options}
    sampling |= {name: options[name] for name in GRAMMARS if name in options}
    sampling |= {name: schema_text(options[name], name) for name in JSON_GRAMMARS if name in options}
    if "logit_bias" in options:
        sampling["logit_bias"] = {str(token): bias for token, bias in options["logit_bias"].items()}
    if "stop" in options:
        sampling["stop"] = stops(options)
    body: dict[str, Any] = {theirs: options[ours] for ours, theirs in _TOP.items() if ours in options}
    body |= {"sampling_params": sampling, "stream": True}
    body["text" if isinstance(prompt, str) else "input_ids"] = prompt if isinstance(prompt, str) else list(prompt)
    if "session_id" in options:
        body["session_id"] = options["session_id"]
    if "logprobs" in options or "prompt_logprobs" in options:
        body["return_logprob"] = True
        body["top_logprobs_num"] = max(options.get("logprobs", 0), options.get("prompt_logprobs", 0))
        body["logprob_start_len"] = options.get("prompt_logprobs_start", 0) if "prompt_logprobs" in options else -1
    return body


def needs_tokenizing(prompt: Prompt, options: Mapping[str, Any]) -> bool:
    """Whether a prompt goes to /tokenize first: a conversation, or text whose ids the caller wants to see."""
    return as_chat(prompt) is not None or (isinstance(prompt, str) and bool(options.get("return_prompt_token_ids")))


def tokenize_body(prompt: Prompt, model: str, add_special_tokens: bool) -> dict[str, Any]:
    """Body of POST /tokenize for text or a conversation.

    Raises:
        Unsupported: the conversation has tools, for which the route has no field.
    """
    chat = as_chat(prompt)
    if chat is None:
        return {
            "model": model or None,
            "prompt": prompt,
            "add_special_tokens": add_special_tokens,
            "return_token_strs": True,
        }
    if chat.tools:
        raise Unsupported("tools need the gRPC client or the OpenAI API", param="tools")
    return {
        "model": model or None,
        "return_token_strs": True,
        "messages": [dict(message) for message in chat.messages],
        "continue_final_message": chat.continue_final_message,
        "chat_template_kwargs": dict(chat.template_kwargs) or None,
    }


def tokenized(answer: Mapping[str, Any], prompt: Prompt) -> Tokenized:
    """What /tokenize said; the text of a conversation is that of its tokens."""
    tokens = tuple(map(token_bytes, answer["token_strs"]))
    text = prompt if isinstance(prompt, str) else b"".join(tokens).decode(errors="replace")
    return Tokenized(tuple(answer["tokens"]), tokens, text, answer["max_model_len"])


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON of server-sent events until `[DONE]`.

    Raises:
        PandoError: the stream carried an error, or ended without `[DONE]`.
    """
    for line in lines:
        event = event_of(line)
        if event == {}:
            return
        if event is not None:
            yield event
    raise PeerLost("the stream was cut", leg=Leg.GATEWAY)


def event_of(line: str) -> dict[str, Any] | None:
    """The JSON of one line; None for a line without data, {} for `[DONE]`. Raises PandoError for an error event."""
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if data == "[DONE]":
        return {}
    event = json.loads(data)
    if not isinstance(event, dict):
        raise Internal("an event is no JSON object", leg=Leg.GATEWAY)
    if "error" in event:
        raise error_of(0, event, 0.0)
    return event


def error_of(status: int, body: Any, retry_after_s: float) -> PandoError:
    """The error that a body in OpenAI's form, or a bare status, stands for."""
    found = body.get("error") if isinstance(body, Mapping) else None
    fields = found if isinstance(found, Mapping) else {}
    reason = str(fields.get("code") or "")
    known = _classes(PandoError)
    fallback = known.get(_CODES.get(status, "invalid_request" if 400 <= status < 500 else "internal"), Internal)
    param = str(fields.get("param") or "").removeprefix("sampling_params.")
    return known.get(reason, fallback)(
        str(fields.get("message") or f"HTTP status {status}"),
        reason=reason,
        leg=Leg.GATEWAY,
        param=_OPTIONS.get(param, param),
        retry_after_s=retry_after_s,
    )


def _classes(root: type[PandoError]) -> dict[str, type[PandoError]]:
    """The error tree by default reason, without what others derived from it."""
    found: dict[str, type[PandoError]] = {}
    for cls in [cls for cls in root.__subclasses__() if cls.__module__ == PandoError.__module__]:
        found |= {**_classes(cls), cls.default_reason: cls}
    return found


class EventReader:
    """Makes the chunks of one request from its events.

    Args:
        request_id: of the request.
        options: its `checked` options.
        prompt_ids: the ids that were sent, if the caller wants to see them.
    """

    def __init__(self, request_id: str, options: Mapping[str, Any], prompt_ids: Sequence[int]) -> None:
        self._request_id = request_id
        self._options = options
        self._prompt_ids = tuple(prompt_ids)
        self._seen: dict[int, tuple[int, int]] = {}

    def chunk(self, event: Mapping[str, Any]) -> Chunk:
        """What an event adds to its choice."""
        index = int(event.get("index", 0))
        num_chars, num_ids = self._seen.get(index, (0, 0))
        text, ids, meta = event["text"], event["output_ids"], event["meta_info"]
        first = index not in self._seen
        self._seen[index] = (len(text), len(ids))
        finish = _finish(meta)
        return Chunk(
            request_id=self._request_id,
            choice=index,
            text=text[num_chars:],
            token_ids=tuple(ids[num_ids:]),
            logprobs=self._logprobs(meta, num_ids),
            finish_reason=finish,
            stop_reason=(meta["finish_reason"].get("matched") or "") if finish == "stop" else "",
            usage=_usage(meta) if finish else None,
            prompt=self._prompt(meta) if first else None,
        )

    def _logprobs(self, meta: Mapping[str, Any], start: int) -> tuple[TokenLogprob, ...]:
        if "logprobs" not in self._options:
            return ()
        entries, tops = meta["output_token_logprobs"][start:], meta["output_top_logprobs"][start:]
        return _token_logprobs(entries, tops, self._options["logprobs"])

    def _prompt(self, meta: Mapping[str, Any]) -> PromptInfo:
        logprobs: tuple[TokenLogprob, ...] = ()
        if "prompt_logprobs" in self._options:
            skip = 0 if self._options.get("prompt_logprobs_start", 0) else 1  # the prompt's first token has none
            entries, tops = meta.get("input_token_logprobs", ())[skip:], meta.get("input_top_logprobs", ())[skip:]
            logprobs = _token_logprobs(entries, tops, self._options["prompt_logprobs"])
        return PromptInfo(meta["prompt_tokens"], self._prompt_ids, logprobs)


def _finish(meta: Mapping[str, Any]) -> FinishReason | None:
    finish = meta.get("finish_reason")
    if finish is None:
        return None
    return "length" if finish["type"] == "length" else "stop"


def _usage(meta: Mapping[str, Any]) -> Usage:
    return Usage(
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=meta["completion_tokens"],
        cached=CachedTokens(l1=meta["cached_tokens"]),
        queue_s=meta.get("queue_time", 0.0),
        prefill_s=meta.get("prefill_time", 0.0),
        decode_s=meta.get("decode_time", 0.0),
    )


def _token_logprobs(entries: Sequence[Any], tops: Sequence[Any], num_top: int) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(token_id, logprob, token_bytes(token), top=tuple(_top(other) for other in (top or ())[:num_top]))
        for (logprob, token_id, token), top in zip(entries, tops, strict=True)
    )


def _top(entry: Sequence[Any]) -> TopLogprob:
    logprob, token_id, token = entry
    return TopLogprob(token_id, logprob, token_bytes(token))


def token_bytes(token: str) -> bytes:
    r"""Exact bytes of a token as the gateway shows it: text, or `bytes:\xf0\x9f` for a part of a character."""
    if token.startswith("bytes:\\x"):
        return bytes(int(pair, 16) for pair in _ESCAPED.findall(token))
    return token.encode()
