"""POST /v1/completions: prompts in, chunks or a document out, with the prompt echoed on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.base.errors import PandoError
from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse, TokenizeRequest
from services.gateway.client import RouterClient
from services.gateway.errors import error_body
from services.gateway.generation import Generation, Head, request_ids
from services.gateway.grammar_fields import grammar_names
from services.gateway.logprobs import LEAST, CompletionLogprobs, finite, joined, prompt_logprobs
from services.gateway.openai_types import CompletionRequest
from services.gateway.prompts import Prompt, put
from services.gateway.sampling import affinity_name, to_sampling
from services.gateway.sse import DONE, event
from services.gateway.transcript import Slot, Transcript
from services.gateway.usage import final_usage, running_usage


@dataclass(slots=True, frozen=True)
class Echo:
    """A prompt to repeat: its text and, where logprobs were asked for, the bytes of its first token, which has none."""

    text: str
    first: bytes = b""


async def fetch_echoes(client: RouterClient, body: CompletionRequest, prompts: list[Prompt]) -> list[Echo]:
    """What to echo, per prompt; nothing without `echo`. Raises PandoError."""
    if not body.echo:
        return []
    return [await _fetch_echo(client, body, prompt) for prompt in prompts]


async def _fetch_echo(client: RouterClient, body: CompletionRequest, prompt: Prompt) -> Echo:
    model = body.model or ""
    if not isinstance(prompt, str):
        text = await client.detokenize(model, prompt, skip_special_tokens=False)
        if body.logprobs is None:
            return Echo(text)
        return Echo(text, (await client.detokenize(model, prompt[:1], skip_special_tokens=False)).encode())
    if body.logprobs is None:
        return Echo(prompt)
    tokens = await client.tokenize(TokenizeRequest(model=model, text=prompt, add_special_tokens=True))
    return Echo(prompt, tokens.tokens[0] if tokens.tokens else b"")


def to_generation(body: CompletionRequest, prompts: list[Prompt], echoes: list[Echo], head: Head) -> Generation:
    """What to run for a checked body."""
    transcript = Transcript(len(prompts), body.num_drawn, keep=not body.stream)
    ids = request_ids(head.request_id, len(prompts))
    return Generation(
        requests=[_request(body, prompt, request_id) for prompt, request_id in zip(prompts, ids, strict=True)],
        transcript=transcript,
        writer=CompletionWriter(body, head, transcript, echoes),
        stream=bool(body.stream),
        timeout_s=body.timeout_s,
        names=_names(body),
    )


def _names(body: CompletionRequest) -> dict[str, str]:
    names = {**affinity_name(body), **grammar_names(body)}
    if body.prompt_logprobs is None:
        names["prompt_logprobs"] = "logprobs"
    if body.num_drawn > body.num_choices:
        names["n"] = "best_of"
    return names


def _request(body: CompletionRequest, prompt: Prompt, request_id: str) -> GenerateRequest:
    ranked = 0 if body.num_drawn > body.num_choices else None
    logprobs = ranked if body.logprobs is None else body.logprobs
    sampling = to_sampling(body, max_tokens=_max_tokens(body), logprobs=logprobs)
    if (prompt_logprobs := _prompt_logprobs(body)) is not None:
        sampling.prompt_logprobs = prompt_logprobs
    request = GenerateRequest(
        request_id=request_id,
        model=body.model or "",
        sampling=sampling,
        n=body.num_drawn,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        session_id=body.session_id or body.prompt_cache_key or "",
        return_prompt_token_ids=bool(body.return_token_ids),
    )
    put(request, prompt)
    return request


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """Alternatives per prompt token: what echo needs, and what was asked for."""
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in wanted if number is not None), default=None)


def _max_tokens(body: CompletionRequest) -> int | None:
    """OpenAI's default is 16. Scoring a prompt (echo, max_tokens 0) costs one token, which is not shown."""
    if body.max_tokens is None:
        return 16
    return 1 if _only_echo(body) else body.max_tokens


def _only_echo(body: CompletionRequest) -> bool:
    return bool(body.echo) and body.max_tokens == 0


