"""What was decided lately, and what came of it: the memory behind Explain.

A bounded ring of requests; each keeps the placements of its choices and attempts, which know their plan, its quotes and
how they went. Nothing is copied and nothing is computed before somebody asks. Knows nothing about calls or the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.placement import Placement

MAX_PER_REQUEST = 64


@dataclass(slots=True, frozen=True)
class Decision:
    """One placement of one choice."""

    choice: int
    attempt: int
    placement: Placement


class DecisionLog:
    """The decisions of the last requests."""

    def __init__(self, max_requests: int) -> None:
        """Start empty; the oldest of more than `max_requests` requests is forgotten."""
        self._max_requests = max_requests
        self._by_request: dict[str, list[Decision]] = {}

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._by_request)

    def note(self, request_id: str, choice: int, attempt: int, placement: Placement) -> None:
        """Remember a placement; a request keeps its first MAX_PER_REQUEST."""
        if not self._max_requests:
            return
        decisions = self._by_request.setdefault(request_id, [])
        if len(decisions) < MAX_PER_REQUEST:
            decisions.append(Decision(choice, attempt, placement))
        if len(self._by_request) > self._max_requests:
            del self._by_request[next(iter(self._by_request))]

    def of(self, request_id: str) -> Sequence[Decision]:
        """The decisions about a request, oldest first; empty when it is not remembered."""
        return self._by_request.get(request_id, ())
