"""The discrete-event simulation: a trace, a fleet, one or more routers, one virtual clock.

Every router is a `services.router.planner.Planner`, the object that decides in the live router, fed as there: workers
tell their index changes (some time later), answer pings, and every token shrinks the charge of its request. What the
simulation leaves out: tokenising, the network but for transfers of KV, failures, admission control.

With prefill and decode apart, a prompt runs on the prefill worker, whose last step draws the first token; its KV is at
the decode worker a transfer later, of the tokens of the last step only: the others came while it computed.
Deterministic: events of the same time happen in the order in which they were planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from bench.replay.fleet import FleetShape, Member, build_fleet
from bench.replay.job import Emission, Job
from bench.replay.trace import TraceRequest
from services.router.index_update import Update
from services.router.placement import Placement, Reuse
from services.router.planner import Planner
from services.router.policy import Exclusions, Plan, Task
from services.router.prefix_view import WorkerKey

Action = Callable[[float], None]


@dataclass(slots=True)
class Record:
    """What became of a request; times in seconds of virtual time.

    Attributes:
        num_cached: prompt tokens that nobody computed for it.
        worker: number of the worker that computed its prompt; -1 when no worker can hold it.
    """

    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    num_cached: int = 0
    worker: int = -1
    first_token_s: float | None = None
    end_s: float | None = None


@dataclass(slots=True)
class _Flight:
    """A request between its plan and its end."""

    record: Record
    plan: Plan
    placement: Placement
    handed_off: bool = False
    moved_tokens: int = 0
    moving_s: float = 0.0


class Simulation:
    """One replay; call `run` once."""

    def __init__(
        self, trace: Sequence[TraceRequest], shape: FleetShape, routers: Sequence[Planner], expected_output_tokens: int
    ) -> None:
        """Take a trace in order of arrival; the requests go to the routers in turn.

        Args:
            expected_output_tokens: what a router expects a request to generate.
        """
        self.members = build_fleet(shape)
        self._trace = trace
        self._shape = shape
        self._routers = routers
        self._expected_output_tokens = expected_output_tokens
        self._candidates = [member.candidate for member in self.members]
        self._numbers = {member.key: number for number, member in enumerate(self.members)}
        self._flights: dict[int, _Flight] = {}
        self._events: list[tuple[float, int, Action]] = []
        self._order = count()
        self._num_arrived = 0
        self.records: list[Record] = []

    def run(self) -> list[Record]:
        """Play the whole trace; returns the records in order of arrival."""
        for router in self._routers:
            for member in self.members:
                router.handle(member.key, Update(seq=0, changes=[], snapshot=True, snapshot_end=True))
        self._plan_arrival()
        if self._trace:
            self._at(self._trace[0].arrival_s, self._ping)
        while self._events:
            now_s, _, action = heapq.heappop(self._events)
            action(now_s)
        assert not self._flights, f"{len(self._flights)} requests never ended"
        return self.records

    def _at(self, time_s: float, action: Action) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), action))

    def _plan_arrival(self) -> None:
        if self._num_arrived < len(self._trace):
            self._at(self._trace[self._num_arrived].arrival_s, self._arrive)

    def _arrive(self, now_s: float) -> None:
        """Place all requests of this moment; idle workers begin when they have all that are theirs."""
        while self._num_arrived < len(self._trace) and self._trace[self._num_arrived].arrival_s <= now_s:
            index = self._num_arrived
            self._num_arrived += 1
            self._place(index, self._trace[index], now_s)
        self._plan_arrival()

    def _place(self, index: int, request: TraceRequest, now_s: float) -> None:
        record = Record(now_s, request.num_input_tokens, request.num_output_tokens)
        self.records.append(record)
        if not self.members[0].worker.fits(_job(index, request)):
            return
        router = self._routers[index % len(self._routers)]
        task = Task(
            hashes=request.hashes,
            num_tokens=request.num_input_tokens,
            block_size=self._shape.worker.block_size,
            expected_output_tokens=self._expected_output_tokens,
            block_bytes=self._shape.block_bytes,
        )
        plan = router.plan(task, self._candidates, Exclusions(), now_s)
        assert plan is not None, "there is always a worker that decodes"
        flight = _Flight(record, plan, router.start(plan, task, now_s))
        self._flights[index] = flight
        self._dispatch(index, request, flight, now_s)

    def _dispatch(self, index: int, request: TraceRequest, flight: _Flight, now_s: float) -> None:
        """Send a request to the worker that computes its prompt, after what that one fetches has come."""
        computing = self._member((flight.plan.prefill or flight.plan.decode).key)
        flight.record.worker = self._numbers[computing.key]
        job = _job(index, request)
        if flight.plan.prefill is not None:
            job.num_to_generate = 1
        fetched = self._fetched_tokens(request, flight.plan, computing)
        if fetched:
            job.num_landed = fetched
            own = computing.worker.cache.match(request.hashes) * self._shape.worker.block_size
            delay_s = self._moving_s(flight, fetched - own)
            self._at(now_s + delay_s, lambda then_s: self._enqueue(computing, job, then_s))
        else:
            self._enqueue(computing, job, now_s)

    def _fetched_tokens(self, request: TraceRequest, plan: Plan, computing: Member) -> int:
        """Leading tokens that others hold and the one who computes lacks; 0 when it fetches nothing."""
        holders = [source.worker.key for source in plan.sources] if self._shape.peer_fetch else []
        if plan.prefill is not None:
            holders.append(plan.decode.key)
        own = computing.worker.cache.match(request.hashes)
        longest = max((self._member(key).worker.cache.match(request.hashes) for key in holders), default=0)
        block_size = self._shape.worker.block_size
        usable = min(longest, (request.num_input_tokens - 1) // block_size)
        return usable * block_size if usable > own else 0

    def _moving_s(self, flight: _Flight, num_tokens: int) -> float:
        moving_s = self._shape.worker.times.transfer_s(num_tokens)
        flight.moved_tokens += num_tokens
        flight.moving_s += moving_s
        return moving_s

    def _member(self, key: WorkerKey) -> Member:
        return self.members[self._numbers[key]]

    def _enqueue(self, member: Member, job: Job, now_s: float) -> None:
        member.worker.enqueue(job)
        if member.end_s is None:
            self._plan_end(member, now_s)
        elif member.worker.busy:
            end_s = member.worker.cut(now_s)
            if end_s < member.end_s:
                self._plan_end(member, end_s)

    def _begin(self, member: Member, now_s: float) -> None:
        end_s = member.worker.start(now_s)
        self._publish(member, now_s)
        if end_s is None:
            member.end_s = None
        else:
            self._plan_end(member, end_s)

    def _plan_end(self, member: Member, end_s: float) -> None:
        member.run += 1
        member.end_s = end_s
        run = member.run
        self._at(end_s, lambda now_s: self._end(member, run, now_s))

    def _end(self, member: Member, run: int, now_s: float) -> None:
        if run != member.run:
            return
        emissions = member.worker.finish()
        for emission in emissions:
            self._emit(emission, now_s)
        self._begin(member, now_s)

    def _emit(self, emission: Emission, now_s: float) -> None:
        job = emission.job
        flight = self._flights[job.index]
        record = flight.record
        flight.placement.progress(emission.num_tokens, now_s)
        if record.first_token_s is None:
            record.first_token_s = now_s
            record.num_cached = min(job.num_cached or 0, record.num_input_tokens)
        if not emission.finished:
            return
        if flight.plan.prefill is not None and not flight.handed_off and record.num_output_tokens > 1:
            self._hand_off(job, flight, now_s)
            return
        record.end_s = now_s
        moved_bytes = flight.moved_tokens * self._shape.kv_token_bytes
        flight.placement.finished(Reuse({"l1": record.num_cached}, moved_bytes, flight.moving_s), now_s)
        flight.placement.release()
        del self._flights[job.index]

    def _hand_off(self, done: Job, flight: _Flight, now_s: float) -> None:
        """Let the decode worker go on with a request whose prompt is computed."""
        flight.handed_off = True
        shape = self._shape.worker
        decode = self._member(flight.plan.decode.key)
        job = Job(
            index=done.index,
            hashes=done.hashes[: done.num_prompt // shape.block_size],
            num_known=done.num_prompt + 1,
            num_prompt=done.num_prompt,
            num_to_generate=flight.record.num_output_tokens - 1,
            num_landed=done.num_prompt,
        )
        lacking = done.num_prompt - decode.worker.cache.match(job.hashes) * shape.block_size
        last = min(lacking, (done.num_prompt - (done.num_cached or 0) - 1) % shape.max_step_tokens + 1)
        self._at(now_s + self._moving_s(flight, last), lambda then_s: self._enqueue(decode, job, then_s))

    def _publish(self, member: Member, now_s: float) -> None:
        """Tell the routers what changed in a worker's index."""
        changes = member.worker.cache.take_changes()
        if not changes:
            return
        update = member.update(changes)
        self._at(now_s + self._shape.event_delay_s, lambda _: self._tell(member, update))

    def _tell(self, member: Member, update: Update) -> None:
        for router in self._routers:
            told = router.handle(member.key, update)
            assert told, f"{member.key}: changes are missing before {update.seq}"

    def _ping(self, now_s: float) -> None:
        for member in self.members:
            stats = member.stats()
            for router in self._routers:
                router.observe_stats(member.key, stats, self._shape.worker.block_size)
        if self._num_arrived < len(self._trace):
            self._at(now_s + self._shape.stats_period_s, self._ping)


def _job(index: int, request: TraceRequest) -> Job:
    return Job(
        index=index,
        hashes=list(request.hashes),
        num_known=request.num_input_tokens,
        num_prompt=request.num_input_tokens,
        num_to_generate=request.num_output_tokens,
    )