class CompletionWriter:
    """Chunks and documents of one completions request."""

    def __init__(self, body: CompletionRequest, head: Head, transcript: Transcript, echoes: list[Echo]) -> None:
        self._body = body
        self._transcript = transcript
        self._echoes = echoes
        self._head = head.named("cmpl-", "text_completion")
        self._logprobs = [CompletionLogprobs() for _ in transcript.slots]

    def events(self, frame: GenerateResponse, slot: Slot) -> bytes:
        """One chunk, unless there is nothing to say yet; the first one begins with the echo."""
        piece = self._piece(frame, slot, first=slot.num_frames == 1)
        choice = self._choice(slot, piece, slot.finish)
        if not (choice["text"] or choice["logprobs"] or slot.finish or self._body.return_token_ids):
            return b""
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._body.include_usage:
            chunk["usage"] = running_usage(self._transcript) if self._body.continuous_usage else None
        return event(chunk)

    def tail(self) -> bytes:
        """The usage chunk, if asked for, and the end."""
        if not self._body.include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": final_usage(self._transcript)}) + DONE

    def failed(self, error: PandoError) -> bytes:
        """The error, and the end."""
        return event(error_body(error)) + DONE

    def document(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._full_choice(slot) for slot in self._told()]
        numbered = [{**choice, "index": index} for index, choice in enumerate(choices)]
        return {**self._head, "choices": numbered, "usage": final_usage(self._transcript)}

    def _told(self) -> Iterator[Slot]:
        """The best n choices of each prompt, all of them where no more were drawn."""
        num_told = self._body.num_choices
        for prompt in range(self._transcript.num_prompts):
            slots = self._transcript.of_prompt(prompt)
            yield from slots if len(slots) == num_told else sorted(slots, key=_mean_logprob, reverse=True)[:num_told]

    def _full_choice(self, slot: Slot) -> dict[str, Any]:
        pieces = [self._piece(frame, slot, first=index == 0) for index, frame in enumerate(slot.frames)]
        whole = _Piece(
            text="".join(piece.text for piece in pieces),
            logprobs=[entry for piece in pieces for entry in piece.logprobs],
            token_ids=[token_id for piece in pieces for token_id in piece.token_ids],
            prompt_token_ids=pieces[0].prompt_token_ids,
        )
        choice = self._choice(slot, whole, slot.finish)
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(slot.prompt)
        return choice

    def _piece(self, frame: GenerateResponse, slot: Slot, *, first: bool) -> _Piece:
        piece = _Piece("", [], [], list(frame.prompt.token_ids) if first else None)
        if first and self._echoes:
            self._add_echo(piece, frame, slot)
        if not _only_echo(self._body):
            piece.text += frame.text
            piece.token_ids.extend(frame.token_ids)
            if self._body.logprobs is not None and frame.logprobs:
                piece.logprobs.append(self._logprobs[slot.index].piece(frame.logprobs))
        return piece

    def _add_echo(self, piece: _Piece, frame: GenerateResponse, slot: Slot) -> None:
        echo = self._echoes[slot.index // self._transcript.n]
        piece.text = echo.text
        if self._body.logprobs is not None:
            builder = self._logprobs[slot.index]
            piece.logprobs.append(builder.piece(frame.prompt.logprobs, echo.first))
            builder.start_at(len(echo.text))

    def _choice(self, slot: Slot, piece: _Piece, finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": slot.index,
            "text": piece.text,
            "logprobs": joined(piece.logprobs) if piece.logprobs else None,
            "finish_reason": finish,
        }
        if finish:
            choice["stop_reason"] = slot.stop_reason or None
        if self._body.return_token_ids:
            choice["token_ids"] = piece.token_ids
            if piece.prompt_token_ids is not None:
                choice["prompt_token_ids"] = piece.prompt_token_ids
        return choice


def _mean_logprob(slot: Slot) -> float:
    logprobs = [finite(entry.logprob) for entry in slot.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else LEAST


@dataclass(slots=True)
class _Piece:
    """Part of a choice: text, logprobs, ids; the prompt's ids in the first one."""

    text: str
    logprobs: list[dict[str, Any]]
    token_ids: list[int]
    prompt_token_ids: list[int] | None
