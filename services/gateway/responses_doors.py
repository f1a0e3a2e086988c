"""The HTTP routes of /v1/responses: create, come back to, list, forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from common.base.errors import InvalidRequest
from pando.v1.inference_pb2 import TokenizeRequest
from services.gateway import responses
from services.gateway.doors import Doors
from services.gateway.errors import JsonResponse, ResponseNotFound
from services.gateway.openai_types import ChatMessage
from services.gateway.response_store import ResponseStore, Stored, stored
from services.gateway.responses_input import Item, messages_of, read_items
from services.gateway.responses_types import InputFields, ResponsesRequest

DEFAULT_PAGE = 20
MAX_PAGE = 100


class ResponsesDoors:
    """Handlers; `doors` has what all routes share."""

    def __init__(self, doors: Doors, store: ResponseStore) -> None:
        self._doors = doors
        self._store = store

    async def create(self, request: Request) -> Response:
        """Answer a conversation that the server remembers."""
        body = await self._doors.read(request, ResponsesRequest)
        body.check()
        head = await self._doors.head(request, body.model)
        before, items = self._conversation(body, head.request_id)

        def save(document: dict[str, Any]) -> None:
            if body.store is not False:
                self._store.put(stored(document, items, before))

        messages, notes = self._doors.rewritten(request, _messages(body, before, items))
        limits = self._doors.limits
        return self._doors.exchange(responses.to_generation(body, messages, head, limits, save=save, notes=notes))

    async def count(self, request: Request) -> Response:
        """Input tokens that a response would have."""
        body = await self._doors.read(request, InputFields)
        body.check()
        head = await self._doors.head(request, body.model)
        before, items = self._conversation(body, head.request_id)
        use = responses.tool_use(body, self._doors.limits)
        messages, _ = self._doors.rewritten(request, _messages(body, before, items))
        chat = responses.prompt_of(body, messages, use)
        answer = await self._doors.client.tokenize(TokenizeRequest(model=body.model or "", chat=chat))
        return JsonResponse({"object": "response.input_tokens", "input_tokens": len(answer.token_ids)})

    async def retrieve(self, request: Request) -> Response:
        """A stored response."""
        if _one_of(request, "stream", "false", "true") == "true":
            raise InvalidRequest("stream: stored responses are not streamed again", param="stream")
        return JsonResponse(self._stored(request).document)

    async def delete(self, request: Request) -> Response:
        """Forget a stored response."""
        response_id = self._stored(request).document["id"]
        self._store.remove(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """Refused: only responses in the background could be cancelled, and there are none."""
        response_id = self._stored(request).document["id"]
        raise InvalidRequest(f"{response_id} does not run in the background: nothing to cancel", param="response_id")

    async def list_items(self, request: Request) -> Response:
        """Input items of a stored response, the latest first."""
        query = request.query_params
        items = list(self._stored(request).inputs)
        if _one_of(request, "order", "desc", "asc") == "desc":
            items.reverse()
        if (after := query.get("after")) is not None:
            items = items[_position(items, after) + 1 :]
        limit = _page(query.get("limit"))
        page = items[:limit]
        edges = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        return JsonResponse({"object": "list", "data": page, **edges, "has_more": len(items) > limit})

    def _stored(self, request: Request) -> Stored:
        response_id = request.path_params["response_id"]
        found = self._store.get(response_id)
        if found is None:
            raise ResponseNotFound(f"Response with id '{response_id[:80]}' not found.", param="response_id")
        return found

    def _conversation(self, body: InputFields, request_id: str) -> tuple[Stored | None, list[Item]]:
        """What came before, and the items of this request."""
        before = None
        if body.previous_response_id is not None:
            before = self._store.get(body.previous_response_id)
            if before is None:
                raise InvalidRequest(
                    f"Previous response with id '{body.previous_response_id[:80]}' not found.",
                    param="previous_response_id",
                    reason="previous_response_not_found",
                )
        return before, read_items(body.input, request_id.removeprefix("req-") + "_in", self._store.item)


def _messages(body: InputFields, before: Stored | None, items: Sequence[Item]) -> list[ChatMessage]:
    return messages_of(body.instructions, [*(before.conversation if before else ()), *items])


def _position(items: Sequence[Item], item_id: str) -> int:
    for position, item in enumerate(items):
        if item["id"] == item_id:
            return position
    raise InvalidRequest(f"after: no item {item_id[:80]!r}", param="after")


def _one_of(request: Request, name: str, *allowed: str) -> str:
    """A query parameter; the first of what is allowed when it is not given. Raises InvalidRequest."""
    value = request.query_params.get(name, allowed[0])
    if value not in allowed:
        raise InvalidRequest(f"{name}: must be {' or '.join(allowed)}", param=name)
    return value


def _page(limit: str | None) -> int:
    if limit is None:
        return DEFAULT_PAGE
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MAX_PAGE):
        raise InvalidRequest(f"limit: must be between 1 and {MAX_PAGE}", param="limit")
    return int(limit)
