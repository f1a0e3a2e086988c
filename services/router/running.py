"""Requests in the router: at most so many, ids that are taken, and how to abort one.

Invariant: an id is in the table exactly while its request is waiting or running. Who waits and who runs is decided in
`admission`. Knows nothing about workers.
"""

from __future__ import annotations

from collections.abc import Callable

from common.base.errors import Cancelled, InvalidRequest, Leg, PandoError


class Ticket:
    """A request's place in the table; a context manager that leaves it.

    Attributes:
        ended_with: what `check` raises, once somebody asked to end the request.
    """

    def __init__(self, table: RunningTable, request_id: str) -> None:
        self._table = table
        self._cancels: set[Callable[[], object]] = set()
        self.request_id = request_id
        self.ended_with: PandoError | None = None

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self._table._leave(self.request_id)

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
    """All requests in flight, at most `max_requests`; `too_many` makes the error for one more."""

    def __init__(self, max_requests: int, too_many: Callable[[], PandoError]) -> None:
        self._max_requests = max_requests
        self._too_many = too_many
        self._tickets: dict[str, Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def admit(self, request_id: str) -> Ticket:
        """Let a request in; it stays until its ticket exits.

        Raises:
            InvalidRequest: the id is running.
            PandoError: too many are.
        """
        if request_id in self._tickets:
            raise InvalidRequest("a request with this id is running", reason="duplicate_request_id", param="request_id")
        if len(self._tickets) >= self._max_requests:
            raise self._too_many()
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

    def _leave(self, request_id: str) -> None:
        del self._tickets[request_id]
