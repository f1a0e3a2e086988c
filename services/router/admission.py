"""Which requests go to the workers now, which wait here, and which are refused.

::

    arrive ---> queued --next--> dispatched --first token--> running --leave--> gone
      | full,     ^  |               |                                     (leave: from any state, once)
      | late      |  | late,         | no worker had room
      '-> refused |  | pushed out    |
                  |  '-> refused     |
                  '------------------'

Waiting happens here, where fair shares and priorities work, and not in the workers' own queues: what is dispatched and
has no first token yet is kept to about what the workers prefill in `dispatch_ahead_s`, by their measured speed. Limits
count *uncached* tokens, a request at least `MIN_COST_TOKENS`. Invariants: every sum equals that over the requests in
its state; while something is queued, no worker is idle and no limit free; an estimate refuses only who would have to
wait behind others, so that a wrong one heals itself. Pure; knows nothing about calls, tokens' values or plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.base.errors import DeadlineExceeded, Leg, Overloaded, PandoError
from services.router.fair_queue import MAX_PRIORITY, Entry, FairQueue, rank, weight_of
from services.router.flight import Flight
from services.router.rate import Rate
from services.router.seat import AdmissionLimits, Claim, Seat, Stage, Workers

MIN_COST_TOKENS = 32
MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
"""OpenAI's SDKs wait as told up to this, and as they like beyond it."""


@dataclass(slots=True)
class _Speeds:
    """Tokens per second that left the queue, and that were prefilled."""

    drain: Rate = field(default_factory=Rate)
    prefill: Rate = field(default_factory=Rate)


