"""A router without a cluster: `pando.v1.Inference` over a byte tokenizer and scripted text.

It keeps the contract of the protos (validation with OpenAI names, n choices merged, hold-back of stop strings, usage)
so that front doors can be tested against it, and has knobs to pause, break or abort a stream.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from common.base.errors import InvalidRequest, ModelNotFound, Overloaded, PandoError
from pando.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.support.fake_grammar import sample

MODEL = "fake-model"
EOS = 256
EOS_TEXT = b"<|end|>"
VOCAB = 257
BLOCK = 16
MAX_MODEL_LEN = 2048
ROLES = ("system", "developer", "user", "assistant", "tool")
WORDS = ("alpha ", "beta ", "日本 ", "😀", "don't ", "x=1; ", "é ", "\n")


def token_bytes(token_id: int) -> bytes:
    """Exact bytes of a token."""
    return EOS_TEXT if token_id == EOS else bytes([token_id])


def decode(ids: list[int]) -> str:
    """Text of complete characters; a torn tail shows as U+FFFD."""
    return b"".join(token_bytes(i) for i in ids).decode(errors="replace")


@dataclass
class Knobs:
    """What a test breaks. `pause_at` and `fail_at` count frames of a request.

    A paused request waits for `resume`, or for its cancellation.
    """

    pause_at: int | None = None
    fail_at: int | None = None
    error: PandoError | None = None
    cut_at: int | None = None
    abort_at: int | None = None
    resume: asyncio.Event = field(default_factory=asyncio.Event)


class FakeInference(inference_pb2_grpc.InferenceServicer):
    """See the module. `requests` keeps what came; `num_active`, `num_paused` and `num_cancelled` count
    Generate calls."""

    def __init__(self) -> None:
        self.knobs = Knobs()
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.num_active = 0
        self.max_active = 0
        self.num_cancelled = 0
        self.num_paused = 0
        self._seen: set[tuple[int, ...]] = set()
        self._num_refused: Counter[str] = Counter()
        self._changed = threading.Condition()

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 30.0) -> bool:
        """From another thread: wait until it holds after a call began, paused or ended; False when time is up."""
        with self._changed:
            return self._changed.wait_for(condition, limit_s)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.requests.append(request)
        self._fail_first(request.text)
        self.num_active += 1
        self.max_active = max(self.max_active, self.num_active)
        self._tell()
        try:
            for number, frame in enumerate(self._frames(request)):
                await self._misbehave(number, frame)
                if number == self.knobs.cut_at:
                    return
                yield frame
                await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        finally:
            self.num_active -= 1
            self._tell()

    def _fail_first(self, text: str) -> None:
        """A prompt `Fail first: N ...` is refused the first N times."""
        if text.startswith("Fail first: "):
            self._num_refused[text] += 1
            if self._num_refused[text] <= int(text.split()[2]):
                raise Overloaded("full, as you wished", retry_after_s=0.5)

    async def _misbehave(self, number: int, frame: inference_pb2.GenerateResponse) -> None:
        if number == self.knobs.pause_at:
            self.num_paused += 1
            self._tell()
            await self.knobs.resume.wait()
        if number == self.knobs.fail_at and self.knobs.error is not None:
            raise self.knobs.error
        if number == self.knobs.abort_at:
            frame.finish_reason = types_pb2.FINISH_REASON_ABORT

    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Any) -> inference_pb2.TokenizeResponse:
        _check_model(request.model)
        text = render(request.chat) if request.WhichOneof("prompt") == "chat" else request.text
        ids = list(text.encode())
        return inference_pb2.TokenizeResponse(
            token_ids=ids, tokens=[token_bytes(i) for i in ids], text=text, max_model_len=MAX_MODEL_LEN
        )

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Any
    ) -> inference_pb2.DetokenizeResponse:
        _check_model(request.model)
        _check_vocab(request.token_ids, "prompt")
        ids = [i for i in request.token_ids if not (request.skip_special_tokens and i == EOS)]
        return inference_pb2.DetokenizeResponse(text=decode(ids))

    async def GetModel(self, request: inference_pb2.GetModelRequest, context: Any) -> inference_pb2.GetModelResponse:
        _check_model(request.model)
        return inference_pb2.GetModelResponse(
            name=MODEL, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB, created_unix_s=1_700_000_000
        )

    def _frames(self, request: inference_pb2.GenerateRequest) -> Iterator[inference_pb2.GenerateResponse]:
        prompt = _prompt_ids(request)
        _validate(request, len(prompt))
        cached = self._match(prompt)
        numbers = range(request.first_choice, request.first_choice + max(request.n, 1))
        choices = [_Choice(request, prompt, number, cached).frames() for number in numbers]
        while choices:
            for frames in list(choices):
                frame = next(frames, None)
                if frame is None:
                    choices.remove(frames)
                else:
                    yield frame

    def _match(self, prompt: list[int]) -> int:
        blocks = [tuple(prompt[: end + BLOCK]) for end in range(0, len(prompt) - BLOCK, BLOCK)]
        hits = 0
        while hits < len(blocks) and blocks[hits] in self._seen:
            hits += 1
        self._seen.update(blocks)
        return hits * BLOCK


class _Choice:
    """One choice of one request, drawn in advance and then told frame by frame."""

    def __init__(self, request: inference_pb2.GenerateRequest, prompt: list[int], choice: int, cached: int) -> None:
        self._request = request
        self._prompt = prompt
        self._choice = choice
        self._cached = cached
        sampling = request.sampling
        room = MAX_MODEL_LEN - len(prompt)
        limit = min(sampling.max_tokens if sampling.HasField("max_tokens") else room, room)
        self._ids, self._finish, self._stop = _draw(self._source(), sampling, limit)

    def _source(self) -> Iterator[int]:
        text = decode(self._prompt)
        if self._request.sampling.grammar.WhichOneof("kind") is not None:
            yield from sample(self._request.sampling.grammar).encode()
            yield EOS
        if "Repeat exactly: " in text:
            yield from text.split("Repeat exactly: ")[1].split("\n")[0].encode()
            yield EOS
        sampling = self._request.sampling
        key = f"{text}|{sampling.seed}|{self._choice}"
        greedy = sampling.HasField("temperature") and sampling.temperature == 0
        draws = random.Random(text if greedy else key)
        while True:
            yield from draws.choice(WORDS).encode()

    def frames(self) -> Iterator[inference_pb2.GenerateResponse]:
        sampling = self._request.sampling
        final = self._final_text()
        num_given = len(self._request.output_token_ids)
        sent = 0
        for index, token_id in enumerate(self._ids):
            last = index == len(self._ids) - 1
            end = len(final) if last else min(_safe_length(self._ids[: index + 1], list(sampling.stop)), len(final))
            frame = inference_pb2.GenerateResponse(
                request_id=self._request.request_id,
                choice=self._choice,
                token_index=index,
                token_ids=[token_id],
                text_offset=sent,
                text=final[sent : max(end, sent)],
                usage=types_pb2.Usage(prompt_tokens=len(self._prompt), completion_tokens=index + 1),
            )
            sent = max(end, sent)
            if index < num_given:
                continue
            if sampling.HasField("logprobs"):
                frame.logprobs.append(_logprob(token_id, index, sampling.logprobs))
            if index == num_given:
                frame.prompt.CopyFrom(self._prompt_info())
            if last:
                self._close(frame)
            yield frame

    def _final_text(self) -> str:
        text = decode([i for i in self._ids if i != EOS]).rstrip("\ufffd")
        return text.split(self._stop)[0] if self._stop and self._finish == types_pb2.FINISH_REASON_STOP else text

    def _prompt_info(self) -> inference_pb2.PromptInfo:
        info = inference_pb2.PromptInfo(num_tokens=len(self._prompt))
        sampling = self._request.sampling
        if self._request.return_prompt_token_ids:
            info.token_ids.extend(self._prompt)
        if sampling.HasField("prompt_logprobs"):
            first = max(sampling.prompt_logprobs_start, 1)
            info.logprobs.extend(
                _logprob(self._prompt[position], position, sampling.prompt_logprobs)
                for position in range(first, len(self._prompt))
            )
        return info

    def _close(self, frame: inference_pb2.GenerateResponse) -> None:
        frame.finish_reason = self._finish
        frame.stop_reason = self._stop
        frame.usage.cached_tokens.l1 = self._cached
        frame.usage.prefill_s = 0.25
        frame.usage.decode_s = 0.5
        frame.usage.prefill_worker = "prefill-0"
        frame.usage.decode_worker = "decode-0"
        frame.usage.transfer_bytes = 1024


def _draw(source: Iterator[int], sampling: types_pb2.SamplingParams, limit: int) -> tuple[list[int], Any, str]:
    ids: list[int] = []
    for token_id in source:
        ids.append(token_id)
        if token_id == EOS:
            return ids, types_pb2.FINISH_REASON_STOP, EOS_TEXT.decode()
        text = b"".join(token_bytes(i) for i in ids)
        stop = next((stop for stop in sampling.stop if text.endswith(stop.encode())), "")
        if stop:
            return ids, types_pb2.FINISH_REASON_STOP, stop
        if len(ids) >= limit:
            break
    return ids, types_pb2.FINISH_REASON_LENGTH, ""


def _safe_length(ids: list[int], stops: list[str]) -> int:
    text = decode(ids).rstrip("\ufffd")
    held = max((k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k])), default=0)
    return len(text) - held


def _logprob(token_id: int, position: int, num_top: int) -> types_pb2.TokenLogprob:
    best = (token_id + position) % 256
    ids = [best, *((best + step) % 256 for step in range(1, 6))][:num_top]
    return types_pb2.TokenLogprob(
        token_id=token_id,
        logprob=-0.5 - position / 100,
        rank=1,
        token=token_bytes(token_id),
        top=[types_pb2.TopLogprob(token_id=i, logprob=-0.25 * n, token=token_bytes(i)) for n, i in enumerate(ids, 1)],
    )


def render(chat: types_pb2.ChatPrompt) -> str:
    """The chat template."""
    for index, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidRequest(f"role {message.role!r} is not known to the template", param=f"messages[{index}].role")
    lines = [f"{message.role}: {message.content}{message.tool_calls_json}\n" for message in chat.messages]
    return "".join(lines).removesuffix("\n") if chat.continue_final_message else "".join(lines) + "assistant: "


def _prompt_ids(request: inference_pb2.GenerateRequest) -> list[int]:
    kind = request.WhichOneof("prompt")
    if kind == "chat":
        return list(render(request.chat).encode())
    return list(request.text.encode()) if kind == "text" else list(request.token_ids.ids)


def _check_model(name: str) -> None:
    if name not in ("", MODEL):
        raise ModelNotFound(f"the model {name!r} does not exist", param="model")


def _check_vocab(ids: Any, param: str) -> None:
    if any(i >= VOCAB for i in ids):
        raise InvalidRequest(f"{param}: a token id is out of the vocabulary", param=param)


def _validate(request: inference_pb2.GenerateRequest, num_prompt: int) -> None:
    sampling = request.sampling
    _check_model(request.model)
    _check_vocab(request.token_ids.ids, "prompt")
    _check_vocab(sampling.stop_token_ids, "stop_token_ids")
    _check_vocab(sampling.logit_bias, "logit_bias")
    _check_sampling(sampling)
    if len(request.session_id) > 128:
        raise InvalidRequest("session_id: at most 128 characters", param="session_id")
    if request.n > 128:
        raise InvalidRequest("n: at most 128", param="n")
    if num_prompt == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if num_prompt >= MAX_MODEL_LEN:
        raise InvalidRequest(
            f"the prompt has {num_prompt} tokens; the context is {MAX_MODEL_LEN}",
            reason="context_length_exceeded",
            param="prompt",
        )


def _check_sampling(sampling: types_pb2.SamplingParams) -> None:
    if len(sampling.stop) > 4:
        raise InvalidRequest("stop: at most 4 strings", param="stop")
    if sampling.HasField("max_tokens") and sampling.max_tokens == 0:
        raise InvalidRequest("max_tokens: must be at least 1", param="max_tokens")
    if sampling.HasField("temperature") and not 0 <= sampling.temperature <= 2:
        raise InvalidRequest("temperature: must be in [0, 2]", param="temperature")
    if sampling.HasField("logprobs") and sampling.logprobs > 20:
        raise InvalidRequest("logprobs: at most 20", param="logprobs")
