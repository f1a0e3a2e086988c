"""Documents and events of POST /v1/responses. Pure: frames in, JSON out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from common.base.errors import PandoError
from pando.v1.inference_pb2 import GenerateResponse
from services.gateway.generation import Head
from services.gateway.logprobs import chat_logprobs
from services.gateway.responses_items import Event, OutputItems
from services.gateway.responses_types import ResponsesRequest
from services.gateway.tool_parser import Part, TextPart, ToolParser
from services.gateway.tools import Syntax
from services.gateway.transcript import Slot, Transcript
from services.gateway.usage import responses_usage

Save = Callable[[dict[str, Any]], None]

_FAILURE_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt", 404: "invalid_prompt"}


class ResponsesWriter:
    """One response. A document that is final goes to `save` before it is sent."""

    def __init__(
        self, body: ResponsesRequest, head: Head, transcript: Transcript, syntax: Syntax | None, save: Save
    ) -> None:
        self._head = head
        self._transcript = transcript
        self._parser = ToolParser(syntax) if syntax else None
        self._save = save
        self._echo = _echo(body)
        self._items = OutputItems(head.request_id.removeprefix("req-"), logprobs=body.logprobs is not None)
        self._num_events = 0

    def events(self, frame: GenerateResponse, slot: Slot) -> bytes:
        """The opening events before the first frame, then one for each thing there is to say."""
        told = self._opening() if slot.num_frames == 1 else []
        return self._written([*told, *self._taken(frame, slot)])

    def tail(self) -> bytes:
        """The final event."""
        document = self._final()
        self._save(document)
        return self._written([{"type": f"response.{document['status']}", "response": document}])

    def failed(self, error: PandoError) -> bytes:
        """The event that tells of the failure, which is the last one."""
        code = _FAILURE_CODES.get(error.http_status, "server_error")
        failure = {"code": code, "message": error.message, "type": error.reason}
        document = self._document("failed", error=failure)
        return self._written([{"type": "response.failed", "response": document}])

    def document(self) -> dict[str, Any]:
        """The whole answer."""
        slot = self._transcript.slots[0]
        for frame in slot.frames:
            list(self._items.add(self._parts(frame.text, end=False), _logprobs(frame)))
        list(self._items.add(self._parts("", end=True), []))
        list(self._items.close(_item_status(slot)))
        document = self._final()
        self._save(document)
        return document

    def _opening(self) -> list[Event]:
        document = self._document("in_progress")
        return [{"type": f"response.{name}", "response": document} for name in ("created", "in_progress")]

    def _taken(self, frame: GenerateResponse, slot: Slot) -> list[Event]:
        ended = slot.finish is not None
        events = list(self._items.add(self._parts(frame.text, end=ended), _logprobs(frame)))
        return [*events, *self._items.close(_item_status(slot))] if ended else events

    def _parts(self, text: str, *, end: bool) -> list[Part]:
        if self._parser is None:
            return [TextPart(text)] if text else []
        return self._parser.feed(text) + (self._parser.finish() if end else [])

    def _final(self) -> dict[str, Any]:
        slot = self._transcript.slots[0]
        usage = responses_usage(self._transcript)
        if slot.finish == "length":
            return self._document("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=usage)
        return self._document("completed", usage=usage)

    def _document(self, status: str, **fields: Any) -> dict[str, Any]:
        head = {"id": response_id(self._head), "object": "response", "created_at": self._head.created}
        unset = {"error": None, "incomplete_details": None, "usage": None}
        output = {"status": status, "model": self._head.model, "output": [*self._items.items]}
        return {**head, **output, **self._echo, **unset, **fields}

    def _written(self, events: Iterable[Event]) -> bytes:
        return b"".join(self._numbered(event) for event in events)

    def _numbered(self, event: Event) -> bytes:
        number = self._num_events
        self._num_events += 1
        kind: str = event["type"]
        data = orjson.dumps({"type": kind, "sequence_number": number, **event})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def response_id(head: Head) -> str:
    """Id of the response to a request."""
    return "resp_" + head.request_id.removeprefix("req-")


def _logprobs(frame: GenerateResponse) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = chat_logprobs(frame.logprobs)["content"]
    return entries


def _item_status(slot: Slot) -> str:
    return "incomplete" if slot.finish == "length" else "completed"


def _echo(body: ResponsesRequest) -> dict[str, Any]:
    """What the answer repeats of the request, with the defaults filled in."""
    form = (body.text.format if body.text else None) or {"type": "text"}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": form, "verbosity": (body.text.verbosity if body.text else None) or "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "background": False,
        "user": body.user,
    }
