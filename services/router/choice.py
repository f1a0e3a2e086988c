"""One choice of one request: place it, pass its frames on, and when its worker fails, place it again.

::

    place -> attempt -> frames ... finish                          done
      ^         |
      |         '-- failed, healed elsewhere, attempts left        retry (nothing sent yet) or migrate (after it)
      '-------------'       else                                   the error ends the request

Load is charged when a plan is made and released when its attempt ends, however it ends; so are the breakers of its
workers told how it went. A retry before the first token costs the router's budget, a migration nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from math import inf

from common.base.errors import DeadlineExceeded, Draining, Leg, Overloaded, PandoError, PeerLost, WrongRole
from services.router.convert import decode_request, reuse_from_pb
from services.router.desk import Desk
from services.router.job import Job
from services.router.legs import Legs
from services.router.metrics import RequestTrace
from services.router.output import Frame, Output
from services.router.placement import Placement
from services.router.policy import Plan, Task
from services.router.prefix_view import WorkerKey
from services.router.retry import Retries, blamed_leg, blames
from services.router.running import Ticket
from services.router.worker_rpc import Attempt

MISLED_S = 1.0
"""How long a request without a token waits for news of the roles."""
CROWDED_S = 0.5
"""How often a stream asks workers again that had no room for it."""


@dataclass(slots=True)
class Hints:
    """What the prefix view cannot know yet: blocks of the prompt by worker, and who may still wait for them."""

    matches: dict[WorkerKey, int] = field(default_factory=dict)
    landing: set[WorkerKey] = field(default_factory=set)


class Choice:
    """Runs one choice; iterate `frames` once.

    Args:
        hints: where the first choice's blocks are; read at every placement.
    """

    def __init__(
        self,
        desk: Desk,
        job: Job,
        index: int,
        *,
        ticket: Ticket,
        trace: RequestTrace,
        hints: Hints,
    ) -> None:
        self._desk = desk
        self._job = job
        self._index = index
        self._ticket = ticket
        self._trace = trace
        self._hints = hints
        self._output = Output(job, index, desk.tokenizer, trace)
        self._stitch = self._output.stitch
        self._retries = Retries(desk.config.max_attempts)
        self._num_at_start = 0
        self._unpaid: PandoError | None = None
        self._crowded_until_s = inf
        self.placement: Placement | None = None

    @property
    def _has_begun(self) -> bool:
        """Whether the client has something of this request already, so that it is worth waiting for a worker."""
        return bool(self._stitch.token_ids) or not self._output.leads

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield the choice's frames, without gap or repetition, the last one with its finish reason.

        Raises:
            PandoError: what ended the choice instead.
        """
        if (last := self._output.close(0)) is not None:
            yield last
        stitch = self._stitch
        while not stitch.finished:
            placement = self.placement = await self._place()
            legs = Legs(self._desk.fleet.breakers, placement.plan, placement.started_s)
            self._num_at_start = stitch.num_new
            try:
                with self._called(placement) as answers:
                    async for answer in answers:
                        frame, now_s = answer.frame, self._desk.clock()
                        if stitch.finished:
                            continue
                        is_new = self._output.take(frame, self._retries.attempt)
                        try:
                            if is_new:
                                legs.answered()
                                yield frame
                        finally:  # the books are written while the frame is on its way
                            self._note(frame, placement, now_s)
                if not stitch.finished:
                    raise PeerLost("the worker's stream ended before its finish", leg=Leg.DECODE)
                legs.succeeded()
            except PandoError as error:
                placement.outcome = f"{error.leg.value or Leg.DECODE.value}: {error.reason}"
                if (last := self._failed(error, placement.plan, legs)) is not None:
                    yield last
            finally:
                placement.release()
                legs.release()
                self._desk.metrics.plans.labels(placement.plan.reason).inc()

    async def _place(self) -> Placement:
        """Choose workers and charge them; a stream that already runs waits a while for some to appear, or to have room.

        One that was sent to a worker without the role waits as well, but only for as long as all workers need to answer
        which roles they have.
        """
        desk = self._desk
        planner, roster = desk.fleet.planner, desk.fleet.roster
        await desk.fleet.until_known()
        give_up_s: float | None = None
        while True:
            self._ticket.check()
            task = self._task()
            excluded = self._retries.exclusions
            now_s = desk.clock()
            chosen = planner.plan(task, roster.candidates(excluded.decode, now_s), excluded, now_s)
            if chosen is not None:
                self._pay()
                placement = planner.start(chosen, task, now_s)
                desk.decisions.note(self._job.request_id, self._index, self._retries.attempt, placement)
                return placement
            if give_up_s is None:
                patience_s = desk.config.migration_wait_s if self._has_begun else self._retries.is_misled * MISLED_S
                give_up_s = min(now_s + patience_s, self._crowded_until_s)
            left_s = min(give_up_s, self._job.deadline_s) - now_s
            if left_s <= 0:
                raise self._retries.nobody_left()
            await desk.fleet.wait_for_change(min(left_s, CROWDED_S) if self._retries.is_crowded else left_s)
            if any(roster.is_ready(key) for key in self._retries.exclusions.decode):
                self._retries.forgive()

    def _task(self) -> Task:
        desk, job = self._desk, self._job
        num_output = len(self._stitch.token_ids)
        left = job.max_tokens - num_output
        return Task(
            hashes=job.hashes,
            num_tokens=len(job.prompt_ids) + num_output,
            block_size=job.kv.block_size,
            expected_output_tokens=min(left, desk.config.expected_output_tokens),
            session_id=job.wish.session_id,
            block_bytes=job.kv.block_bytes,
            known=self._hints.matches,
            landing=self._hints.landing,
        )

    def _called(self, placement: Placement) -> Attempt:
        """Call the worker. Raises DeadlineExceeded."""
        desk, job, stitch, attempt = self._desk, self._job, self._stitch, self._retries.attempt
        now_s = desk.clock()
        if now_s >= job.deadline_s:
            raise DeadlineExceeded("the request's time is up", leg=Leg.ROUTER)
        request = decode_request(
            job,
            placement.plan,
            choice=self._index,
            attempt=attempt,
            output_ids=stitch.token_ids,
            text_offset=stitch.text_offset,
        )
        if not attempt and self._output.leads:
            self._trace.planned(now_s)
        return desk.rpc.generate(placement.plan.decode.address, request, job.deadline_s - now_s, self._ticket)

    def _note(self, frame: Frame, placement: Placement, now_s: float) -> None:
        """Put a worker's frame, which came at `now_s`, into the books."""
        if frame.token_ids:
            placement.progress(len(frame.token_ids), now_s)
            self._trace.tokens(self._index, len(frame.token_ids), now_s)
        if self._stitch.finished:
            placement.finished(reuse_from_pb(frame.usage), now_s)

    def _failed(self, error: PandoError, hit: Plan, legs: Legs) -> Frame | None:
        """Note a failure; returns the last frame when what was sent already ends the choice.

        Raises:
            PandoError: the failure is final.
        """
        desk, stitch = self._desk, self._stitch
        if stitch.finished:
            return None
        self._ticket.check()
        prefill = hit.prefill.key if hit.prefill else None
        if blames(error):
            legs.failed(blamed_leg(error, prefill), desk.clock())
        self._ask_after(error, hit.decode.key, prefill)
        if (last := self._output.close(self._retries.attempt)) is not None:
            return last
        progressed = stitch.num_new > self._num_at_start
        if isinstance(error, Overloaded) and self._has_begun:
            still_crowded = self._retries.is_crowded and not progressed
            leg = self._retries.crowded(error, hit.decode.key, prefill)
            if still_crowded:
                return None
            self._crowded_until_s = desk.clock() + desk.config.migration_wait_s
        else:
            self._crowded_until_s = inf
            leg = self._retries.failed(error, hit.decode.key, prefill, progressed=progressed)
        self._unpaid = None if self._has_begun or isinstance(error, Draining | WrongRole) else error
        (desk.metrics.migrations if stitch.token_ids else desk.metrics.retries).labels(leg.value).inc()
        desk.log.warning(
            "attempt failed; trying elsewhere",
            request_id=self._job.request_id,
            leg=leg.value,
            reason=error.reason,
            num_tokens_sent=stitch.num_new,
            decode=hit.decode.key[0],
        )
        return None

    def _pay(self) -> None:
        """Take a retry out of the budget. Free are streams, and workers that only said they go down or changed roles.

        Raises:
            PandoError: the error that made the retry necessary, when the budget has none left.
        """
        unpaid, self._unpaid = self._unpaid, None
        if unpaid is not None and not self._desk.budget.take():
            self._desk.metrics.retries_refused.inc()
            raise unpaid

    def _ask_after(self, error: PandoError, decode: WorkerKey, prefill: WorkerKey | None) -> None:
        """Have the worker asked how it is; a lost transfer says nothing about either."""
        fleet = self._desk.fleet
        key = {Leg.PREFILL: prefill, Leg.DECODE: decode, Leg.NONE: decode}.get(error.leg)
        if key is not None and isinstance(error, PeerLost):
            fleet.call_failed(key)
        elif key is not None and isinstance(error, Draining):
            fleet.look_at(key)
        elif isinstance(error, WrongRole):
            fleet.look_around()
