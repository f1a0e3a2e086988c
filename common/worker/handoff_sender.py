"""The prefill side of a handoff: compute what is missing, lend finished blocks as they come, then the first token.

The stream is the lease: its blocks stay held until the caller half-closes or the stream breaks, whatever the state of
the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from common.base.errors import Leg, PandoError
from common.rpc.convert import TokenBytes, logprob_to_pb
from common.sched.plan import TokenLogprobs
from common.sched.request import FinishReason, Request, RequestUpdate
from common.worker.convert import endpoint_to_pb, extent_to_pb
from common.worker.core import WorkerCore
from common.worker.lending import Lender, Loans
from common.worker.peers import PeerPrefixes, Source
from common.worker.state import WorkerState
from pando.v1 import types_pb2, worker_pb2

_FINISH_TO_PB = {
    None: types_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}


def first_token_only(request: Request) -> Request:
    """The request as prefill runs it: it ends with the next token and keeps its blocks to lend them."""
    params = replace(request.params, max_tokens=len(request.output_ids) + 1)
    return replace(request, params=params, keep_blocks=True)


@dataclass(slots=True)
class PrefillProgress:
    """A sink that keeps what a request's first token brings and wakes the stream that announces its blocks."""

    token: RequestUpdate | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: PandoError | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_update(self, update: RequestUpdate) -> None:
        """Take in a step's outcome."""
        self.prompt_logprobs.extend(update.prompt_logprobs)
        if update.token_id is not None:
            self.token = update
        self._news.set()

    def on_error(self, error: PandoError) -> None:
        """The request failed."""
        self.error = error
        self._news.set()

    async def changed(self) -> None:
        """Wait for news; raises the request's error."""
        await self._news.wait()
        self._news.clear()
        if self.error is not None:
            raise self.error


class HandoffSender:
    """Serves handoffs from a worker's core."""

    def __init__(
        self,
        core: WorkerCore,
        lender: Lender,
        peers: PeerPrefixes,
        state: WorkerState,
        token_bytes: TokenBytes,
    ) -> None:
        self._core = core
        self._lender = lender
        self._peers = peers
        self._state = state
        self._token_bytes = token_bytes

    async def serve(
        self, request: Request, num_blocks_held: int, sources: Sequence[Source], reader_host_id: str
    ) -> AsyncGenerator[worker_pb2.HandoffResponse, None]:
        """Run one handoff up to its first token; the blocks stay held until the iterator is closed.

        Args:
            request: as it came, with all its output tokens to draw.
            num_blocks_held: leading blocks that decode has.
            sources: workers that may hold a longer prefix than this one.
            reader_host_id: host of the decode worker.
        """
        core, progress = self._core, PrefillProgress()
        ours = first_token_only(request)
        try:
            async with self._lender.loans(reader_host_id) as loans:
                yield self._accepted()
                await self._begin(ours, progress, sources)
                async for message in self._announce(request, ours, progress, loans, num_blocks_held):
                    yield message
                core.metrics.handoffs.labels("prefill", "ok").inc()  # from here on it is decode's to end it
                yield self._first_token(request, ours, progress)
        except PandoError as error:
            error.leg = error.leg or Leg.PREFILL
            core.metrics.handoffs.labels("prefill", "failed").inc()
            raise
        finally:
            core.drop(ours)

    async def _begin(self, request: Request, progress: PrefillProgress, sources: Sequence[Source]) -> None:
        """Queue the request; with room now, fetch the prefix that a source has beyond what is here before."""
        core = self._core
        num_missing = request.num_missing_prompt_logprobs
        source = None if num_missing else self._peers.best(sources, core.tiers.match(request.reusable_hashes()))
        reservation = core.reserve(request, progress) if source is not None else None
        if source is None or reservation is None:
            core.add(request, progress)
            return
        await self._peers.bring(source, request)

    async def _announce(
        self, asked: Request, request: Request, progress: PrefillProgress, loans: Loans, num_blocks_held: int
    ) -> AsyncGenerator[worker_pb2.HandoffResponse, None]:
        """Lend blocks as they are finished, in order; ends when the token is known and all are lent.

        After a first token that ends the request nobody needs the blocks: those not lent yet are not.
        """
        core, next_block = self._core, num_blocks_held
        while True:
            await progress.changed()
            done = progress.token is not None
            finished = request.num_computed // request.block_size
            if done:
                finished = 0 if _finish_reason(asked, progress) else request.num_blocks_for(request.num_computed)
            blocks = request.block_table[next_block:finished]
            if blocks:
                names = [request.block_name(index, request.num_computed) for index in range(next_block, finished)]
                extents = await loans.add(core.tiers.l1, blocks, names)
                ready = worker_pb2.BlocksReady(first_block=next_block, extents=[extent_to_pb(e) for e in extents])
                yield worker_pb2.HandoffResponse(blocks=ready)
                next_block = finished
            if done:
                return

    def _accepted(self) -> worker_pb2.HandoffResponse:
        return worker_pb2.HandoffResponse(
            accepted=worker_pb2.HandoffAccepted(
                worker_id=self._state.worker_id,
                identity=self._state.identity.to_pb(),
                endpoints=[endpoint_to_pb(e) for e in self._state.endpoints],
            )
        )

    def _first_token(self, asked: Request, ours: Request, progress: PrefillProgress) -> worker_pb2.HandoffResponse:
        update = progress.token
        assert update is not None and update.token_id is not None, "no first token"
        self._core.metrics.ttft.observe(self._core.clock() - ours.arrival_s)
        self._core.metrics.prompt_done(ours)
        message = worker_pb2.FirstToken(
            token_id=update.token_id,
            logits_digest=update.digest or b"",
            finish_reason=_FINISH_TO_PB[_finish_reason(asked, progress)],
            prompt_logprobs=[logprob_to_pb(entry, self._token_bytes) for entry in progress.prompt_logprobs],
            cached_tokens=cached_tokens_to_pb(ours),
            queue_s=_span(ours.arrival_s, ours.first_scheduled_s),
            prefill_s=_span(ours.first_scheduled_s, ours.first_token_s),
        )
        if update.logprobs is not None:
            message.logprob.CopyFrom(logprob_to_pb(update.logprobs, self._token_bytes))
        return worker_pb2.HandoffResponse(first_token=message)


def _finish_reason(asked: Request, progress: PrefillProgress) -> FinishReason | None:
    """Whether the first token ends the request that was asked for (ours always ends with it)."""
    update = progress.token
    assert update is not None, "no first token"
    if update.finish_reason is FinishReason.STOP:
        return FinishReason.STOP
    return FinishReason.LENGTH if update.position + 1 >= asked.params.max_tokens else None


def cached_tokens_to_pb(request: Request) -> types_pb2.CachedTokens:
    """Prompt tokens that nobody computed for the request, by tier."""
    return types_pb2.CachedTokens(**{tier: num for tier, num in request.num_cached_tokens.items() if num})


def _span(begin_s: float | None, end_s: float | None) -> float:
    return 0.0 if begin_s is None or end_s is None else max(0.0, end_s - begin_s)
