"""Admission against a model that keeps every request in one list, under any order of events."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.base.errors import DeadlineExceeded, Overloaded
from services.router.admission import MIN_COST_TOKENS, Admission
from services.router.seat import AdmissionLimits, Claim, Seat, Stage, Workers

TENANTS = st.sampled_from(["", "a", "b", "c"])
PICK = st.integers(0, 1000)


@dataclass
class Modelled:
    """A request as the test knows it."""

    seat: Seat
    tenant: str
    cost: int
    stage: Stage = Stage.QUEUED
    output: bool = False


class AdmissionMachine(RuleBasedStateMachine):
    """Every event of the shell, in any order, some twice."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.all: list[Modelled] = []
        self.num_refused = 0
        self.workers = Workers(1, 1)

    @initialize(
        running=st.sampled_from([0, 1, 2, 5]),
        requests=st.integers(1, 8),
        tokens=st.sampled_from([100, 1000, 10_000]),
        minimum=st.sampled_from([1, 500, 4000]),
        longest=st.sampled_from([1.0, 60.0]),
    )
    def start(self, running: int, requests: int, tokens: int, minimum: int, longest: float) -> None:
        self.limits = AdmissionLimits(running, requests, tokens, longest, minimum, 1.0, 5.0)
        self.admission = Admission(self.limits)

    def staged(self, *stages: Stage) -> list[Modelled]:
        return [one for one in self.all if one.stage in stages]

    def pick(self, number: int, *stages: Stage) -> Modelled | None:
        some = self.staged(*stages)
        return some[number % len(some)] if some else None

    @rule(
        passed_s=st.sampled_from([0.0, 0.01, 0.7, 5.0, 40.0]),
        prefill=st.integers(0, 3),
        idle=st.integers(0, 3),
        seats=st.none() | st.integers(0, 4),
    )
    def tick(self, passed_s: float, prefill: int, idle: int, seats: int | None) -> None:
        self.now_s += passed_s
        self.workers = Workers(prefill, min(idle, prefill), seats)

    @rule(
        tenant=TENANTS,
        weight=st.integers(0, 4),
        priority=st.integers(-3, 3),
        tokens=st.integers(1, 3000),
        patience_s=st.sampled_from([-1.0, 0.5, 20.0, 1e6]),
    )
    def arrive(self, tenant: str, weight: int, priority: int, tokens: int, patience_s: float) -> None:
        try:
            seat = self.admission.arrive(Claim(tenant, weight, priority, tokens, self.now_s + patience_s), self.now_s)
        except Overloaded as error:
            assert 1.0 <= error.retry_after_s <= 60.0
            assert self.staged(Stage.QUEUED), "refused while nobody waits"
        except DeadlineExceeded:
            assert patience_s <= 0 or self.staged(Stage.QUEUED), "refused by an estimate while nobody waits"
        else:
            self.all.append(Modelled(seat, tenant, max(tokens, MIN_COST_TOKENS)))
        self.take_refused()

    @rule()
    def go(self) -> None:
        """The shell lets go all that may go, and their workers are known at once or later."""
        while (seat := self.admission.next(self.workers, self.now_s)) is not None:
            one = next(one for one in self.all if one.seat is seat)
            assert one.stage is Stage.QUEUED
            one.stage = Stage.DISPATCHED
        self.take_refused()
        waiting, flying = self.staged(Stage.QUEUED), self.staged(Stage.DISPATCHED, Stage.RUNNING)
        if not waiting or self.admission._flight.cap is not None:
            return
        limit = self.limits.max_running_requests
        dispatched = sum(one.cost for one in self.staged(Stage.DISPATCHED))
        unplaced = sum(not one.seat.placed for one in self.staged(Stage.DISPATCHED))
        assert flying, "nothing runs while something waits"
        seats = self.workers.num_free_seats
        assert (
            0 < limit <= len(flying)
            or (seats is not None and seats <= unplaced)
            or (dispatched >= self.admission.dispatch_limit_tokens(self.workers) and self.workers.num_idle <= unplaced)
        ), "something waits for nothing"

    @rule(number=PICK)
    def placed(self, number: int) -> None:
        if one := self.pick(number, Stage.DISPATCHED, Stage.RUNNING, Stage.QUEUED, Stage.GONE):
            self.admission.placed(one.seat)

    @rule(number=PICK)
    def first_token(self, number: int) -> None:
        if one := self.pick(number, Stage.DISPATCHED, Stage.RUNNING, Stage.GONE):
            self.admission.first_token(one.seat, self.now_s)
            one.stage = Stage.RUNNING if one.stage is Stage.DISPATCHED else one.stage

    @rule(number=PICK, tokens=st.integers(1, 500))
    def output(self, number: int, tokens: int) -> None:
        if one := self.pick(number, Stage.RUNNING):
            self.admission.output(one.seat, tokens)

    @rule(number=PICK)
    def put_back(self, number: int) -> None:
        one = self.pick(number, Stage.DISPATCHED, Stage.RUNNING)
        if one and self.admission.put_back(one.seat, self.now_s):
            assert one.stage is Stage.DISPATCHED and len(self.staged(Stage.DISPATCHED, Stage.RUNNING)) > 1
            one.stage = Stage.QUEUED

    @rule(number=PICK)
    def leave(self, number: int) -> None:
        """Done, aborted, failed: from any state, and again when it has gone."""
        if one := self.pick(number, *Stage):
            self.admission.leave(one.seat, self.now_s)
            one.stage = Stage.GONE

    def take_refused(self) -> None:
        for seat in self.admission.take_refused():
            one = next(one for one in self.all if one.seat is seat)
            assert one.stage is Stage.QUEUED, "only who waits is refused"
            assert seat.refusal is not None
            one.stage = Stage.GONE

    @invariant()
    @precondition(lambda self: hasattr(self, "admission"))
    def sums(self) -> None:
        admission, waiting = self.admission, self.staged(Stage.QUEUED)
        assert all(one.seat.stage is one.stage for one in self.all)
        assert admission.num_queued == len(waiting)
        assert admission.queued_tokens == sum(one.cost for one in waiting)
        assert admission.num_waiting_tenants == len({one.tenant for one in waiting})
        assert admission.num_in_flight == len(self.staged(Stage.DISPATCHED, Stage.RUNNING))
        assert admission.dispatched_tokens == sum(one.cost for one in self.staged(Stage.DISPATCHED))
        assert admission._flight.num_unplaced == sum(not one.seat.placed for one in self.staged(Stage.DISPATCHED))
        assert admission._queue.num_known == len({one.tenant for one in self.all if one.stage is not Stage.GONE})
        limit = self.limits.max_running_requests
        assert not limit or admission.num_in_flight <= limit

    def teardown(self) -> None:
        """Everybody who waits gets a turn or an answer, and nothing is left."""
        if not hasattr(self, "admission"):
            return
        for _ in range(len(self.all) + 1):
            for one in self.staged(Stage.DISPATCHED, Stage.RUNNING):
                self.admission.leave(one.seat, self.now_s)
                one.stage = Stage.GONE
            self.go()
        assert not self.staged(Stage.QUEUED, Stage.DISPATCHED, Stage.RUNNING)
        self.sums()


AdmissionMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAdmissionMachine = AdmissionMachine.TestCase
