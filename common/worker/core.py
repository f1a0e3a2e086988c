"""The heart of a worker: the loop that schedules, runs a step, and tells everybody what came of it.

The asyncio loop owns scheduler, index and pool; the engine thread owns tensors and only runs plans. So there are no
locks: whatever is called here is called on the loop, also while a step runs. A request is watched by one `Sink`, which
hears of every step synchronously, before the next one is planned.

It does not know roles, RPCs or transports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from common.base.clock import Clock, monotonic
from common.base.errors import Cancelled, Internal, InvalidRequest, Overloaded, PandoError
from common.base.logging import get_logger
from common.kv.block_cache import BlockCache
from common.sched.plan import StepPlan, StepResult
from common.sched.request import FinishReason, Request, RequestUpdate
from common.sched.scheduler import Admission, Reservation, Scheduler
from common.worker.block_feed import BlockFeed
from common.worker.engine_thread import EngineThread
from common.worker.metrics import WorkerMetrics

RETRY_AFTER_S = 1.0
MIN_MEASURED_TOKENS = 32
SPEED_WEIGHT = 0.2


class Sink(Protocol):
    """Hears of a request's progress. Calls come on the loop, must not block, and end with the last one."""

    def on_update(self, update: RequestUpdate) -> None:
        """Tokens were computed, or one was drawn, or the request ended."""

    def on_error(self, error: PandoError) -> None:
        """The request failed on this worker; its blocks are released."""


