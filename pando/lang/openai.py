"""The backend for any server that speaks OpenAI's HTTP API.

Messages go to /chat/completions, plain text to /completions. That API has no token ids to send and no way to score a
text in a conversation, so: prompts travel as text, `select` works on plain text only (by `echo`), and the model can go
on inside a message that has begun only where the server has the extension `continue_final_message`.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import httpx

from common.base.errors import InvalidRequest, PeerLost, Unsupported
from pando.client.convert import given, schema_text, stops
from pando.client.http import CONNECT_S, STREAM_LIMITS, status_error, transport_error
from pando.client.http_codec import event_of
from pando.client.line import Line
from pando.client.types import Options, TokenLogprob
from pando.lang.backend import Answer, Backend, Listener, Position
from pando.lang.choices import Scored
from pando.lang.expr import Gen, Select
from pando.lang.script import Script

DEFAULT_URL = "https://api.openai.com/v1"
_STANDARD = ("max_tokens", "temperature", "top_p", "n", "presence_penalty", "frequency_penalty", "seed")
_SAMPLING_EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos")
_EXTENSIONS = (*_SAMPLING_EXTENSIONS, "regex", "ebnf", "cache_salt", "priority", "session_id")


class OpenAI(Backend):
    """An OpenAI-compatible endpoint.

    Args:
        model_name: sent with every request.
        base_url: up to and with /v1; None: OPENAI_BASE_URL, else OpenAI's own.
        api_key: None: OPENAI_API_KEY.
        extensions: the server takes the fields that Pando, vLLM and SGLang add (top_k, regex,
            continue_final_message, ...); without it their use is refused.
        timeout_s: deadline of every call.
        transport: for tests.
    """

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        extensions: bool = False,
        timeout_s: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._model = model_name
        self._extensions = extensions
        key = api_key or os.environ.get("OPENAI_API_KEY", "")
        self._url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL
        options: dict[str, Any] = {
            "base_url": self._url,
            "headers": {"authorization": f"Bearer {key}"} if key else None,
            "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S),
            "transport": transport,
            "verify": ssl.create_default_context(),
        }
        self._http = httpx.Client(**options)
        self._streams = httpx.Client(**options, limits=STREAM_LIMITS)

    def generate(self, at: Position, gen: Gen, listener: Listener) -> Answer:
        """See `Backend`."""
        path, body = self._request(at.script, given(cast(Options, gen.options)))
        line = Line()
        listener.began(line.cut)
        answers = [_Choice() for _ in range(gen.options.get("n", 1))]
        usage: Mapping[str, Any] = {}
        for event in self._events(path, body, line):
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                text = answers[choice["index"]].take(choice)
                listener.said(text if choice["index"] == 0 else "")
        texts = ["".join(answer.texts) for answer in answers]
        position = Position(at.script.append(texts[0]))
        return Answer(texts, [answer.meta(usage) for answer in answers], position)

    def select(self, at: Position, select: Select) -> Answer:
        """See `Backend`."""
        if at.script.is_chat:
            raise Unsupported("select needs plain text here: the chat API cannot score a given text")
        if select.method.needs_unconditional:
            raise Unsupported(f"{select.method.name} needs token ids, which this API does not take")
        if not at.script.text or "" in select.choices:
            raise InvalidRequest("select needs a prompt, and choices that are not empty", param="choices")
        echoes = [self._echo(at.script.text + choice) for choice in select.choices]
        scored = _scored(len(at.script.text), select.choices, echoes)
        pick = select.method.pick(scored)
        text = select.choices[pick.index]
        return Answer([text], [dict(pick.meta)], Position(at.script.append(text)))

    def close(self) -> None:
        """See `Backend`."""
        self._http.close()
        self._streams.close()

    def _request(self, script: Script, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        body = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        body |= {name: options[name] for name in _STANDARD if name in options}
        if "stop" in options:
            body["stop"] = stops(options)
        if "logit_bias" in options:
            body["logit_bias"] = {str(token): bias for token, bias in options["logit_bias"].items()}
        body |= self._extended({name: options[name] for name in _EXTENSIONS if name in options})
        if not script.is_chat:
            if "json_schema" in options:
                body |= self._extended({"json_schema": schema_text(options["json_schema"])})
            logprobs = {"logprobs": options["logprobs"]} if "logprobs" in options else {}
            return "/completions", {**body, "prompt": script.text, **logprobs}
        if "json_schema" in options:
            body["response_format"] = _response_format(options["json_schema"])
        if "logprobs" in options:
            body |= {"logprobs": True, "top_logprobs": options["logprobs"]}
        chat = script.chat()
        if chat.continue_final_message:
            body |= self._extended({"continue_final_message": True, "add_generation_prompt": False})
        return "/chat/completions", {**body, "messages": [dict(message) for message in chat.messages]}

    def _extended(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields and not self._extensions:
            name = next(iter(fields))
            raise Unsupported(f"{name} is no field of OpenAI's API; OpenAI(extensions=True) sends it", param=name)
        return fields

    def _events(self, path: str, body: Mapping[str, Any], line: Line) -> Iterator[dict[str, Any]]:
        try:
            with self._streams.stream("POST", path, json=body, extensions={"trace": line.trace}) as response:
                if response.status_code != 200:
                    response.read()
                    raise status_error(response)
                for text in response.iter_lines():
                    event = event_of(text)
                    if event == {}:
                        return
                    if event is not None:
                        yield event
        except httpx.HTTPError as error:
            raise line.error() or transport_error(error, self._url) from error
        raise PeerLost("the stream was cut")

    def _echo(self, text: str) -> Mapping[str, Any]:
        """Logprobs of all tokens of a text; one more token is generated, since not all servers take 0."""
        body = {"model": self._model, "prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        try:
            response = self._http.post("/completions", json=body)
        except httpx.HTTPError as error:
            raise transport_error(error, self._url) from error
        if response.status_code != 200:
            raise status_error(response)
        logprobs: Mapping[str, Any] | None = response.json()["choices"][0].get("logprobs")
        if logprobs is None or not logprobs.get("text_offset"):
            raise Unsupported("this server does not echo the prompt's logprobs: select is not available")
        return logprobs


class _Choice:
    """One choice so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._finish: str | None = None
        self._logprobs: list[Any] = []

    def take(self, choice: Mapping[str, Any]) -> str:
        """Account for a piece; returns its text."""
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        self.texts.append(text)
        self._finish = choice.get("finish_reason") or self._finish
        if choice.get("logprobs"):
            self._logprobs.append(choice["logprobs"])
        return text

    def meta(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of it."""
        details = usage.get("prompt_tokens_details") or {}
        meta = {
            "finish_reason": {"type": self._finish},
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "cached_tokens": details.get("cached_tokens"),
        }
        return {**meta, "logprobs": self._logprobs} if self._logprobs else meta


def _response_format(schema: Any) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": json.loads(schema_text(schema))},
    }


def _scored(prompt_chars: int, choices: Sequence[str], echoes: Sequence[Mapping[str, Any]]) -> list[Scored]:
    """Score from the last character before or at the prompt's end where all texts have a token's border."""
    borders = [{offset for offset in echo["text_offset"] if offset <= prompt_chars} for echo in echoes]
    start = max(set.intersection(*borders))
    ends = [prompt_chars + len(choice) for choice in choices]
    return [Scored(choice, _tokens(echo, start, end)) for choice, echo, end in zip(choices, echoes, ends, strict=True)]


def _tokens(echo: Mapping[str, Any], start: int, end: int) -> tuple[TokenLogprob, ...]:
    rows = zip(echo["tokens"], echo["token_logprobs"], echo["text_offset"], strict=True)
    return tuple(
        TokenLogprob(0, 0.0 if logprob is None else logprob, token.encode())
        for token, logprob, offset in rows
        if start <= offset < end
    )
