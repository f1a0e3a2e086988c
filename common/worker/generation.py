"""Generating on a decode worker: where the prompt's KV comes from, and the stream of pieces that goes up.

Three ways to get the KV, cheapest that applies: what is short is computed here; with a prefill worker named, a handoff
fetches it; else it is computed here after the best prefix was fetched from a peer. A handoff that breaks before the
first token fails the request (the router retries the leg); after it, what is missing is computed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from common.base.errors import HandoffAborted, Internal, Leg, PandoError
from common.base.logging import get_logger
from common.rpc.convert import logprob_from_pb
from common.sched.request import FinishReason, Request
from common.tokenizer.detokenizer import IncrementalDetokenizer
from common.tokenizer.tokenizer import Tokenizer
from common.worker.core import WorkerCore
from common.worker.handoff_receiver import Handoff, HandoffReceiver
from common.worker.output import OutputStream, Piece
from common.worker.peers import PeerPrefixes, Source
from pando.v1 import types_pb2, worker_pb2

_FINISH_FROM_PB = {
    types_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


@dataclass(slots=True)
class Job:
    """One choice of one request on a decode worker.

    Attributes:
        request: as the scheduler will see it.
        message: as it came; goes on to the prefill worker.
        prefill_address: of the worker that computes what is missing; empty: this one does.
        sources: workers that may hold a longer prefix.
        sent_chars: text that earlier attempts sent.
        deadline_s: by the core's clock; what is done for the job elsewhere ends there too. None: no limit.
        handoff: state of the handoff, once there is one.
        landed_s: when all KV was here after a handoff.
        fetched_bytes: KV read from a peer without a handoff.
    """

    request: Request
    message: worker_pb2.WorkerRequest
    prefill_address: str
    sources: Sequence[Source]
    sent_chars: int
    deadline_s: float | None = None
    handoff: Handoff | None = None
    landed_s: float | None = None
    fetched_bytes: int = 0
    stream: OutputStream = field(init=False)


class Generator:
    """Runs jobs on a worker's core.

    Args:
        core: of this worker.
        tokenizer: shared.
        receiver: for handoffs.
        peers: for prefixes that other workers hold.
        here: this worker as a source for the prefill worker.
        local_prefill_tokens: an uncached rest up to this size is computed here whatever the plan says.
    """

    def __init__(
        self,
        *,
        core: WorkerCore,
        tokenizer: Tokenizer,
        receiver: HandoffReceiver,
        peers: PeerPrefixes,
        here: Source,
        local_prefill_tokens: int,
    ) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._receiver = receiver
        self._peers = peers
        self._here = here
        self._local_prefill_tokens = local_prefill_tokens

    def now_s(self) -> float:
        """The core's clock."""
        return self._core.clock()

    async def generate(self, job: Job) -> AsyncGenerator[Piece, None]:
        """Run a job; yields at least one piece, the last one with a finish reason.

        Closing the iterator, however early, leaves nothing of the request behind.

        Raises:
            Overloaded: no room; nothing was done.
            PandoError: the request failed, with its leg.
        """
        job.stream = self._open_stream(job)
        feeding: asyncio.Task[None] | None = None
        try:
            if job.request.constraint is not None and job.request.constraint.complete:
                job.stream.end(FinishReason.STOP)  # it moved here just before its end
            if not job.stream.ended:
                feeding = self._start(job)
            async for piece in job.stream.pieces():
                yield piece
            self._count(job)
        finally:
            self._core.drop(job.request)
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait((feeding,))

    def _open_stream(self, job: Job) -> OutputStream:
        core, request = self._core, job.request
        params = request.params
        detokenizer = IncrementalDetokenizer(
            self._tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            include_stop_str=params.include_stop_str,
            min_tokens=params.min_tokens,
        )
        return OutputStream(
            request,
            detokenizer=detokenizer,
            sent_chars=job.sent_chars,
            on_stop=lambda: core.finish(request, FinishReason.STOP),
            on_first_token=lambda now_s: self._count_first_token(job, now_s),
            observe_gap=core.metrics.itl.observe,
            clock=core.clock,
        )

    def _start(self, job: Job) -> asyncio.Task[None] | None:
        """Put the request to work; returns the task that brings its KV, if it comes from elsewhere."""
        core, request = self._core, job.request
        num_here = core.tiers.match(request.reusable_hashes())
        if request.num_tokens - num_here * request.block_size > self._local_prefill_tokens:
            if job.prefill_address not in ("", self._here.address):
                return self._start_handoff(job)
            source = self._peers.best(job.sources, num_here)
            reservation = None
            if source is not None and not request.num_missing_prompt_logprobs:
                reservation = core.reserve(request, job.stream)
            if source is not None and reservation is not None:
                return self._feed(request, lambda: self._fetch_prefix(job, source))
        core.add(request, job.stream)
        return None

    def _start_handoff(self, job: Job) -> asyncio.Task[None]:
        request = job.request
        # The prefill worker reports the prompt's logprobs; here they would forbid to reuse its KV.
        request.params = replace(request.params, prompt_logprobs=None)
        reservation = self._core.reserve(request, job.stream)
        if reservation is None:
            raise self._core.overloaded("no KV blocks are free now")
        left_s = None if job.deadline_s is None else max(0.0, job.deadline_s - self.now_s())
        handoff = job.handoff = Handoff(request, reservation.num_cached_blocks, left_s)
        return self._feed(request, lambda: self._hand_off(job, handoff))

    def _feed(self, request: Request, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run what brings a request's KV; however it goes wrong, the request hears of it."""

        async def feed() -> None:
            try:
                await work()
            except PandoError as error:
                self._core.fail(request, error)
            except asyncio.CancelledError:
                self._core.fail(request, HandoffAborted("the call to a peer was cut", leg=Leg.PREFILL))
                raise
            except Exception as error:  # noqa: BLE001 - a bug here must not leave the request waiting for ever
                get_logger().error("fetching KV failed", request_id=request.request_id, exc_info=error)
                self._core.fail(request, Internal(f"fetching KV: {type(error).__name__}"))

        return asyncio.create_task(feed())

    async def _fetch_prefix(self, job: Job, source: Source) -> None:
        num_fetched = await self._peers.bring(source, job.request)
        job.fetched_bytes = num_fetched * self._receiver.identity.block_bytes

    async def _hand_off(self, job: Job, handoff: Handoff) -> None:
        core, request = self._core, job.request
        handoff.hold(max(handoff.num_held, await core.load(request)))
        start = worker_pb2.HandoffStart(
            request=job.message,
            num_blocks_held=handoff.num_held,
            identity=self._receiver.identity.to_pb(),
            sources=[_source_to_pb(s) for s in self._sources_for_prefill(job, handoff)],
            host_id=self._receiver.host_id,
        )
        outcome = "failed"
        try:
            await self._receiver.receive(
                job.prefill_address,
                start,
                handoff,
                lambda num_blocks: core.landed(request, num_blocks),
                lambda first: self._take_first_token(job, first),
            )
            outcome = "ok"
        except PandoError as error:
            if handoff.first is None:
                error.leg = error.leg or Leg.PREFILL
                raise
            get_logger().warning("handoff broke after the first token; computing the rest here", error=error.message)
        finally:
            core.metrics.handoffs.labels("decode", outcome).inc()
            core.metrics.fetched_blocks.labels("handoff").inc(handoff.num_landed - handoff.num_held)
        job.landed_s = core.clock()
        assert handoff.first is not None, "a handoff ended well without a first token"
        core.resume(request, handoff.first.token_id)

    def _sources_for_prefill(self, job: Job, handoff: Handoff) -> list[Source]:
        mine = Source(self._here.worker_id, self._here.address, handoff.num_held)
        return [mine, *job.sources] if handoff.num_held else list(job.sources)

    def _take_first_token(self, job: Job, first: worker_pb2.FirstToken) -> bool:
        """Send the first token up at once; returns whether the request goes on, so that its KV is wanted."""
        core, request, stream = self._core, job.request, job.stream
        if not core.runs(request):
            return False
        stream.push_prompt_logprobs([logprob_from_pb(entry) for entry in first.prompt_logprobs])
        logprobs = logprob_from_pb(first.logprob) if first.HasField("logprob") else None
        stream.push(first.token_id, logprobs, first.logits_digest or None)
        reason = _FINISH_FROM_PB.get(first.finish_reason)
        if reason is not None:
            stream.end(reason)
            core.finish(request, reason)
        return core.runs(request)

    def _count_first_token(self, job: Job, now_s: float) -> None:
        metrics, request = self._core.metrics, job.request
        metrics.ttft.observe(now_s - request.arrival_s)
        if job.handoff is None:
            metrics.prompt_done(request)

    def _count(self, job: Job) -> None:
        """Measure a request that ended well."""
        stream, metrics = job.stream, self._core.metrics
        metrics.e2e.observe(self.now_s() - job.request.arrival_s)
        num_gaps = stream.num_tokens - len(job.message.output_token_ids) - 1
        if num_gaps > 0 and stream.first_token_s is not None and stream.last_token_s is not None:
            metrics.tpot.observe((stream.last_token_s - stream.first_token_s) / num_gaps)


def _source_to_pb(source: Source) -> worker_pb2.BlockSource:
    return worker_pb2.BlockSource(
        worker=worker_pb2.WorkerRef(worker_id=source.worker_id, address=source.address), num_blocks=source.num_blocks
    )
