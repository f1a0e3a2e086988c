"""Admission under load, on a virtual clock: workers stay busy, the queue stays short, and a flood hurts itself only.

The workers here prefill one request after another at a fixed speed and then generate for a fixed time, any number at a
time. Everything is a pure function of the seed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from common.base.errors import PandoError
from services.router.admission import Admission
from services.router.seat import AdmissionLimits, Claim, Seat, Workers

SPEED = 1000.0
"""Prompt tokens a second of each worker."""
TOKENS = 200
OUTPUT_S = 2.0


@dataclass
class Told:
    """What became of a tenant's requests."""

    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    waited_s: list[float] = field(default_factory=list)


class World:
    """Admission, its workers, and who sends requests."""

    def __init__(self, num_workers: int = 1, seed: int = 1, **limits: float) -> None:
        self.admission = Admission(AdmissionLimits(**limits))  # type: ignore[arg-type]
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.free_at_s = [0.0] * num_workers
        self.busy_s = 0.0
        self.told: dict[str, Told] = {}
        self.seats: dict[Seat, Callable[[], None]] = {}
        self.most_queued = self.most_dispatched = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def at(self, when_s: float, event: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when_s, self._num_events, event))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = until_s

    def flood(self, tenant: str, per_s: float, until_s: float, deadline_s: float = 1e9) -> None:
        """Requests of a tenant come at random, so many a second; who is refused does not come again."""

        def arrive() -> None:
            self.send(tenant, lambda: None, deadline_s)
            if (next_s := self.now_s + self.random.expovariate(per_s)) < until_s:
                self.at(next_s, arrive)

        self.at(self.random.expovariate(per_s), arrive)

    def clients(self, count: int) -> None:
        """Closed loop: each sends its next request when the last one is done."""

        def again() -> None:
            self.send("", again)

        for _ in range(count):
            self.at(0.0, again)

    def send(self, tenant: str, when_done: Callable[[], None], deadline_s: float = 1e9) -> None:
        told = self.told.setdefault(tenant, Told())
        try:
            seat = self.admission.arrive(Claim(tenant, 0, 0, TOKENS, self.now_s + deadline_s), self.now_s)
        except PandoError as error:
            told.refused[error.reason] += 1
            return
        self.seats[seat] = when_done
        self.let_go()

    def let_go(self) -> None:
        idle = sum(free_s <= self.now_s for free_s in self.free_at_s)
        while (seat := self.admission.next(Workers(len(self.free_at_s), idle), self.now_s)) is not None:
            self.start(seat)
            idle = sum(free_s <= self.now_s for free_s in self.free_at_s)
        for seat in self.admission.take_refused():
            assert seat.refusal is not None
            self.told[seat.entry.tenant].refused[seat.refusal.reason] += 1
            del self.seats[seat]
        self.most_queued = max(self.most_queued, self.admission.num_queued)
        self.most_dispatched = max(self.most_dispatched, self.admission.dispatched_tokens)

    def start(self, seat: Seat) -> None:
        self.admission.placed(seat)
        self.told[seat.entry.tenant].waited_s.append(seat.waited_s)
        worker = min(range(len(self.free_at_s)), key=self.free_at_s.__getitem__)
        first_s = max(self.now_s, self.free_at_s[worker]) + TOKENS / SPEED
        self.free_at_s[worker] = first_s
        self.busy_s += TOKENS / SPEED
        self.at(first_s, lambda: self.first_token(seat))

    def first_token(self, seat: Seat) -> None:
        self.admission.first_token(seat, self.now_s)
        self.at(self.now_s + OUTPUT_S, lambda: self.end(seat))
        self.let_go()

    def end(self, seat: Seat) -> None:
        self.admission.leave(seat, self.now_s)
        self.told[seat.entry.tenant].done += 1
        self.let_go()
        self.seats.pop(seat)()


@pytest.mark.parametrize("num_workers", [1, 4])
def test_at_five_times_what_they_can_the_workers_lose_nothing(num_workers: int) -> None:
    capacity = num_workers * SPEED / TOKENS
    world = World(num_workers, max_queue_s=5.0)
    world.flood("", 5 * capacity, 60.0)
    world.run(60.0)
    told = world.told[""]
    assert told.done >= 0.9 * capacity * 60.0
    assert set(told.refused) == {"queue_too_long"}
    assert world.most_queued <= 1.5 * capacity * 5.0, "the queue is as long as it may take"
    assert world.most_dispatched <= num_workers * max(2048.0, 1.2 * SPEED) + TOKENS
    assert max(told.waited_s) <= 8.0, "who was let in was told the truth"
    world.run(80.0)
    assert world.admission.num_in_flight == world.admission.num_queued == 0


@pytest.mark.parametrize("clients", [1, 8])
def test_in_the_usual_case_nobody_waits_in_the_router_who_need_not(clients: int) -> None:
    """Throughput is that of workers which get everything at once."""
    gated, free = World(2), World(2, dispatch_min_tokens=1e9)
    for world in (gated, free):
        world.clients(clients)
        world.run(60.0)
    assert gated.told[""].done == free.told[""].done > 0
    assert max(gated.told[""].waited_s) == 0.0


def test_what_waits_keeps_every_worker_busy() -> None:
    world = World(3, dispatch_min_tokens=1, dispatch_ahead_s=0.0)
    world.clients(40)
    world.run(60.0)
    assert world.busy_s >= 3 * 60.0 * 0.97


def test_a_flood_costs_a_quiet_tenant_nothing() -> None:
    capacity = SPEED / TOKENS
    world = World(max_queued_requests=20)
    world.flood("flood", 10 * capacity, 60.0)
    world.flood("quiet", 0.3 * capacity, 60.0)
    world.run(60.0)
    flood, quiet = world.told["flood"], world.told["quiet"]
    assert not quiet.refused and quiet.done > 60 and max(quiet.waited_s) <= 2.0
    assert flood.done >= 0.6 * capacity * 55 and flood.refused


def test_under_overload_no_work_is_done_for_those_who_get_nothing_of_it() -> None:
    """With deadlines of four seconds nearly all that is dispatched has its first token in time."""
    capacity = SPEED / TOKENS
    world = World()
    world.flood("", 5 * capacity, 60.0, deadline_s=4.0)
    world.run(60.0)
    told = world.told[""]
    assert set(told.refused) <= {"deadline_hopeless"}
    assert told.done >= 0.85 * capacity * 60
    assert max(told.waited_s) <= 4.0
