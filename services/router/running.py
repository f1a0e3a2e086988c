"""Requests in flight: admission within bounds, ids that are taken, and how to abort one.

Invariants: an id is in the table exactly while its request runs; queued tokens are the prompt tokens of requests that
have no first token yet. Knows nothing about workers.
"""

from __future__ import annotations

from collections.abc import Callable

from common.base.errors import Cancelled, InvalidRequest, Leg, Overloaded, PandoError


class Ticket:
    """A request's place in the table; a context manager that leaves it.

    Attributes:
        ended_with: what `check` raises, once somebody asked to end the request.
    """

    def __init__(self, table: RunningTable, request_id: str) -> None:
        self._table = table
        self._queued_tokens = 0
        self._cancels: set[Callable[[], object]] = set()
        self.request_id = request_id
        self.ended_with: PandoError | None = None

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.first_token()
        self._table._leave(self.request_id)

    def queue(self, num_tokens: int) -> None:
        """The prompt is known. Raises Overloaded when too many tokens wait already."""
        self._table._queue(num_tokens)
        self._queued_tokens = num_tokens

    def first_token(self) -> None:
        """The prompt is computed: it no longer counts as queued."""
        self._table.queued_tokens -= self._queued_tokens
        self._queued_tokens = 0

    def on_abort(self, cancel: Callable[[], object]) -> None:
        """Call `cancel` when the request is aborted."""
        self._cancels.add(cancel)

    def forget(self, cancel: Callable[[], object]) -> None:
        """The inverse of `on_abort`."""
        self._cancels.discard(cancel)

    def abort(self, error: PandoError | None = None) -> None:
        """End the request, with `error` or as aborted; the first reason stays."""
        self.ended_with = (
            self.ended_with or error or Cancelled("the request was aborted", reason="aborted", leg=Leg.ROUTER)
        )
        for cancel in tuple(self._cancels):
            cancel()

    def check(self) -> None:
        """Raises what the request was ended with, Cancelled or another PandoError."""
        if self.ended_with is not None:
            raise self.ended_with


class RunningTable:
    """All requests in flight."""

    def __init__(self, max_requests: int, max_queued_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_queued_tokens = max_queued_tokens
        self._tickets: dict[str, Ticket] = {}
        self.queued_tokens = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def admit(self, request_id: str) -> Ticket:
        """Let a request in; it stays until its ticket exits.

        Raises:
            InvalidRequest: the id is running.
            Overloaded: too many are.
        """
        if request_id in self._tickets:
            raise InvalidRequest("a request with this id is running", reason="duplicate_request_id", param="request_id")
        if len(self._tickets) >= self._max_requests:
            raise Overloaded(
                f"{len(self._tickets)} requests are in flight",
                reason="too_many_requests",
                leg=Leg.ROUTER,
                retry_after_s=1.0,
            )
        ticket = self._tickets[request_id] = Ticket(self, request_id)
        return ticket

    def abort(self, request_id: str) -> bool:
        """End a request; False when it is not running."""
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return False
        ticket.abort()
        return True

    def end_all(self, error: Callable[[], PandoError]) -> None:
        """End all that run, each with an error of its own that its caller sees."""
        for ticket in tuple(self._tickets.values()):
            ticket.abort(error())

    def _queue(self, num_tokens: int) -> None:
        if self.queued_tokens and self.queued_tokens + num_tokens > self._max_queued_tokens:
            raise Overloaded(
                f"{self.queued_tokens} prompt tokens wait already",
                reason="queue_full",
                leg=Leg.ROUTER,
                retry_after_s=1.0,
            )
        self.queued_tokens += num_tokens

    def _leave(self, request_id: str) -> None:
        del self._tickets[request_id]
