"""The shell around admission: requests wait in it for their turn, and everything that may free one lets others go.

A request is inside for its whole life::

    with await room.enter(...) as turn:      waits; leaves exactly once, however the block ends
        turn.took(frame's tokens)            first token and output are noted on the way
        await turn.again()                   no worker had room: wait for another turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.base.clock import Clock
from common.base.errors import DeadlineExceeded, Leg, Overloaded, PandoError
from services.router.admission import Admission
from services.router.job import Job
from services.router.load import Load
from services.router.loop import Fleet
from services.router.metrics import RouterMetrics
from services.router.running import Ticket
from services.router.seat import Claim, Seat, Stage, Workers


class Turn:
    """A request that is inside; made by `WaitingRoom.enter`, and a context manager that leaves."""

    def __init__(self, room: WaitingRoom, seat: Seat, ticket: Ticket) -> None:
        self._room = room
        self._seat = seat
        self._ticket = ticket

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.leave(self._seat)

    def placed(self) -> None:
        """Its worker is chosen and charged."""
        self._room.admission.placed(self._seat)

    def took(self, num_tokens: int) -> None:
        """A frame with so many tokens passed."""
        if num_tokens:
            self._room.took(self._seat, num_tokens)

    async def again(self) -> bool:
        """No worker had room, and nothing was sent: wait for another turn; False when there will be none.

        Raises:
            PandoError: as `WaitingRoom.enter`.
        """
        room = self._room
        now_s = room.clock()
        if not room.admission.put_back(self._seat, now_s):
            return False
        room.metrics.put_backs.inc()
        await room.wait(self._seat, self._ticket, now_s)
        return True


class WaitingRoom:
    """Requests that wait. Lives on one event loop.

    Attributes:
        admission: decides.
        fleet: the workers.
        clock: monotonic seconds, as the deadlines of jobs.
        metrics: of the router.
    """

    def __init__(self, admission: Admission, fleet: Fleet, metrics: RouterMetrics, clock: Clock) -> None:
        self.admission = admission
        self.clock = clock
        self.metrics = metrics
        self.fleet = fleet
        self._waiting: dict[Seat, asyncio.Future[None]] = {}

    def check_room(self, tenant: str, weight: int, priority: int) -> None:
        """Raise Overloaded if a request would be refused now, before anything is done for it."""
        try:
            self.admission.check_room(tenant, weight, priority, self.clock())
        except PandoError as error:
            self._count_refusal(error)
            raise

    def too_many(self) -> Overloaded:
        """The refusal of a request for which the router has no place at all."""
        error = Overloaded(
            "too many requests are waiting and running; try again later",
            reason="too_many_requests",
            leg=Leg.ROUTER,
            retry_after_s=self.admission.retry_after_s(self.clock()),
        )
        self._count_refusal(error)
        return error

    async def enter(self, job: Job, ticket: Ticket) -> Turn:
        """Wait for the turn of a job; it is inside until the turn's block ends, which the caller opens at once.

        Raises:
            Overloaded: there is no room, or it had to give way.
            DeadlineExceeded: its time is up, or cannot suffice.
            PandoError: what its ticket was ended with while it waited.
        """
        claim = Claim(
            job.wish.tenant,
            job.wish.tenant_weight,
            job.wish.priority,
            self._uncached_tokens(job),
            job.deadline_s,
            resumes=bool(job.wish.output_ids),
        )
        now_s = self.clock()
        try:
            seat = self.admission.arrive(claim, now_s)
        except PandoError as error:
            self._count_refusal(error)
            raise
        try:
            await self.wait(seat, ticket, now_s)
        except BaseException:
            self.leave(seat)
            raise
        return Turn(self, seat, ticket)

    def leave(self, seat: Seat) -> None:
        """A request is over, or gave up: who waits may go."""
        now_s = self.clock()
        self.admission.leave(seat, now_s)
        self.let_go(now_s)

    async def wait(self, seat: Seat, ticket: Ticket, now_s: float) -> None:
        """Return when a seat is dispatched. Raises what `enter` does."""
        self.let_go(now_s)
        if seat.stage is Stage.DISPATCHED:
            return
        future = self._waiting[seat] = asyncio.get_running_loop().create_future()

        def abort() -> None:
            self._wake(seat)

        ticket.on_abort(abort)
        try:
            if seat.refusal is None:
                async with asyncio.timeout(seat.deadline_s - self.clock()):
                    await future
        except TimeoutError:
            late = DeadlineExceeded("the request's time is up while it waits", reason="deadline_queued", leg=Leg.ROUTER)
            self._count_refusal(late)
            raise late from None
        finally:
            ticket.forget(abort)
            del self._waiting[seat]
        ticket.check()
        if seat.refusal is not None:
            raise seat.refusal

    def took(self, seat: Seat, num_tokens: int) -> None:
        """A request gave tokens; the first of them may let others go."""
        first = seat.stage is Stage.DISPATCHED
        self.admission.output(seat, num_tokens)
        if first:
            self.metrics.queue_seconds.observe(seat.waited_s)
            now_s = self.clock()
            self.admission.first_token(seat, now_s)
            self.let_go(now_s)

    def let_go(self, now_s: float) -> None:
        """Dispatch what may go now. Called whenever something ended, came, or changed at the workers."""
        admission = self.admission
        if admission.num_queued:
            workers = self._workers()
            while (seat := admission.next(workers, now_s)) is not None:
                self._wake(seat)
        for seat in admission.take_refused():
            assert seat.refusal is not None, "refused without a reason"
            self._count_refusal(seat.refusal)
            self._wake(seat)

    def refresh_gauges(self) -> None:
        """Write the present state into the gauges."""
        admission, metrics = self.admission, self.metrics
        metrics.queued_tokens.set(admission.queued_tokens)
        metrics.queued_requests.set(admission.num_queued)
        metrics.queued_tenants.set(admission.num_waiting_tenants)
        metrics.dispatched_tokens.set(admission.dispatched_tokens)
        metrics.dispatch_limit_tokens.set(admission.dispatch_limit_tokens(self._workers()))

    def _wake(self, seat: Seat) -> None:
        future = self._waiting.get(seat)
        if future is not None and not future.done():
            future.set_result(None)

    def _workers(self) -> Workers:
        computing, decoding = [], []
        for one in self.fleet.roster.ready:
            load = self.fleet.load.of(one.key)
            if one.can_prefill:
                computing.append(load)
            if one.can_decode:
                decoding.append(load)
        computing = computing or decoding
        num_idle = [load.num_charges for load in computing].count(0)
        return Workers(len(computing), num_idle, _free_seats(decoding))

    def _uncached_tokens(self, job: Job) -> int:
        """Prompt tokens that the worker with the longest match would have to compute."""
        longest = max(self.fleet.view.match(job.hashes).values(), default=0)
        return len(job.prompt_ids) + len(job.wish.output_ids) - longest * job.kv.block_size

    def _count_refusal(self, error: PandoError) -> None:
        self.metrics.refusals.labels(error.reason).inc()


def _free_seats(loads: Sequence[Load]) -> int | None:
    """Requests that the workers with these loads can take beside ours; None: not all have told."""
    num_free = 0
    for load in loads:
        if not load.max_requests:
            return None
        num_free += load.max_requests - load.num_generating
    return num_free if loads else None
