"""POST /generate: the native door, in the shape that SGLang's callers know. Pure.

A single prompt with n=1 is answered with an object, anything else with a list in the order prompt * n + choice.
Streamed events carry the text and ids so far, not deltas.
"""

from __future__ import annotations

from typing import Any

from common.base.clock import Clock
from common.base.errors import InvalidRequest, PandoError
from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse
from pando.v1.types_pb2 import SamplingParams, TokenLogprob
from services.gateway.errors import error_body
from services.gateway.generation import Generation, request_ids
from services.gateway.grammar_fields import constrain, grammar_names
from services.gateway.logprobs import finite, token_string
from services.gateway.native_types import GenerateBody
from services.gateway.prompts import Prompt, put
from services.gateway.sampling import bias_of
from services.gateway.sse import DONE, event
from services.gateway.token_fields import U32_MAX
from services.gateway.transcript import Slot, Transcript
from services.gateway.usage import num_cached

DEFAULT_MAX_NEW_TOKENS = 128

_SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "no_stop_trim": "include_stop_str",
}
"""Field here -> field of the cluster's SamplingParams."""

_PARAM_NAMES = {
    ours: f"sampling_params.{native}"
    for native, ours in (
        *_SAMPLING_NAMES.items(),
        *((name, name) for name in ("top_k", "stop", "stop_token_ids", "logit_bias", "seed", "n")),
        ("max_new_tokens", "max_tokens"),
    )
} | {"logprobs": "top_logprobs_num", "prompt_logprobs": "top_logprobs_num", "request_id": "rid"}


def to_generation(
    body: GenerateBody, prompts: list[Prompt], request_id: str, *, clock: Clock, started_s: float
) -> Generation:
    """What to run for a checked body. `started_s` is when the request came, by `clock`."""
    transcript = Transcript(len(prompts), body.num_choices, keep=True)
    constraint = {ours: f"sampling_params.{name}" for ours, name in grammar_names(body.sampling).items()}
    ids = request_ids(body.rid or request_id, len(prompts))
    return Generation(
        requests=[_request(body, prompt, call_id) for prompt, call_id in zip(prompts, ids, strict=True)],
        transcript=transcript,
        writer=NativeWriter(body, ids, transcript, clock, started_s),
        stream=bool(body.stream),
        timeout_s=body.timeout_s,
        names={**_PARAM_NAMES, "prompt": "text" if body.text is not None else "input_ids", **constraint},
    )


def _request(body: GenerateBody, prompt: Prompt, request_id: str) -> GenerateRequest:
    request = GenerateRequest(
        request_id=request_id,
        model=body.model or "",
        sampling=_sampling(body),
        n=body.num_choices,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        session_id=body.session_id or "",
        return_prompt_token_ids=bool(body.return_logprob),
    )
    put(request, prompt)
    return request


def _sampling(body: GenerateBody) -> SamplingParams:
    fields = body.sampling
    sampling = SamplingParams(
        max_tokens=DEFAULT_MAX_NEW_TOKENS if fields.max_new_tokens is None else fields.max_new_tokens,
        top_k=max(fields.top_k or 0, 0),
        stop=[fields.stop] if isinstance(fields.stop, str) else fields.stop,
        stop_token_ids=fields.stop_token_ids,
        logit_bias=bias_of(fields.logit_bias, "sampling_params.logit_bias"),
    )
    for native, ours in _SAMPLING_NAMES.items():
        value = getattr(fields, native)
        if value is not None:
            setattr(sampling, ours, value)
    seed = fields.seed if fields.sampling_seed is None else fields.sampling_seed
    if seed is not None:
        sampling.seed = seed % 2**64
    if body.return_logprob:
        sampling.logprobs = body.top_logprobs_num or 0
        if body.logprob_start_len is not None and body.logprob_start_len >= 0:
            sampling.prompt_logprobs = body.top_logprobs_num or 0
            sampling.prompt_logprobs_start = min(body.logprob_start_len, U32_MAX)
    try:
        constrain(sampling, fields)
    except InvalidRequest as error:
        error.param = f"sampling_params.{error.param}"
        raise
    return sampling


class NativeWriter:
    """Events and documents of one native request; `ids` are the calls' ids, one per prompt."""

    def __init__(
        self, body: GenerateBody, ids: list[str], transcript: Transcript, clock: Clock, started_s: float
    ) -> None:
        self._body = body
        self._ids = ids
        self._transcript = transcript
        self._clock = clock
        self._started_s = started_s
        self._single = len(transcript.slots) == 1

    def events(self, frame: GenerateResponse, slot: Slot) -> bytes:
        """The choice so far."""
        if not (frame.text or frame.token_ids or slot.finish):
            return b""
        answer = self._answer(slot)
        return event(answer if self._single else {"index": slot.index, **answer})

    def tail(self) -> bytes:
        """The end: the last event of each choice has its meta_info."""
        return DONE

    def failed(self, error: PandoError) -> bytes:
        """The error, and the end."""
        return event(error_body(error)) + DONE

    def document(self) -> Any:
        """One object, or a list."""
        answers = [self._answer(slot) for slot in self._transcript.slots]
        return answers[0] if self._single else answers

    def _answer(self, slot: Slot) -> dict[str, Any]:
        return {"text": slot.text, "output_ids": slot.token_ids, "meta_info": self._meta(slot)}

    def _meta(self, slot: Slot) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self._ids[slot.index // self._transcript.n],
            "finish_reason": _finish(slot),
            "prompt_tokens": slot.num_prompt_tokens,
            "completion_tokens": slot.num_tokens,
            "cached_tokens": 0,
            "e2e_latency": self._clock() - self._started_s,
        }
        if slot.usage is not None:
            meta["cached_tokens"] = num_cached(slot.usage.cached_tokens)
            meta["queue_time"] = slot.usage.queue_s
            meta["prefill_time"] = slot.usage.prefill_s
            meta["decode_time"] = slot.usage.decode_s
        if self._body.return_logprob:
            meta.update(self._logprobs(slot))
        return meta

    def _logprobs(self, slot: Slot) -> dict[str, Any]:
        output = {
            "output_token_logprobs": [_triple(entry) for entry in slot.logprobs],
            "output_top_logprobs": [_top(entry) for entry in slot.logprobs],
        }
        prompt = slot.prompt
        if not prompt.logprobs:
            return output
        whole = not self._body.logprob_start_len and prompt.token_ids
        first: list[Any] = [[None, prompt.token_ids[0], None]] if whole else []
        inputs = first + [_triple(entry) for entry in prompt.logprobs]
        tops: list[Any] = [None] * len(first) + [_top(entry) for entry in prompt.logprobs]
        return {"input_token_logprobs": inputs, "input_top_logprobs": tops, **output}


def _finish(slot: Slot) -> dict[str, Any] | None:
    if slot.finish is None:
        return None
    if slot.finish == "length":
        return {"type": "length", "length": slot.num_tokens}
    return {"type": "stop", "matched": slot.stop_reason or None}


def _triple(entry: TokenLogprob) -> list[Any]:
    return [finite(entry.logprob), entry.token_id, token_string(entry.token)]


def _top(entry: TokenLogprob) -> list[list[Any]]:
    return [[finite(top.logprob), top.token_id, token_string(top.token)] for top in entry.top]
