"""Output items of a response, as they grow. Pure: parts of the text in, items and the events that tell of them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from services.gateway.tool_parser import CallStart, Part, TextPart

Item = dict[str, Any]
Event = dict[str, Any]


class OutputItems:
    """Items so far, at most the last of which is still open. Events lack their sequence numbers.

    Args:
        unique: makes ids unique.
        logprobs: text carries logprobs.
    """

    def __init__(self, unique: str, *, logprobs: bool) -> None:
        self._unique = unique
        self._logprobs = logprobs
        self._unplaced: list[dict[str, Any]] = []
        self._open = False
        self.items: list[Item] = []

    def add(self, parts: Sequence[Part], logprobs: Sequence[dict[str, Any]]) -> Iterator[Event]:
        """What a frame brought; logprobs belong to the text, those of calls are dropped."""
        self._unplaced += logprobs if self._logprobs else ()
        for part in parts:
            if isinstance(part, TextPart):
                yield from self._text(part.text)
            elif isinstance(part, CallStart):
                yield from self._close("completed")
                yield from self._begin_call(part)
            else:
                yield from self._arguments(part.piece)

    def close(self, status: str) -> Iterator[Event]:
        """The end; an answer without any item gets an empty message."""
        if not self.items:
            yield from self._begin_message()
        yield from self._close(status)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _text(self, text: str) -> Iterator[Event]:
        if not self._open or self.items[-1]["type"] != "message":
            yield from self._close("completed")
            yield from self._begin_message()
        part = self.items[-1]["content"][0]
        part["text"] += text
        entries, self._unplaced = self._unplaced, []
        part["logprobs"] += entries
        place = {**self._place, "content_index": 0}
        yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": entries}

    def _begin_message(self) -> Iterator[Event]:
        item = {"id": self._new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
        yield from self._begin({**item, "content": []})
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.items[-1]["content"].append(part)
        yield {
            "type": "response.content_part.added",
            **self._place,
            "content_index": 0,
            "part": {**part, "logprobs": []},
        }

    def _begin_call(self, start: CallStart) -> Iterator[Event]:
        self._unplaced.clear()
        item = {"id": self._new_id("fc"), "type": "function_call", "status": "in_progress"}
        yield from self._begin({**item, "call_id": self._new_id("call"), "name": start.name, "arguments": ""})

    def _begin(self, item: Item) -> Iterator[Event]:
        self.items.append(item)
        self._open = True
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": _copy(item)}

    def _arguments(self, piece: str) -> Iterator[Event]:
        self._unplaced.clear()
        self.items[-1]["arguments"] += piece
        yield {"type": "response.function_call_arguments.delta", **self._place, "delta": piece}

    def _close(self, status: str) -> Iterator[Event]:
        if not self._open:
            return
        self._open = False
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "message":
            yield from self._close_text(item["content"][0])
        else:
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **self._place, **done}
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": _copy(item)}

    def _close_text(self, part: dict[str, Any]) -> Iterator[Event]:
        place = {**self._place, "content_index": 0}
        part["logprobs"] += self._unplaced
        self._unplaced = []
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield {"type": "response.output_text.done", **place, **done}
        yield {"type": "response.content_part.done", **place, "part": part}

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._unique}_{len(self.items)}"


def _copy(item: Item) -> Item:
    return {**item, "content": [*item["content"]]} if "content" in item else {**item}
