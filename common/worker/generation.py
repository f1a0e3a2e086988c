"""Generating on a decode worker: where the prompt's KV comes from, and the stream of pieces that goes up.

Three ways to get the KV, cheapest that applies: what is short is computed here; with a prefill worker named, a handoff
fetches it; else it is computed here after the best prefix was fetched from a peer. A handoff that breaks before the
first token fails the request (the router retries the leg); after it, what is missing is computed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from common.base.errors import Leg, PandoError
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
        handoff: state of the handoff, once there is one.
        landed_s: when all KV was here after a handoff.
    """

    request: Request
    message: worker_pb2.WorkerRequest
    prefill_address: str
    sources: Sequence[Source]
    sent_chars: int
    handoff: Handoff | None = None
    landed_s: float | None = None
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
            feeding = self._start(job)
            told = job.handoff is not None
            async for piece in job.stream.pieces():
                if not told:
                    self._core.metrics.first_token(job.request, job.stream.first_token_s or self.now_s())
                    told = True
                yield piece
        finally:
            self._core.abort(job.request.request_id)
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait((feeding,))

    def _open_stream(self, job: Job) -> OutputStream:
        params = job.request.params
        detokenizer = IncrementalDetokenizer(
            self._tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            include_stop_str=params.include_stop_str,
            min_tokens=params.min_tokens,
        )
        return OutputStream(
            job.request,
            detokenizer=detokenizer,
            sent_chars=job.sent_chars,
            on_stop=lambda request_id: self._core.finish(request_id, FinishReason.STOP),
            clock=self._core.clock,
            observe_gap=self._core.metrics.inter_token.observe,
        )

    def _start(self, job: Job) -> asyncio.Task[None] | None:
        """Put the request to work; returns the task that brings its KV, if it comes from elsewhere."""
        core, request = self._core, job.request
        hashes = request.reusable_hashes()
        num_here = core.cache.match(hashes)
        uncached = request.num_tokens - num_here * request.block_size
        if job.prefill_address and uncached > self._local_prefill_tokens:
            job.request = request = _without_prompt_logprobs(request)
            reservation = core.reserve(request, job.stream)
            job.handoff = Handoff(request, num_landed=reservation.num_cached_blocks)
            return asyncio.create_task(self._hand_off(job, job.handoff))
        source = self._peers.best(job.sources, num_here)
        if source is not None and not request.num_missing_prompt_logprobs:
            reservation = core.reserve(request, job.stream)
            return asyncio.create_task(self._fetch_prefix(job, source, reservation.num_cached_blocks))
        core.add(request, job.stream)
        return None

    async def _fetch_prefix(self, job: Job, source: Source, num_here: int) -> None:
        request = job.request
        num_landed = await self._peers.fetch(source, request.reusable_hashes(), request.block_table, num_here)
        self._core.fetched(request, num_here, num_landed)
        self._core.resume(request.request_id, None)

    async def _hand_off(self, job: Job, handoff: Handoff) -> None:
        core, request = self._core, job.request
        start = worker_pb2.HandoffStart(
            request=job.message,
            num_blocks_held=handoff.num_landed,
            identity=self._receiver.identity.to_pb(),
            sources=[_source_to_pb(s) for s in self._sources_for_prefill(job, handoff)],
        )
        try:
            await self._receiver.receive(
                job.prefill_address,
                start,
                handoff,
                lambda num_blocks: core.landed(request.request_id, num_blocks),
                lambda first: self._take_first_token(job, first),
            )
        except PandoError as error:
            core.metrics.handoffs.labels("decode", "failed").inc()
            if handoff.first is None:
                error.leg = error.leg or Leg.PREFILL
                core.fail(request.request_id, error)
                return
            get_logger().warning("handoff broke after the first token; computing the rest here", error=error.message)
        else:
            core.metrics.handoffs.labels("decode", "ok").inc()
        core.metrics.fetched_blocks.labels("handoff").inc(handoff.num_landed)
        job.landed_s = core.clock()
        if handoff.first is not None:
            core.resume(request.request_id, handoff.first.token_id)

    def _sources_for_prefill(self, job: Job, handoff: Handoff) -> list[Source]:
        mine = Source(self._here.worker_id, self._here.address, handoff.num_landed)
        return [mine, *job.sources] if handoff.num_landed else list(job.sources)

    def _take_first_token(self, job: Job, first: worker_pb2.FirstToken) -> bool:
        """Send the first token up at once; returns whether the request goes on, so that its KV is wanted."""
        stream = job.stream
        stream.push_prompt_logprobs([logprob_from_pb(entry) for entry in first.prompt_logprobs])
        logprobs = logprob_from_pb(first.logprob) if first.HasField("logprob") else None
        stream.push(first.token_id, logprobs, first.logits_digest or None)
        reason = _FINISH_FROM_PB.get(first.finish_reason)
        if reason is not None:
            stream.end(reason)
            self._core.finish(job.request.request_id, reason)
        return reason is None and self._core.has(job.request.request_id)


def _source_to_pb(source: Source) -> worker_pb2.BlockSource:
    return worker_pb2.BlockSource(
        worker=worker_pb2.WorkerRef(worker_id=source.worker_id, address=source.address), num_blocks=source.num_blocks
    )


def _without_prompt_logprobs(request: Request) -> Request:
    """The request without a wish that the prefill worker fulfils."""
    if request.params.prompt_logprobs is None:
        return request
    return replace(request, params=replace(request.params, prompt_logprobs=None))
