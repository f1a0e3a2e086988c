"""What was dispatched and is not over: the requests at the workers, and whether one more may follow.

Invariants: every sum equals that over the seats that are dispatched or running; with nothing in flight there is room.
Owned by `admission`; pure.
"""

from __future__ import annotations

from services.router.seat import AdmissionLimits, Seat, Stage, Workers

CAP_STEP = 0.25
"""Requests that the cap on those in flight grows by with each first token, after workers had no room."""


class Flight:
    """The requests at the workers.

    Attributes:
        num_requests: all of them.
        num_unplaced: requests whose worker is not chosen yet.
        cost_tokens: of those without a first token.
        cap: most requests, since a worker had no room for one more; None: none was full since somebody waits.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.num_requests = 0
        self.num_unplaced = 0
        self.cost_tokens = 0
        self.cap: float | None = None

    def has_room(self, limits: AdmissionLimits, limit_tokens: int, workers: Workers) -> bool:
        """Whether one more request may go, if `limit_tokens` may be on their way to a first token."""
        if not self.num_requests:
            return True
        if 0 < limits.max_running_requests <= self.num_requests:
            return False
        if self.cap is not None and self.num_requests >= int(self.cap):
            return False
        if workers.num_free_seats is not None and workers.num_free_seats <= self.num_unplaced:
            return False
        return self.cost_tokens < limit_tokens or workers.num_idle > self.num_unplaced

    def enter(self, seat: Seat) -> None:
        """A request goes; its worker is chosen soon."""
        seat.stage, seat.placed = Stage.DISPATCHED, False
        self.num_requests += 1
        self.num_unplaced += 1
        self.cost_tokens += seat.entry.cost_tokens

    def place(self, seat: Seat) -> None:
        """A request has its worker; nothing happens if it had, or is not dispatched any more."""
        if seat.stage is Stage.DISPATCHED and not seat.placed:
            seat.placed = True
            self.num_unplaced -= 1

    def land(self, seat: Seat) -> None:
        """A request's prompt is computed, or does not count any more; a second call does nothing."""
        if seat.stage is Stage.DISPATCHED:
            self.cost_tokens -= seat.entry.cost_tokens
            self.num_unplaced -= not seat.placed
            seat.stage = Stage.RUNNING

    def grow(self) -> None:
        """A first token came: workers that had no room may have some again."""
        if self.cap is not None:
            self.cap += CAP_STEP

    def leave(self, seat: Seat, stage: Stage) -> None:
        """A request is not at the workers any more: it goes on to `stage`."""
        self.land(seat)
        self.num_requests -= 1
        seat.stage = stage