class WorkerCore:
    """Owns the requests of one worker from submission to their end."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        cache: BlockCache,
        engine: EngineThread,
        feed: BlockFeed,
        metrics: WorkerMetrics,
        clock: Clock = monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.cache = cache
        self.engine = engine
        self.feed = feed
        self.metrics = metrics
        self.clock = clock
        self.prefill_tokens_per_s = 0.0
        self._sinks: dict[str, Sink] = {}
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def has(self, request_id: str) -> bool:
        """Whether a request of this id is running."""
        return request_id in self._sinks

    @property
    def num_requests(self) -> int:
        """Requests from submission to their end."""
        return len(self._sinks)

    def add(self, request: Request, sink: Sink) -> None:
        """Queue a request that this worker computes itself.

        Raises:
            InvalidRequest: its id is running already.
            Overloaded: the queue is full.
        """
        self._refuse_duplicate(request)
        if self.scheduler.add(request) is Admission.OVERLOADED:
            raise self._overloaded("the worker's queue is full")
        self._adopt(request, sink)
        self.wake()

    def reserve(self, request: Request, sink: Sink) -> Reservation:
        """Set blocks aside for a request whose KV will be fetched; `landed` and `resume` follow.

        Raises:
            InvalidRequest: its id is running already.
            Overloaded: there is no room now.
        """
        self._refuse_duplicate(request)
        reservation = self.scheduler.reserve(request)
        if reservation is None:
            raise self._overloaded("no KV blocks are free now")
        self._adopt(request, sink)
        return reservation

    def landed(self, request_id: str, num_blocks: int) -> None:
        """The first `num_blocks` blocks of a reserved request hold verified KV; they are indexed at once."""
        if self.has(request_id):
            self.scheduler.landed(request_id, num_blocks)
            self.publish()

    def fetched(self, request: Request, num_here: int, num_landed: int) -> None:
        """Blocks `num_here .. num_landed` of a reserved request were cached at a peer and are here now."""
        if num_landed == num_here or not self.has(request.request_id):
            return
        num_prompt, size = len(request.prompt_ids), request.block_size
        request.num_cached_tokens["peer"] = min(num_landed * size, num_prompt) - min(num_here * size, num_prompt)
        self.metrics.fetched_blocks.labels("prefix").inc(num_landed - num_here)
        self.landed(request.request_id, num_landed)

    def resume(self, request_id: str, token: int | None) -> None:
        """A reserved request has all it will get; `token` is the one that prefill drew. The rest is computed here."""
        if not self.has(request_id):
            return
        due = self.scheduler.resume(request_id, token, self.clock())
        if due is not None:
            request = self.scheduler.get(request_id)
            self._handle([RequestUpdate(request, finish_reason=due)] if request else [])
        self.publish()
        self.wake()

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request for a reason the scheduler does not see (a stop string). Unknown ids are fine."""
        if self._drop(request_id):
            self.scheduler.finish(request_id, reason)
            self.metrics.finished(reason)
            self.publish()
            self.wake()

    def release(self, request_id: str) -> None:
        """Give back the blocks of an ended request that kept them (`keep_blocks`). Unknown ids are fine."""
        self.scheduler.abort(request_id)
        self.publish()
        self.wake()

    def abort(self, request_id: str) -> bool:
        """End a request that nobody waits for any more; True when it was running."""
        if not self._drop(request_id):
            return False
        self.scheduler.abort(request_id)
        self.metrics.finished("abort")
        self.publish()
        self.wake()
        return True

    def cancel(self, request_id: str) -> bool:
        """Abort a request on behalf of a third party: whoever waits for it is told. True when it was running."""
        return self.fail(request_id, Cancelled(f"request {request_id} was aborted"))

    def fail(self, request_id: str, error: PandoError) -> bool:
        """Abort a request and tell its sink why; True when it was running."""
        sink = self._sinks.get(request_id)
        if sink is None:
            return False
        self.abort(request_id)
        sink.on_error(error)
        return True

    def publish(self) -> None:
        """Hand changes of the index to the feed."""
        self.feed.publish(self.cache.take_events())

    def wake(self) -> None:
        """Make the loop look for work."""
        self._wake.set()

    async def drained(self) -> None:
        """Wait until no request is running."""
        await self._quiet.wait()

    async def run(self) -> None:
        """Schedule and step until cancelled. A step that raises fails its requests, not the worker."""
        while True:
            self._wake.clear()
            plan = self.scheduler.schedule(self.clock())
            self._handle(self.scheduler.take_ended())
            if plan is None:
                await self._wake.wait()
                continue
            result = await self._step(plan)
            self._handle(self.scheduler.update(result, self.clock()))
            self.metrics.totals(self.scheduler.num_preemptions, self.cache.num_evictions)
            self.publish()

    async def _step(self, plan: StepPlan) -> StepResult:
        try:
            result = await self.engine.run(plan)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises costs these requests only
            get_logger().error("engine step failed", requests=len(plan.sequences), exc_info=error)
            failed = {sequence.request_id: f"engine: {type(error).__name__}" for sequence in plan.sequences}
            return StepResult(plan.step_id, {}, failed=failed)
        self.metrics.step(plan, result)
        self._measure(plan, result)
        return result

    def _measure(self, plan: StepPlan, result: StepResult) -> None:
        """Keep the speed of steps that are mostly prefill, smoothed."""
        if plan.num_tokens < MIN_MEASURED_TOKENS or result.elapsed_s <= 0:
            return
        speed = plan.num_tokens / result.elapsed_s
        known = self.prefill_tokens_per_s
        self.prefill_tokens_per_s = speed if not known else known + SPEED_WEIGHT * (speed - known)

    def _handle(self, updates: Sequence[RequestUpdate]) -> None:
        for update in updates:
            sink = self._sinks.get(update.request_id)
            if sink is None:
                continue
            if update.finish_reason is not None:
                self._drop(update.request_id)
                self.metrics.finished(update.finish_reason)
            if update.finish_reason is FinishReason.ERROR:
                sink.on_error(Internal(update.request.error))
            else:
                sink.on_update(update)

    def _adopt(self, request: Request, sink: Sink) -> None:
        self._sinks[request.request_id] = sink
        self._quiet.clear()

    def _drop(self, request_id: str) -> bool:
        found = self._sinks.pop(request_id, None) is not None
        if not self._sinks:
            self._quiet.set()
        return found

    def _refuse_duplicate(self, request: Request) -> None:
        if self.has(request.request_id):
            raise InvalidRequest(
                f"request {request.request_id} is running already", reason="duplicate_request_id", param="request_id"
            )

    def _overloaded(self, message: str) -> Overloaded:
        self.metrics.finished("overloaded")
        return Overloaded(message, retry_after_s=RETRY_AFTER_S)
