"""Responses that clients may come back to, in memory, within bounds. Pure.

Each response carries the whole conversation up to its end, shared item by item with its successors, and is charged for
all of it: what the store holds never exceeds its bound in bytes, and dropping a response never breaks a later one.
The response that was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """One response.

    Attributes:
        document: as it was answered.
        inputs: items of its own request.
        conversation: items of all requests and answers up to its end, without instructions.
        size_bytes: of document and conversation, as JSON.
    """

    document: dict[str, Any]
    inputs: Sequence[Item]
    conversation: Sequence[Item]
    size_bytes: int


def stored(document: dict[str, Any], inputs: Sequence[Item], before: Stored | None) -> Stored:
    """A finished response, for the store."""
    outputs: Sequence[Item] = document["output"]
    size = len(orjson.dumps(document)) + len(orjson.dumps([*inputs, *outputs]))
    earlier = before.conversation if before else ()
    size += before.size_bytes if before else 0
    return Stored(document, inputs, (*earlier, *inputs, *outputs), size)


class ResponseStore:
    """At most `max_responses` responses of at most `max_bytes` together; zero of either: none are kept."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, Stored] = OrderedDict()
        self._items: dict[str, Item] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, response: Stored) -> None:
        """Keep a response, dropping others as needed; one that is larger than the whole store is not kept."""
        response_id: str = response.document["id"]
        self.remove(response_id)
        if response.size_bytes > self._max_bytes or self._max_responses == 0:
            return
        self._responses[response_id] = response
        self._items.update((item["id"], item) for item in _own_items(response))
        self.num_bytes += response.size_bytes
        while len(self._responses) > self._max_responses or self.num_bytes > self._max_bytes:
            self.remove(next(iter(self._responses)))

    def get(self, response_id: str) -> Stored | None:
        """A response, which counts as used now."""
        response = self._responses.get(response_id)
        if response is not None:
            self._responses.move_to_end(response_id)
        return response

    def remove(self, response_id: str) -> bool:
        """Forget a response; False: it was not there."""
        response = self._responses.pop(response_id, None)
        if response is None:
            return False
        self.num_bytes -= response.size_bytes
        for item in _own_items(response):
            self._items.pop(item["id"], None)
        return True

    def item(self, item_id: str) -> Item | None:
        """A stored item by an id that this server made: ids that clients made up may be guessed by others."""
        return self._items.get(item_id)


def _own_items(response: Stored) -> Iterator[Item]:
    unique = response.document["id"].removeprefix("resp_")
    for item in (*response.inputs, *response.document["output"]):
        if unique in item["id"]:
            yield item
