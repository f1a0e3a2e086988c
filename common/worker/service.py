"""The RPCs that every worker offers, and the conversions that the role services share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from common.base.errors import InvalidRequest
from common.base.logging import get_logger
from common.kv.events import BlockEvent, EventKind
from common.rpc.convert import split_hashes
from common.rpc.operator import OperatorGuard
from common.rpc.server import Context
from common.sched.config import Policy, SchedulerConfig, step_budget
from common.transport.base import Extent
from common.worker.convert import endpoint_to_pb, extent_to_pb
from common.worker.core import WorkerCore
from common.worker.lending import Lender, Loans
from common.worker.peers import Source
from common.worker.state import WorkerState
from pando.v1 import worker_pb2, worker_pb2_grpc

_KIND_TO_PB = {
    EventKind.STORED: worker_pb2.BlockEvent.KIND_STORED,
    EventKind.REMOVED: worker_pb2.BlockEvent.KIND_REMOVED,
    EventKind.CLEARED: worker_pb2.BlockEvent.KIND_CLEARED,
}


def sources_from_pb(sources: Sequence[worker_pb2.BlockSource]) -> list[Source]:
    """The plan's block sources."""
    return [Source(s.worker.worker_id, s.worker.address, s.num_blocks) for s in sources]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`pando.v1.WorkerService`."""

    def __init__(self, state: WorkerState, core: WorkerCore, lender: Lender, guard: OperatorGuard) -> None:
        self._state = state
        self._core = core
        self._lender = lender
        self._guard = guard

    async def GetInfo(self, request: worker_pb2.GetInfoRequest, context: Context) -> worker_pb2.GetInfoResponse:
        """See the proto."""
        state = self._state
        return worker_pb2.GetInfoResponse(
            worker_id=state.worker_id,
            incarnation=state.incarnation,
            roles=state.roles.names,
            model=state.model,
            identity=state.identity.to_pb(),
            endpoints=[endpoint_to_pb(e) for e in state.endpoints],
            max_model_len=state.max_model_len,
            num_blocks=state.num_blocks,
            pid=state.pid,
        )

    async def Lend(
        self, request_iterator: AsyncIterator[worker_pb2.LendRequest], context: Context
    ) -> AsyncGenerator[worker_pb2.LendResponse, None]:
        """See the proto."""
        request = await anext(request_iterator, None)
        if request is None:
            raise InvalidRequest("the stream ended before it asked for anything")
        self._state.identity.check(request.identity)
        async with self._lender.loans(request.host_id) as loans:
            extents = await self._lend(loans, split_hashes(request.prefix_hashes), request.first_block)
            yield worker_pb2.LendResponse(
                endpoints=[endpoint_to_pb(e) for e in self._state.endpoints], extents=[extent_to_pb(e) for e in extents]
            )
            async for _ in request_iterator:
                pass

    async def _lend(self, loans: Loans, hashes: Sequence[bytes], first_block: int) -> list[Extent]:
        """Lend blocks `first_block ...` of a path: those in L1, and then those that only L2 has."""
        tiers = self._core.tiers
        upper = tiers.l1.cache.acquire(hashes)
        lower = tiers.acquire(hashes, max(len(upper), first_block))
        try:
            extents = await loans.add(tiers.l1, upper[first_block:], hashes[first_block : len(upper)])
            if tiers.l2 is not None and lower:
                first_lower = max(len(upper), first_block)
                names = hashes[first_lower : first_lower + len(lower)]
                extents += await loans.add(tiers.l2, lower, names)
            return extents
        finally:
            tiers.l1.cache.release(upper)
            tiers.release(lower)

    async def Watch(
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[worker_pb2.WatchResponse, None]:
        """See the proto."""
        async with aclosing(self._core.feed.watch()) as batches:
            async for batch in batches:
                yield worker_pb2.WatchResponse(
                    incarnation=self._state.incarnation,
                    seq=batch.seq,
                    snapshot=batch.snapshot,
                    snapshot_end=batch.snapshot_end,
                    events=[_event_to_pb(event) for event in batch.events],
                    digest=worker_pb2.IndexDigest(**batch.digest._asdict()) if batch.digest else None,
                )

    async def GetStats(self, request: worker_pb2.GetStatsRequest, context: Context) -> worker_pb2.GetStatsResponse:
        """See the proto."""
        scheduler, cache = self._core.scheduler, self._core.cache
        return worker_pb2.GetStatsResponse(
            worker_id=self._state.worker_id,
            incarnation=self._state.incarnation,
            num_running=scheduler.num_running + scheduler.num_landing,
            num_waiting=scheduler.num_waiting,
            waiting_tokens=scheduler.num_waiting_tokens,
            blocks_free=cache.num_free,
            blocks_cached=cache.num_cached,
            blocks_held=cache.num_held,
            blocks_total=cache.num_blocks,
            engine_step_age_s=self._core.engine.step_age_s(),
            prefill_tokens_per_s=self._core.prefill_tokens_per_s,
            draining=self._state.draining,
            roles=self._state.roles.names,
            max_num_seqs=scheduler.config.max_num_seqs,
        )

    async def AbortRequest(
        self, request: worker_pb2.AbortRequestRequest, context: Context
    ) -> worker_pb2.AbortRequestResponse:
        """See the proto."""
        return worker_pb2.AbortRequestResponse(found=self._core.cancel(request.request_id))

    async def Configure(self, request: worker_pb2.ConfigureRequest, context: Context) -> worker_pb2.ConfigureResponse:
        """See the proto."""
        self._guard.check_call(context)
        config = _changed(self._core.scheduler.config, request)
        self._core.scheduler.configure(config)
        self._core.wake()
        changes = {field.name: value for field, value in request.ListFields()}
        get_logger().info("scheduling was changed", peer=context.peer(), **changes)
        return worker_pb2.ConfigureResponse(
            schedule_policy=config.policy,
            chunked_prefill_size=config.chunked_prefill_size,
            max_batch_tokens=config.max_batch_tokens,
            max_num_seqs=config.max_num_seqs,
        )

    async def FlushCache(
        self, request: worker_pb2.FlushCacheRequest, context: Context
    ) -> worker_pb2.FlushCacheResponse:
        """See the proto."""
        self._guard.check_call(context)
        dropped = sum(tier.cache.flush() for tier in self._core.tiers.tiers)
        self._core.publish()
        get_logger().info("the cache was flushed", peer=context.peer(), blocks=dropped)
        return worker_pb2.FlushCacheResponse(num_blocks_dropped=dropped)


def _changed(config: SchedulerConfig, request: worker_pb2.ConfigureRequest) -> SchedulerConfig:
    """A checked copy with the fields of the request that are set."""
    if request.HasField("schedule_policy"):
        if request.schedule_policy not in list(Policy):
            raise InvalidRequest(f"schedule_policy is one of {', '.join(Policy)}", param="schedule_policy")
        config = replace(config, policy=Policy(request.schedule_policy))
    numbers = ("chunked_prefill_size", "max_batch_tokens", "max_num_seqs")
    values = {name: getattr(request, name) for name in numbers if request.HasField(name)}
    if "max_batch_tokens" not in values:
        chunk = values.get("chunked_prefill_size", config.chunked_prefill_size)
        seqs = values.get("max_num_seqs", config.max_num_seqs)
        values["max_batch_tokens"] = step_budget(config.max_batch_tokens, chunk, seqs)
    return replace(config, **values)


def _event_to_pb(event: BlockEvent) -> worker_pb2.BlockEvent:
    return worker_pb2.BlockEvent(
        kind=_KIND_TO_PB[event.kind], prefix_hash=event.hash, parent_hash=event.parent, tier=event.tier
    )
