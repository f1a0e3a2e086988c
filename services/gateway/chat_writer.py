"""Chunks and documents of POST /v1/chat/completions. Pure: frames in, JSON out."""

from __future__ import annotations

from typing import Any

from common.base.errors import PandoError
from pando.v1.inference_pb2 import GenerateResponse
from services.gateway.errors import error_body
from services.gateway.generation import Head
from services.gateway.logprobs import chat_logprobs, prompt_logprobs
from services.gateway.openai_types import ChatRequest
from services.gateway.sse import DONE, event
from services.gateway.tool_parser import CallArguments, CallStart, Part, TextPart, ToolParser
from services.gateway.tools import END, Syntax
from services.gateway.transcript import Slot, Transcript
from services.gateway.usage import final_usage, running_usage

Delta = dict[str, Any]


class ChatWriter:
    """Chunks and documents of one chat request; `syntax` tells how calls are told from text, None: there are none."""

    def __init__(self, body: ChatRequest, head: Head, transcript: Transcript, syntax: Syntax | None = None) -> None:
        self._body = body
        self._transcript = transcript
        self._parsers = [ToolParser(syntax) for _ in transcript.slots] if syntax else []
        self._call_prefix = "call_" + head.request_id.removeprefix("req-")
        self._chunk = head.named("chatcmpl-", "chat.completion.chunk")
        self._document = head.named("chatcmpl-", "chat.completion")

    def events(self, frame: GenerateResponse, slot: Slot) -> bytes:
        """A role chunk before a choice's first frame, then a chunk for each thing there is to say."""
        role = self._role(frame, slot) if slot.num_frames == 1 else b""
        deltas = self._deltas(frame.text, slot)
        if not deltas:
            silent = not (frame.logprobs or slot.finish or self._body.return_token_ids)
            return role if silent else role + self._last(frame, slot, {})
        more = [self._event([self._choice(slot, delta)], running=True) for delta in deltas[:-1]]
        return role + b"".join(more) + self._last(frame, slot, deltas[-1])

    def tail(self) -> bytes:
        """The usage chunk, if asked for, and the end."""
        if not self._body.include_usage:
            return DONE
        return event({**self._chunk, "choices": [], "usage": final_usage(self._transcript)}) + DONE

    def failed(self, error: PandoError) -> bytes:
        """The error, and the end."""
        return event(error_body(error)) + DONE

    def document(self) -> dict[str, Any]:
        """The whole answer."""
        slots = self._transcript.slots
        document = {
            **self._document,
            "choices": [self._full_choice(slot) for slot in slots],
            "usage": final_usage(self._transcript),
        }
        if self._body.prompt_logprobs is not None:
            document["prompt_logprobs"] = prompt_logprobs(slots[0].prompt)
        if self._body.return_token_ids:
            document["prompt_token_ids"] = list(slots[0].prompt.token_ids)
        return document

    def _role(self, frame: GenerateResponse, slot: Slot) -> bytes:
        choice = self._choice(slot, {"role": "assistant", "content": ""})
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(frame.prompt.token_ids)
        return self._event([choice], running=False)

    def _last(self, frame: GenerateResponse, slot: Slot, delta: Delta) -> bytes:
        """The last chunk of a frame, with all that a frame has once."""
        choice = self._choice(slot, delta)
        if frame.logprobs:
            choice["logprobs"] = chat_logprobs(frame.logprobs)
        if slot.finish:
            choice.update(self._end(slot))
        if self._body.return_token_ids:
            choice["token_ids"] = list(frame.token_ids)
        return self._event([choice], running=True)

    @staticmethod
    def _choice(slot: Slot, delta: Delta) -> dict[str, Any]:
        return {"index": slot.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _event(self, choices: list[dict[str, Any]], *, running: bool) -> bytes:
        chunk: dict[str, Any] = {**self._chunk, "choices": choices}
        if self._body.include_usage:
            chunk["usage"] = running_usage(self._transcript) if running and self._body.continuous_usage else None
        return event(chunk)

    def _deltas(self, text: str, slot: Slot) -> list[Delta]:
        if not self._parsers:
            return [{"content": text}] if text else []
        parser = self._parsers[slot.index]
        parts = parser.feed(text) + (parser.finish() if slot.finish else [])
        return [self._delta(part, slot) for part in parts]

    def _delta(self, part: Part, slot: Slot) -> Delta:
        if isinstance(part, TextPart):
            return {"content": part.text}
        if isinstance(part, CallStart):
            function: dict[str, Any] = {"name": part.name, "arguments": ""}
            call = {"index": part.index, "id": self._call_id(slot, part.index), "type": "function"}
        else:
            function, call = {"arguments": part.piece}, {"index": part.index}
        if self._body.wants_functions:
            return {"function_call": function}
        return {"tool_calls": [{**call, "function": function}]}

    def _call_id(self, slot: Slot, index: int) -> str:
        return f"{self._call_prefix}_{slot.index}_{index}"

    def _end(self, slot: Slot) -> dict[str, Any]:
        called = bool(self._parsers and self._parsers[slot.index].num_calls)
        if called and slot.finish == "stop":
            reason: str | None = "function_call" if self._body.wants_functions else "tool_calls"
        else:
            reason = slot.finish
        stop_reason = slot.stop_reason or None
        return {"finish_reason": reason, "stop_reason": None if called and stop_reason == END else stop_reason}

    def _full_choice(self, slot: Slot) -> dict[str, Any]:
        choice = {
            "index": slot.index,
            "message": self._message(slot),
            "logprobs": chat_logprobs(slot.logprobs) if self._body.logprobs else None,
            **self._end(slot),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = slot.token_ids
        return choice

    def _message(self, slot: Slot) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": slot.text, "refusal": None}
        if not self._parsers:
            return message
        parser = self._parsers[slot.index]
        text, calls = collected(parser.feed(slot.text) + parser.finish())
        message["content"] = text if text or not calls else None
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        if functions and self._body.wants_functions:
            message["function_call"] = functions[0]
        elif functions:
            message["tool_calls"] = [
                {"id": self._call_id(slot, index), "type": "function", "function": function}
                for index, function in enumerate(functions)
            ]
        return message


def collected(parts: list[Part]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and name and arguments of every call."""
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [""] * len(names)
    for part in parts:
        if isinstance(part, CallArguments):
            arguments[part.index] += part.piece
    return text, list(zip(names, arguments, strict=True))
