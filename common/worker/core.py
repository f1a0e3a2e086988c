"""The heart of a worker: the loop that schedules, runs a step, and tells everybody what came of it.

The asyncio loop owns scheduler, index and pool; the engine thread owns tensors and only runs plans. So there are no
locks: whatever is called here is called on the loop, also while a step runs. A request is watched by one `Sink`, which
hears of every step synchronously, before the next one is planned.

What L2 has of a request's path is copied into its blocks before it runs; L3 is asked while it waits.

It does not know roles, RPCs or transports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from common.base.clock import Clock, monotonic
from common.base.errors import Cancelled, Internal, InvalidRequest, Overloaded, PandoError
from common.base.logging import get_logger
from common.cache.storage import Storage
from common.cache.tiers import Tiers
from common.sched.plan import StepPlan, StepResult
from common.sched.request import FinishReason, Request, RequestUpdate
from common.sched.scheduler import Admission, Reservation, Scheduler
from common.sched.tiering import Load
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


class Watched(NamedTuple):
    """A request from submission to its end, and who hears of it."""

    request: Request
    sink: Sink


class WorkerCore:
    """Owns the requests of one worker from submission to their end.

    Methods that take a request mean that very object: another request of the same id is none of the caller's business.
    Whoever submits a request calls `drop` when done with it, on every path.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        tiers: Tiers,
        engine: EngineThread,
        feed: BlockFeed,
        metrics: WorkerMetrics,
        clock: Clock = monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.tiers = tiers
        self.cache = tiers.l1.cache
        self.storage: Storage | None = None
        self.engine = engine
        self.feed = feed
        self.metrics = metrics
        self.clock = clock
        self.prefill_tokens_per_s = 0.0
        self._watched: dict[str, Watched] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        tiers.hooks.on_change = self._on_change
        tiers.hooks.on_stored = self._on_stored
        tiers.hooks.on_distrusted = self._on_distrusted

    def runs(self, request: Request) -> bool:
        """Whether the request was submitted and has not ended."""
        watched = self._watched.get(request.request_id)
        return watched is not None and watched.request is request

    @property
    def num_requests(self) -> int:
        """Requests from submission to their end."""
        return len(self._watched)

    def add(self, request: Request, sink: Sink) -> None:
        """Queue a request that this worker computes itself.

        Raises:
            InvalidRequest: its id is running already, or it can never fit.
            Overloaded: the queue is full.
        """
        self._refuse_duplicate(request)
        if self.scheduler.add(request) is Admission.OVERLOADED:
            raise self.overloaded("the worker's queue is full")
        self._adopt(request, sink)
        if self.storage is not None:
            self.storage.begin(request)
        self.wake()

    def reserve(self, request: Request, sink: Sink) -> Reservation | None:
        """Set blocks aside for a request whose KV will be fetched; `landed` and `resume` follow.

        None, and it was not taken, when there is no room now.

        Raises:
            InvalidRequest: its id is running already, or it can never fit.
        """
        self._refuse_duplicate(request)
        reservation = self.scheduler.reserve(request)
        if reservation is not None:
            self._adopt(request, sink)
        self.publish()
        return reservation

    def landed(self, request: Request, num_blocks: int) -> None:
        """The first `num_blocks` blocks of a reserved request hold verified KV; they are indexed at once."""
        if self.runs(request):
            self.scheduler.landed(request.request_id, num_blocks)
            self.publish()

    def fetched(self, request: Request, num_here: int, num_landed: int) -> None:
        """Count blocks `num_here .. num_landed` of a reserved request, which landed, as cached at a peer."""
        request.note_cached("peer", num_here, num_landed)
        self.metrics.fetched_blocks.labels("prefix").inc(num_landed - num_here)

    async def load(self, request: Request) -> int:
        """Copy what L2 has of a reserved request's path into its blocks; returns how many leading blocks are here."""
        if not self.runs(request):
            return 0
        load = self.scheduler.load(request.request_id)
        if load is not None:
            await self._copy(load)
        return request.num_landed // request.block_size

    def resume(self, request: Request, token: int | None) -> None:
        """A reserved request has all it will get; `token` is the one that prefill drew. The rest is computed here."""
        if not self.runs(request):
            return
        due = self.scheduler.resume(request.request_id, token, self.clock())
        if due is not None:
            self._handle([RequestUpdate(request, finish_reason=due)])
        self.publish()
        self.wake()

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request for a reason the scheduler does not see (a stop string); one that has ended is fine."""
        if self.runs(request):
            self._forget(request, reason)
            self.scheduler.finish(request.request_id, reason)
            self.publish()
            self.wake()

    def drop(self, request: Request) -> None:
        """Leave nothing of a request behind, kept blocks included. One that never came in, or has gone, is fine."""
        if self.runs(request):
            self._forget(request, FinishReason.ABORT)
        if self.scheduler.get(request.request_id) is request:
            self.scheduler.abort(request.request_id)
        self.publish()
        self.wake()

    def fail(self, request: Request, error: PandoError) -> None:
        """End a request and tell its sink why; one that has ended is fine."""
        watched = self._watched.get(request.request_id)
        if watched is None or watched.request is not request:
            return
        self._forget(request, FinishReason.ABORT if isinstance(error, Cancelled) else FinishReason.ERROR)
        self.drop(request)
        watched.sink.on_error(error)

    def cancel(self, request_id: str) -> bool:
        """End a request on behalf of a third party: whoever waits for it is told. True when it was running."""
        watched = self._watched.get(request_id)
        if watched is None:
            return False
        self.fail(watched.request, Cancelled(f"request {request_id} was aborted"))
        return True

    def fail_all(self, make_error: Callable[[], PandoError], request_ids: Collection[str] | None = None) -> None:
        """End every request, or those of these ids that run, and tell its sink why."""
        for request_id, watched in list(self._watched.items()):
            if request_ids is None or request_id in request_ids:
                self.fail(watched.request, make_error())

    def hold(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that are held or cached, for a transfer."""
        self.cache.hold(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """End a transfer's hold; somebody may have waited for the blocks."""
        self.cache.release(blocks)
        self.wake()

    def overloaded(self, message: str) -> Overloaded:
        """Count a request that is turned away; returns the error to raise."""
        self.metrics.finished("overloaded")
        return Overloaded(message, retry_after_s=RETRY_AFTER_S)

    def publish(self) -> None:
        """Hand changes of the indexes to the feed."""
        events = self.tiers.take_events()
        if events:
            self.feed.publish(events, self.tiers.digest())

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
            for load in self.scheduler.take_loads():
                self._start_load(load)
            self._handle(self.scheduler.take_ended())
            self.publish()
            if plan is None:
                await self._wake.wait()
                continue
            result = await self._step(plan)
            self._handle(self.scheduler.update(result, self.clock()))
            self.metrics.totals(self.scheduler.num_preemptions, self.cache.num_evictions)
            self.publish()

    async def close(self) -> None:
        """Wait for what still moves between the tiers and end it; `run` has been cancelled."""
        while self._loads:
            await asyncio.wait(self._loads)
        await self.tiers.close()

    def _start_load(self, load: Load) -> None:
        task = asyncio.create_task(self._load_and_resume(load), name=f"load-{load.request.request_id}")
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _load_and_resume(self, load: Load) -> None:
        try:
            await self._copy(load)
        finally:
            self.resume(load.request, None)

    async def _copy(self, load: Load) -> None:
        """Carry out a load; blocks are held at both ends until the copy has ended, whatever becomes of the request.

        What does not come is computed.
        """
        request, first = load.request, load.first_block
        end = first + len(load.sources)
        targets = request.block_table[first:end]
        loaded: Sequence[bytes] = ()
        try:
            if len(targets) == len(load.sources):  # else it ended before its turn
                self.hold(targets)
                try:
                    await self.tiers.load(load.sources, targets)
                finally:
                    self.release(targets)
                if self.runs(request):
                    request.note_cached("l2", first, end)
                    self.landed(request, end)
                    loaded = request.chain.hashes[:end]
        except PandoError as error:
            get_logger().warning("not loaded from L2", request_id=request.request_id, error=error.message)
        finally:
            self.tiers.release(load.sources)
        if loaded:
            self.tiers.loaded(loaded)

    def _on_change(self) -> None:
        self.publish()
        self.wake()

    def _on_stored(self, path: Sequence[bytes]) -> None:
        if self.storage is not None:
            self.storage.offer(path)

    def _on_distrusted(self, path: Sequence[bytes]) -> None:
        if self.storage is not None:
            self.storage.discard(path)

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
            request = update.request
            if not self.runs(request):
                continue
            sink = self._watched[request.request_id].sink
            if update.finish_reason is not None:
                self._forget(request, update.finish_reason)
            if update.finish_reason is FinishReason.ERROR:
                sink.on_error(_failure(request))
            else:
                self._tell(sink, update)

    def _tell(self, sink: Sink, update: RequestUpdate) -> None:
        """Tell a sink; what goes wrong in it costs its own request only."""
        try:
            sink.on_update(update)
        except Exception as error:  # noqa: BLE001 - a bug in one request's output must not stop all others
            get_logger().error("a request's output failed", request_id=update.request_id, exc_info=error)
            self.drop(update.request)
            sink.on_error(Internal(f"output: {type(error).__name__}"))

    def _adopt(self, request: Request, sink: Sink) -> None:
        self._watched[request.request_id] = Watched(request, sink)
        self._quiet.clear()

    def _forget(self, request: Request, outcome: FinishReason) -> None:
        """Stop watching a running request."""
        del self._watched[request.request_id]
        self.metrics.finished(outcome)
        if not self._watched:
            self._quiet.set()

    def _refuse_duplicate(self, request: Request) -> None:
        if request.request_id in self._watched:
            raise InvalidRequest(
                f"request {request.request_id} is running already", reason="duplicate_request_id", param="request_id"
            )


def _failure(request: Request) -> PandoError:
    """The error of a request that failed in the engine."""
    if request.refused:
        return InvalidRequest(request.error, reason="nothing_to_draw", param="response_format")
    return Internal(request.error)
