"""Lending and reading blocks: held while it lasts, bounded, given back on every path, never into a foreign block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import BlockCorrupt, Cancelled, HandoffAborted, InvalidRequest, LayoutMismatch, Leg, Overloaded
from common.transport.base import Endpoint, Extent
from common.transport.checksum import checksum
from common.transport.tag import Tagger
from common.worker.lending import Lender
from common.worker.peers import MAX_BLOCKS_PER_READ, BlockReader, Loan
from common.worker.trust import BlockTrust, TagScope
from tests.support.worker_rig import BLOCK_BYTES, NO_TAGS, FakeTransports, Listener, Rig, make_request, running_core

BYTES = BLOCK_BYTES
NAMES = [bytes([number]) * 32 for number in range(8)]
ENDPOINTS = [Endpoint("shm", "host", 1, b"")]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@asynccontextmanager
async def lending(executor: ThreadPoolExecutor, limit: int = 8) -> AsyncIterator[tuple[Rig, Lender]]:
    async with running_core(num_blocks=64) as rig:
        yield (
            rig,
            Lender(
                core=rig.core, segments={1: 3}, incarnation=9, trust=NO_TAGS, executor=executor, max_lent_blocks=limit
            ),
        )


async def test_extents_say_where_and_what(executor: ThreadPoolExecutor) -> None:
    async with lending(executor) as (rig, lender):
        blocks = rig.cache.allocate(2) or []
        for block in blocks:
            rig.core.tiers.l1.region.data[block * BYTES : (block + 1) * BYTES] = bytes([block + 1]) * BYTES
        async with lender.loans("host") as loans:
            extents = await loans.add(rig.core.tiers.l1, blocks, NAMES)
            rig.core.release(blocks)
            assert rig.cache.num_held == 2, "a loan outlives the request"
        assert rig.cache.num_held == 0 and lender.num_lent == 0
        assert [e.offset for e in extents] == [block * BYTES for block in blocks]
        assert [e.checksum for e in extents] == [checksum(bytes([block + 1]) * BYTES) for block in blocks]
        assert {(e.incarnation, e.segment, e.length, e.generation) for e in extents} == {(9, 3, BYTES, 0)}


async def test_a_checksum_is_kept_for_one_generation(executor: ThreadPoolExecutor) -> None:
    async with lending(executor) as (rig, lender):
        blocks = rig.cache.allocate(1) or []
        async with lender.loans("host") as loans:
            l1 = rig.core.tiers.l1
            before = (await loans.add(l1, blocks, NAMES))[0]
            l1.view(blocks[0])[0] = 7
            assert (await loans.add(l1, blocks, NAMES))[0].checksum == before.checksum, "lent bytes do not change"
            l1.region.bump_generation(blocks[0])
            after = (await loans.add(l1, blocks, NAMES))[0]
        assert after.checksum != before.checksum and after.generation == before.generation + 1
        rig.core.release(blocks)


async def test_lending_is_bounded_and_a_refusal_holds_nothing(executor: ThreadPoolExecutor) -> None:
    async with lending(executor, limit=3) as (rig, lender):
        blocks = rig.cache.allocate(4) or []
        with pytest.raises(Overloaded) as refused:
            async with lender.loans("host") as loans:
                await loans.add(rig.core.tiers.l1, blocks[:2], NAMES)
                await loans.add(rig.core.tiers.l1, blocks[2:], NAMES)
        assert refused.value.reason == "too_many_loans"
        assert lender.num_lent == 0
        async with lender.loans("host") as loans:
            await loans.add(rig.core.tiers.l1, blocks[:3], NAMES)
        rig.core.release(blocks)


def extents(count: int, length: int = BYTES) -> list[Extent]:
    return [Extent(1, 1, i * BYTES, length, 0, 0) for i in range(count)]


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[Rig, FakeTransports, BlockReader]]:
    async with running_core(num_blocks=64) as rig:
        transports = FakeTransports()
        reader = BlockReader(core=rig.core, transports=transports, timeouts=TimeoutsConfig(), trust=NO_TAGS)  # type: ignore[arg-type]
        yield rig, transports, reader


async def test_batches_land_one_by_one() -> None:
    async with reading() as (rig, transports, reader):
        transports.gate.set()
        request = make_request("a", range(160))
        assert rig.core.reserve(request, Listener()) is not None
        landed: list[int] = []
        await reader.read(request, 2, Loan(ENDPOINTS, extents(MAX_BLOCKS_PER_READ + 3)), landed.append)
        assert landed == [2 + MAX_BLOCKS_PER_READ, 5 + MAX_BLOCKS_PER_READ]
        assert [len(batch) for batch in transports.reads] == [MAX_BLOCKS_PER_READ, 3]
        block = request.block_table[2]
        assert rig.core.tiers.l1.region.data[block * BYTES : (block + 1) * BYTES] == bytes([0xAB]) * BYTES
        rig.core.drop(request)


async def test_a_request_that_ends_during_a_read_keeps_its_blocks_until_the_read_is_over() -> None:
    async with reading() as (rig, transports, reader):
        request, landed = make_request("a", range(16)), list[int]()
        assert rig.core.reserve(request, Listener()) is not None
        read = asyncio.create_task(reader.read(request, 0, Loan(ENDPOINTS, extents(2)), landed.append))
        await transports.began.wait()
        assert rig.core.cancel("a")
        assert rig.cache.num_held == 2
        large, listener = make_request("b", [n % 251 for n in range(63 * 4)], max_tokens=1), Listener()
        rig.core.add(large, listener)
        await rig.settle()
        assert rig.core.scheduler.num_waiting == 1, "one block short"
        transports.gate.set()
        await read
        await listener.wait()
        assert len(listener.tokens) == 1


async def test_a_request_that_ended_before_the_read_gets_nothing() -> None:
    """Its old blocks may belong to somebody else by now."""
    async with reading() as (rig, transports, reader):
        transports.gate.set()
        request = make_request("a", range(16))
        assert rig.core.reserve(request, Listener()) is not None
        rig.core.drop(request)
        with pytest.raises(Cancelled):
            await reader.read(request, 0, Loan(ENDPOINTS, extents(2)), lambda num: None)
        assert not transports.reads


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_read_that_fails_gives_its_holds_back(cancelled: bool) -> None:
    async with reading() as (rig, transports, reader):
        request = make_request("a", range(16))
        assert rig.core.reserve(request, Listener()) is not None
        transports.outcome = BlockCorrupt("flipped")
        read = asyncio.create_task(reader.read(request, 0, Loan(ENDPOINTS, extents(2)), lambda num: None))
        await transports.began.wait()
        if cancelled:
            read.cancel()
        transports.gate.set()
        with pytest.raises(asyncio.CancelledError if cancelled else BlockCorrupt):
            await read
        assert rig.metric("pando_worker_integrity_failures_total") == (0 if cancelled else 1)
        rig.core.drop(request)
        assert rig.cache.num_held == 0


async def test_what_makes_no_sense_is_the_peers_fault_not_the_users() -> None:
    async with reading() as (rig, transports, reader):
        transports.gate.set()
        request = make_request("a", range(16))
        assert rig.core.reserve(request, Listener()) is not None
        transports.outcome = InvalidRequest("out of bounds", reason="out_of_bounds")
        with pytest.raises(HandoffAborted) as refused:
            await reader.read(request, 0, Loan(ENDPOINTS, extents(1)), lambda num: None)
        assert (refused.value.reason, refused.value.leg) == ("out_of_bounds", Leg.TRANSFER)
        with pytest.raises(LayoutMismatch):
            await reader.read(request, 0, Loan(ENDPOINTS, extents(1, length=BYTES - 1)), lambda num: None)
        rig.core.drop(request)


@pytest.mark.parametrize(
    ("scope", "host", "tagged"), [("remote", "here", 0), ("remote", "there", 16), ("all", "here", 16)]
)
async def test_blocks_that_leave_the_host_carry_a_tag(
    executor: ThreadPoolExecutor, scope: str, host: str, tagged: int
) -> None:
    trust = BlockTrust(Tagger(b"k" * 32), b"namespace", "here", TagScope(scope))
    async with running_core(num_blocks=64) as rig:
        lender = Lender(
            core=rig.core, segments={1: 1}, incarnation=1, trust=trust, executor=executor, max_lent_blocks=8
        )
        blocks = rig.cache.allocate(2) or []
        async with lender.loans(host) as loans:
            lent = await loans.add(rig.core.tiers.l1, blocks, NAMES[:2])
        rig.core.release(blocks)
        assert {len(extent.tag) for extent in lent} == {tagged}


@pytest.mark.parametrize("damage", ["none", "bytes", "name", "key", "untagged", "two hosts"])
async def test_a_block_from_another_host_without_the_right_tag_is_refused(damage: str) -> None:
    """The transport has checked length, generation and checksum: what is left is what only the key can tell."""
    tagger = Tagger(b"k" * 32)
    async with running_core(num_blocks=64) as rig:
        transports = FakeTransports()
        transports.gate.set()
        mine = Tagger(b"x" * 32) if damage == "key" else tagger
        trust = BlockTrust(mine, b"namespace", "here")
        reader = BlockReader(core=rig.core, transports=transports, timeouts=TimeoutsConfig(), trust=trust)  # type: ignore[arg-type]
        request, landed = make_request("a", range(10)), list[int]()
        assert rig.core.reserve(request, Listener()) is not None
        came = memoryview(bytes([transports.fill]) * BYTES)
        names = [request.block_name(index, 10) for index in range(3)]
        tags = [tagger.tag(b"namespace", name, came) for name in names]
        if damage == "bytes":
            transports.fill += 1
        if damage == "name":
            tags[0], tags[1] = tags[1], tags[0]
        if damage == "untagged":
            tags[2] = b""
        endpoints = [Endpoint("tcp", "there", 1, b"")]
        if damage == "two hosts":
            endpoints.insert(0, Endpoint("shm", "here", 1, b""))
            tags[0] = b""
        lent = [replace(extent, tag=tag) for extent, tag in zip(extents(3), tags, strict=True)]
        read = reader.read(request, 0, Loan(endpoints, lent), landed.append)
        if damage == "none":
            await read
        else:
            with pytest.raises(BlockCorrupt):
                await read
        assert rig.metric("pando_worker_integrity_failures_total") == (damage != "none")
        rig.core.drop(request)


def test_a_block_that_is_not_full_has_a_name_of_its_own() -> None:
    request, other = make_request("a", range(10)), make_request("b", [*range(9), 200])
    assert request.block_name(1, 10) == other.block_name(1, 10) == request.chain.hashes[1]
    assert request.block_name(2, 10) != other.block_name(2, 10)
    assert request.block_name(2, 9) == other.block_name(2, 9)
    assert request.block_name(0, 3) != request.block_name(0, 4) == request.chain.hashes[0]
