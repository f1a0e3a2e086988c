"""The prefill side of a handoff: every block is announced before the token, lent while the stream lives, then gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import Cancelled, InvalidRequest, Leg
from common.cache.tiers import Tier
from common.rpc.channel import ChannelPool
from common.transport.base import Extent
from common.worker.handoff_sender import HandoffSender
from common.worker.job import Identity
from common.worker.lending import Lender
from common.worker.peers import BlockReader, PeerPrefixes, Source
from common.worker.roles import WorkerRoles
from common.worker.state import WorkerState
from pando.v1 import types_pb2, worker_pb2
from tests.support.fake_engine import reference_output
from tests.support.worker_rig import (
    BLOCK_BYTES,
    BLOCK_SIZE,
    NO_TAGS,
    FakeTransports,
    Listener,
    Rig,
    make_request,
    running_core,
)

BYTES = BLOCK_BYTES
HOST = "host"
IDENTITY = Identity(b"n" * 32, "numerics", BYTES, BLOCK_SIZE)


class SlowLender(Lender):
    """A lender whose checksums wait at a gate.

    Attributes:
        gate: open at first.
        asked: set by the first request for extents.
    """

    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)  # type: ignore[arg-type]
        self.gate, self.asked = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def extents(self, tier: Tier, blocks: Sequence[int], names: Sequence[bytes] | None) -> list[Extent]:
        """Wait, then as always."""
        self.asked.set()
        await self.gate.wait()
        return await super().extents(tier, blocks, names)


@asynccontextmanager
async def sending(num_blocks: int = 32, **config: object) -> AsyncIterator[tuple[Rig, SlowLender, HandoffSender]]:
    with ThreadPoolExecutor(1) as executor:
        async with running_core(num_blocks, chunked_prefill_size=4, **config) as rig:
            lender = SlowLender(
                core=rig.core, segments={1: 1}, incarnation=1, trust=NO_TAGS, executor=executor, max_lent_blocks=64
            )
            reader = BlockReader(core=rig.core, transports=FakeTransports(), timeouts=TimeoutsConfig(), trust=NO_TAGS)  # type: ignore[arg-type]
            peers = PeerPrefixes(ChannelPool(TimeoutsConfig()), reader, IDENTITY, TimeoutsConfig(), "w")
            roles = WorkerRoles("w", ["prefill"], rig.core.fail_all, drain_s=1.0)
            state = WorkerState("w", 1, roles, "m", 1, IDENTITY, [], 100, num_blocks)
            yield rig, lender, HandoffSender(rig.core, lender, peers, state, lambda token: bytes([token]))
            assert lender.num_lent == 0


def kinds(messages: Sequence[worker_pb2.HandoffResponse]) -> list[str]:
    return [message.WhichOneof("message") or "" for message in messages]


def announced(messages: Sequence[worker_pb2.HandoffResponse]) -> int:
    """How many blocks were announced; fails when one was left out."""
    expected = None
    for message in messages:
        if message.HasField("blocks"):
            assert expected is None or message.blocks.first_block == expected
            expected = message.blocks.first_block + len(message.blocks.extents)
    return expected or 0


async def test_blocks_then_the_token_and_all_is_held_until_the_end() -> None:
    async with sending() as (rig, lender, sender):
        asked = make_request("a", range(10), max_tokens=5)
        stream = sender.serve(asked, 0, [], HOST)
        messages = [await anext(stream) for _ in range(4)]
        assert kinds(messages) == ["accepted", "blocks", "blocks", "blocks"]
        token = (await anext(stream)).first_token
        assert token.token_id == reference_output(range(10), asked.params)[0]
        assert token.finish_reason == types_pb2.FINISH_REASON_UNSPECIFIED
        assert announced(messages) == 3, "the unfinished block too"
        assert rig.cache.num_held == lender.num_lent == 3
        await stream.aclose()
        assert rig.cache.num_held == 0
        assert rig.metric("pando_worker_handoffs_total", side="prefill", outcome="ok") == 1


async def test_a_token_that_comes_while_checksums_are_computed_leaves_no_block_out() -> None:
    async with sending() as (rig, lender, sender):
        lender.gate.clear()
        stream = sender.serve(make_request("a", range(10), max_tokens=5), 0, [], HOST)
        messages = [await anext(stream)]
        following = asyncio.ensure_future(anext(stream))
        await lender.asked.wait()
        await rig.settle()
        assert rig.core.num_requests == 0, "the token is drawn"
        lender.gate.set()
        messages.append(await following)
        messages += [message async for message in stream]
        assert announced(messages) == 3
        assert kinds(messages)[-1] == "first_token"


async def test_blocks_that_decode_holds_are_not_announced() -> None:
    async with sending() as (_, _, sender):
        messages = [m async for m in sender.serve(make_request("a", range(10), max_tokens=5), 2, [], HOST)]
        assert [m.blocks.first_block for m in messages if m.HasField("blocks")] == [2]


@pytest.mark.parametrize("why", ["max_tokens", "stop_token"])
async def test_a_first_token_that_ends_the_request_asks_for_no_read(why: str) -> None:
    async with sending(max_batch_tokens=64) as (_, _, sender):
        first = reference_output(range(3), make_request("x", range(3), max_tokens=1).params)[0]
        wishes = {"max_tokens": 1} if why == "max_tokens" else {"max_tokens": 9, "stop_token_ids": (first,)}
        messages = [m async for m in sender.serve(make_request("a", range(3), **wishes), 0, [], HOST)]
        assert kinds(messages) == ["accepted", "first_token"]
        reason = types_pb2.FINISH_REASON_LENGTH if why == "max_tokens" else types_pb2.FINISH_REASON_STOP
        assert messages[-1].first_token.finish_reason == reason


async def test_a_resumed_request_gets_its_next_token() -> None:
    async with sending() as (_, _, sender):
        whole = reference_output(range(6), make_request("x", range(6), max_tokens=5).params)
        request = make_request("a", range(6), max_tokens=5, output_ids=whole[:3])
        messages = [m async for m in sender.serve(request, 0, [], HOST)]
        assert messages[-1].first_token.token_id == whole[3]


async def test_a_stream_that_breaks_in_the_middle_leaves_nothing() -> None:
    async with sending() as (rig, _, sender):
        stream = sender.serve(make_request("a", range(40), max_tokens=5), 0, [], HOST)
        assert kinds([await anext(stream), await anext(stream)]) == ["accepted", "blocks"]
        await stream.aclose()
        await rig.settle()
        assert rig.cache.num_held == 0


async def test_an_abort_reaches_the_stream() -> None:
    async with sending() as (rig, _, sender):
        rig.engine.gate.clear()
        stream = sender.serve(make_request("a", range(10), max_tokens=5), 0, [], HOST)
        await anext(stream)
        following = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(rig.engine.began.wait, 20)
        assert rig.core.cancel("a")
        with pytest.raises(Cancelled) as failed:
            await following
        assert failed.value.leg is Leg.PREFILL
        rig.engine.gate.set()


async def test_a_duplicate_handoff_does_not_touch_the_first() -> None:
    async with sending() as (rig, _, sender):
        rig.engine.gate.clear()
        stream = sender.serve(make_request("a", range(10), max_tokens=5), 0, [], HOST)
        messages = [await anext(stream)]
        following = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(rig.engine.began.wait, 20)
        twin = sender.serve(make_request("a", range(10), max_tokens=5), 0, [], HOST)
        await anext(twin)
        with pytest.raises(InvalidRequest):
            await anext(twin)
        rig.engine.gate.set()
        messages.append(await following)
        messages += [message async for message in stream]
        assert announced(messages) == 3 and kinds(messages)[-1] == "first_token"


async def test_a_source_that_cannot_be_reached_costs_a_recompute() -> None:
    async with sending() as (rig, _, sender):
        gone = Source("gone", "127.0.0.1:1", 2)
        messages = [m async for m in sender.serve(make_request("a", range(10), max_tokens=5), 0, [gone], HOST)]
        assert announced(messages) == 3
        assert rig.metric("pando_worker_fetched_blocks_total", kind="prefix") == 0


async def test_with_no_room_to_reserve_a_request_waits_in_the_queue() -> None:
    """A source is named, but other blocks are held: prefill queues it instead of turning it away."""
    async with sending(num_blocks=8) as (rig, _, sender):
        other = make_request("other", range(100, 124), max_tokens=2)
        assert rig.core.reserve(other, Listener()) is not None
        stream = sender.serve(make_request("a", range(10), max_tokens=5), 0, [Source("gone", "127.0.0.1:1", 2)], HOST)
        messages = [await anext(stream)]
        following = asyncio.ensure_future(anext(stream))
        await rig.settle()
        assert rig.core.scheduler.num_waiting == 1
        rig.core.drop(other)
        messages.append(await following)
        messages += [message async for message in stream]
        assert announced(messages) == 3
