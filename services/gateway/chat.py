"""POST /v1/chat/completions: messages in, chunks or a document out. Pure."""

from __future__ import annotations

from typing import Any

from pando.v1.inference_pb2 import GenerateRequest, GenerateResponse
from services.gateway.generation import Generation, Head
from services.gateway.logprobs import chat_logprobs
from services.gateway.openai_types import ChatRequest
from services.gateway.prompts import chat_prompt
from services.gateway.sampling import to_sampling
from services.gateway.sse import event
from services.gateway.transcript import Slot, Transcript
from services.gateway.usage import final_usage, running_usage


def to_generation(body: ChatRequest, head: Head) -> Generation:
    """What to run for a checked body. Raises InvalidRequest on content that is not text."""
    transcript = Transcript(1, body.num_choices, keep=not body.stream)
    return Generation(
        requests=[_request(body, head)],
        transcript=transcript,
        writer=ChatWriter(body, head, transcript),
        stream=bool(body.stream),
        timeout_s=body.timeout_s,
        names=_names(body),
    )


def _names(body: ChatRequest) -> dict[str, str]:
    names = {"prompt": "messages", "logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


def _request(body: ChatRequest, head: Head) -> GenerateRequest:
    newer = body.max_completion_tokens
    return GenerateRequest(
        request_id=head.request_id,
        model=body.model or "",
        chat=chat_prompt(
            body.messages,
            continue_final_message=bool(body.continue_final_message),
            template_kwargs=body.chat_template_kwargs,
        ),
        sampling=to_sampling(
            body,
            max_tokens=body.max_tokens if newer is None else newer,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ),
        n=body.num_choices,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        session_id=body.session_id or body.prompt_cache_key or "",
        return_prompt_token_ids=bool(body.return_token_ids),
    )


class ChatWriter:
    """Chunks and documents of one chat request."""

    def __init__(self, body: ChatRequest, head: Head, transcript: Transcript) -> None:
        self._body = body
        self._transcript = transcript
        self._chunk = head.named("chatcmpl-", "chat.completion.chunk")
        self._document = head.named("chatcmpl-", "chat.completion")

    def events(self, frame: GenerateResponse, slot: Slot) -> bytes:
        """A role chunk before a choice's first frame, then one chunk unless there is nothing to say yet."""
        role = self._role(frame, slot) if slot.num_frames == 1 else b""
        silent = not (frame.text or frame.logprobs or slot.finish or self._body.return_token_ids)
        if silent:
            return role
        choice = self._choice(slot, {"content": frame.text} if frame.text else {}, slot.finish)
        if frame.logprobs:
            choice["logprobs"] = chat_logprobs(frame.logprobs)
        if slot.finish:
            choice["stop_reason"] = slot.stop_reason or None
        if self._body.return_token_ids:
            choice["token_ids"] = list(frame.token_ids)
        return role + self._event([choice], running=True)

    def tail(self) -> bytes:
        """The usage chunk, if asked for."""
        if not self._body.include_usage:
            return b""
        return event({**self._chunk, "choices": [], "usage": final_usage(self._transcript)})

    def document(self) -> dict[str, Any]:
        """The whole answer."""
        slots = self._transcript.slots
        document = {
            **self._document,
            "choices": [self._full_choice(slot) for slot in slots],
            "usage": final_usage(self._transcript),
        }
        if self._body.return_token_ids:
            document["prompt_token_ids"] = list(slots[0].prompt.token_ids)
        return document

    def _role(self, frame: GenerateResponse, slot: Slot) -> bytes:
        choice = self._choice(slot, {"role": "assistant", "content": ""}, None)
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(frame.prompt.token_ids)
        return self._event([choice], running=False)

    @staticmethod
    def _choice(slot: Slot, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": slot.index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _event(self, choices: list[dict[str, Any]], *, running: bool) -> bytes:
        chunk: dict[str, Any] = {**self._chunk, "choices": choices}
        if self._body.include_usage:
            chunk["usage"] = running_usage(self._transcript) if running and self._body.continuous_usage else None
        return event(chunk)

    def _full_choice(self, slot: Slot) -> dict[str, Any]:
        choice = {
            "index": slot.index,
            "message": {"role": "assistant", "content": slot.text, "refusal": None},
            "logprobs": chat_logprobs(slot.logprobs) if self._body.logprobs else None,
            "finish_reason": slot.finish,
            "stop_reason": slot.stop_reason or None,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = slot.token_ids
        return choice