class Admission:
    """All requests of one router. Every method takes the time, which never runs backwards."""

    def __init__(self, limits: AdmissionLimits) -> None:
        """Start empty."""
        self._limits = limits
        self._queue = FairQueue()
        self._seats: dict[Entry, Seat] = {}
        self._refused: list[Seat] = []
        self._flight = Flight()
        self._speeds = _Speeds()
        self._now_s = 0.0

    @property
    def num_queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        """Cost of the requests that wait."""
        return self._queue.queued_tokens

    @property
    def num_in_flight(self) -> int:
        """Requests at the workers."""
        return self._flight.num_requests

    @property
    def dispatched_tokens(self) -> int:
        """Cost of the requests at the workers that have no first token."""
        return self._flight.cost_tokens

    @property
    def num_waiting_tenants(self) -> int:
        """Tenants with a request that waits."""
        return self._queue.num_tenants

    def dispatch_limit_tokens(self, workers: Workers) -> int:
        """What may be dispatched without a first token: what the workers prefill in a while, and enough for a start."""
        ahead = (self._speeds.prefill.per_s() or 0.0) * self._limits.dispatch_ahead_s
        return max(int(ahead), self._limits.dispatch_min_tokens * max(1, workers.num_prefill))

    def check_room(self, tenant: str, weight: int, priority: int, now_s: float) -> None:
        """Raise Overloaded if a request of the least cost would be refused now: a look before its prompt is read."""
        if not self._queue.num_waiting:
            return
        self._advance(now_s)
        self._check_wait(tenant, weight_of(weight), rank(now_s, priority, self._limits.priority_ageing_s))
        self._find_victims(Entry(tenant, MIN_COST_TOKENS, priority), weight_of(weight))

    def arrive(self, claim: Claim, now_s: float) -> Seat:
        """Let a request queue; `next` tells when it goes. The caller calls `leave` in the end, on every path.

        Raises:
            Overloaded: there is no room, or it would wait too long.
            DeadlineExceeded: its time is up, or will be before its turn.
        """
        self._advance(now_s)
        weight = weight_of(claim.weight)
        entry = Entry(
            claim.tenant,
            max(claim.uncached_tokens, MIN_COST_TOKENS),
            MAX_PRIORITY if claim.resumes else claim.priority,
            rank(now_s, MAX_PRIORITY if claim.resumes else claim.priority, self._limits.priority_ageing_s),
        )
        if now_s >= claim.deadline_s:
            raise DeadlineExceeded("the request's time is up", leg=Leg.ROUTER)
        if not claim.resumes and self._queue.num_waiting:
            self._make_room(entry, weight, claim.deadline_s)
        seat = self._seats[entry] = Seat(entry, now_s, claim.deadline_s)
        self._queue.open(entry, weight)
        return seat

    def next(self, workers: Workers, now_s: float) -> Seat | None:
        """Dispatch the request whose turn it is; None when nothing waits or may go.

        Those whose time cannot suffice any more are refused on the way.
        """
        self._advance(now_s)
        limits, queue = self._limits, self._queue
        while queue.num_waiting and self._flight.has_room(limits, self.dispatch_limit_tokens(workers), workers):
            entry = queue.pop()
            assert entry is not None, f"{len(queue)} requests wait, and nobody's turn comes"
            seat = self._seats[entry]
            if self._flight.num_requests and now_s + self._prefill_s(entry.cost_tokens) > seat.deadline_s:
                self._refuse(seat, _too_late())
                continue
            self._dispatch(seat, now_s)
            return seat
        return None

    def placed(self, seat: Seat) -> None:
        """A dispatched request has its worker."""
        self._flight.place(seat)

    def first_token(self, seat: Seat, now_s: float) -> None:
        """A dispatched request's prompt is computed; a second call does nothing."""
        if seat.stage is Stage.DISPATCHED:
            self._advance(now_s)
            self._speeds.prefill.add(seat.entry.cost_tokens)
            self._flight.land(seat)
            self._flight.grow()

    def output(self, seat: Seat, num_tokens: int) -> None:
        """A request at the workers has given tokens: its tenant pays for them."""
        self._queue.charge(seat.entry.tenant, num_tokens)

    def put_back(self, seat: Seat, now_s: float) -> bool:
        """No worker had room for a dispatched request: it waits again, until one of those in flight has ended.

        False, and nothing changed: none is.
        """
        if seat.stage is not Stage.DISPATCHED or self._flight.num_requests == 1:
            return False
        self._advance(now_s)
        self._flight.leave(seat, Stage.QUEUED)
        self._flight.cap = self._flight.num_requests
        self._queue.put_back(seat.entry)
        if seat.waited_s > 0:
            self._speeds.drain.add(-seat.entry.cost_tokens)
        return True

    def leave(self, seat: Seat, now_s: float) -> None:
        """The request is over, whatever it was doing; a second call does nothing."""
        if seat.stage is Stage.GONE:
            return
        self._advance(now_s)
        if seat.stage in (Stage.DISPATCHED, Stage.RUNNING):
            self._flight.leave(seat, Stage.GONE)
        self._close(seat)

    def take_refused(self) -> list[Seat]:
        """Requests that were queued and then refused, since the last call; they are gone."""
        refused, self._refused = self._refused, []
        return refused

    def retry_after_s(self, now_s: float) -> float:
        """When trying again makes sense: when what waits now will have left, by the measured rate."""
        self._advance(now_s)
        return max(MIN_RETRY_AFTER_S, min(MAX_RETRY_AFTER_S, self._wait_s(self.queued_tokens)))

    def _dispatch(self, seat: Seat, now_s: float) -> None:
        self._flight.enter(seat)
        seat.waited_s = now_s - seat.arrived_s
        if seat.waited_s > 0:
            self._speeds.drain.add(seat.entry.cost_tokens)

    def _refuse(self, seat: Seat, error: PandoError) -> None:
        seat.refusal = error
        self._refused.append(seat)
        self._close(seat)

    def _close(self, seat: Seat) -> None:
        seat.stage = Stage.GONE
        self._queue.close(seat.entry)
        del self._seats[seat.entry]

    def _make_room(self, entry: Entry, weight: int, deadline_s: float) -> None:
        """Let others give way to a new request if need be. Raises what `arrive` does."""
        wait_s = self._check_wait(entry.tenant, weight, entry.rank)
        if wait_s and self._now_s + wait_s + self._prefill_s(entry.cost_tokens) > deadline_s:
            raise _too_late()
        for victim in self._find_victims(entry, weight):
            self._refuse(self._seats[victim], self._overloaded("the request gave way to others", "pushed_out"))

    def _find_victims(self, entry: Entry, weight: int) -> list[Entry]:
        """Who of those that wait has to give way for a new request; nobody when there is room. Raises Overloaded."""
        limits, queue = self._limits, self._queue
        num_requests = len(queue) + 1 - limits.max_queued_requests
        num_tokens = queue.queued_tokens + entry.cost_tokens - limits.max_queued_tokens
        if num_requests <= 0 and num_tokens <= 0:
            return []
        num_tokens = min(num_tokens, queue.queued_tokens)
        victims = queue.victims(entry, weight, num_requests, num_tokens)
        if victims is None:
            waiting = f"{len(queue)} requests with {queue.queued_tokens} uncached tokens wait already"
            raise self._overloaded(waiting, "queue_full")
        return victims

    def _check_wait(self, tenant: str, weight: int, its_rank: float) -> float:
        """Seconds until the turn of a request that comes now, about; 0 when nobody waits. Raises Overloaded."""
        wait_s = self._wait_s(self._queue.tokens_before(tenant, weight, its_rank))
        if wait_s > self._limits.max_queue_s:
            raise self._overloaded(f"the queue is {wait_s:.0f} s long", "queue_too_long")
        return wait_s

    def _wait_s(self, tokens: float) -> float:
        """Seconds until so many tokens have left the queue, if the next request leaves now; 0 while nobody knows."""
        if not tokens:
            return 0.0
        rate = self._speeds.drain.per_s(soon=self.queued_tokens / self.num_queued)
        return tokens / rate if rate else 0.0

    def _prefill_s(self, cost_tokens: int) -> float:
        """Seconds from dispatch to first token, about; 0 while nobody knows."""
        rate = self._speeds.prefill.per_s()
        return (self._flight.cost_tokens + cost_tokens) / rate if rate else 0.0

    def _overloaded(self, message: str, reason: str) -> Overloaded:
        return Overloaded(
            f"{message}; try again later",
            reason=reason,
            leg=Leg.ROUTER,
            retry_after_s=self.retry_after_s(self._now_s),
        )

    def _advance(self, now_s: float) -> None:
        """Time has come to `now_s`; nothing has changed since the last event."""
        self._now_s = now_s
        num_queued = self._queue.num_waiting
        self._speeds.drain.advance(now_s, busy=num_queued > 0)
        self._speeds.prefill.advance(now_s, busy=self._flight.cost_tokens > 0)
        if not num_queued:
            self._flight.cap = None


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("the request's deadline cannot be met", reason="deadline_hopeless", leg=Leg.ROUTER)
