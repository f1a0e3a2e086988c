"""A request whose time is up is computed no further: in a worker's queue, between chunks, while it generates, while its
KV is on the way, and as a handoff. Real gRPC in front of a real core; the engine stands still where the test wants it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import DeadlineExceeded
from common.rpc.channel import ChannelPool
from common.rpc.server import RpcServer
from common.tokenizer.tokenizer import Tokenizer
from common.worker.decode_service import DecodeServicer
from common.worker.generation import Generator
from common.worker.handoff_receiver import HandoffReceiver
from common.worker.handoff_sender import HandoffSender
from common.worker.job import Identity, Limits
from common.worker.lending import Lender
from common.worker.peers import BlockReader, PeerPrefixes, Source
from common.worker.prefill_service import PrefillServicer
from common.worker.roles import WorkerRoles
from common.worker.state import WorkerState
from pando.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from tests.support.decode_calls import DecodeClient, request_of
from tests.support.fake_prefill import Message, fake_prefill
from tests.support.tiny_vocab import tiny_vocab, write_tokenizer
from tests.support.worker_rig import BLOCK_BYTES, BLOCK_SIZE, NO_TAGS, FakeTransports, Rig, running_core

IDENTITY = Identity(b"n" * 32, "numerics", BLOCK_BYTES, BLOCK_SIZE)
SOON_S = 2.0
CHUNK = 8


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path, tiny_vocab())
    return Tokenizer.load(path)


@dataclass
class Served:
    """A core behind the RPCs of both roles, and a client of it."""

    rig: Rig
    client: DecodeClient
    transports: FakeTransports
    address: str

    async def is_late(self, request: worker_pb2.DecodeServiceGenerateRequest, timeout_s: float = SOON_S) -> None:
        """Run a request that gets to no end in its time."""
        with pytest.raises(DeadlineExceeded):
            await self.client.generate(request, timeout_s=timeout_s)

    async def empty(self) -> None:
        """Wait until the worker has nothing of any request; the engine may be in a step still."""
        async with asyncio.timeout(60):
            while self.rig.core.num_requests:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)

    def computed(self, request_id: str) -> int:
        """Tokens that the engine computed for a request."""
        return self.rig.engine.num_rows.get(request_id, 0)


@asynccontextmanager
async def served(tokenizer: Tokenizer, **config: object) -> AsyncIterator[Served]:
    timeouts, transports = TimeoutsConfig(), FakeTransports()
    settings = {"chunked_prefill_size": CHUNK, "max_batch_tokens": CHUNK} | config
    with ThreadPoolExecutor(1) as executor:
        async with running_core(64, **settings) as rig:  # type: ignore[arg-type]
            core = rig.core
            channels = ChannelPool(timeouts)
            reader = BlockReader(core=core, transports=transports, timeouts=timeouts, trust=NO_TAGS)  # type: ignore[arg-type]
            peers = PeerPrefixes(channels, reader, IDENTITY, timeouts, "w")
            lender = Lender(
                core=core, segments={1: 1}, incarnation=1, trust=NO_TAGS, executor=executor, max_lent_blocks=64
            )
            roles = WorkerRoles("w", ["prefill", "decode"], core.fail_all, drain_s=1.0)
            state = WorkerState("w", 1, roles, "m", 1, IDENTITY, [], 200, 64)
            limits = Limits(200, tokenizer.vocab_size, BLOCK_SIZE, (), debug_logits_digest=False)
            generator = Generator(
                core=core,
                tokenizer=tokenizer,
                receiver=HandoffReceiver(channels, reader, IDENTITY),
                peers=peers,
                here=Source("w", "here", 0),
                local_prefill_tokens=4,
            )
            sender = HandoffSender(core, lender, peers, state, lambda token: bytes([token % 256]))
            server = RpcServer(timeouts, ["pando.v1.DecodeService"])
            decoding = DecodeServicer(state, generator, limits, None, lambda token: b"?")  # type: ignore[arg-type]
            prefilling = PrefillServicer(state, sender, limits, None, core.clock)  # type: ignore[arg-type]
            worker_pb2_grpc.add_DecodeServiceServicer_to_server(decoding, server.grpc)
            worker_pb2_grpc.add_PrefillServiceServicer_to_server(prefilling, server.grpc)
            address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
            await server.start()
            async with DecodeClient(address) as client:
                one = Served(rig, client, transports, address)
                try:
                    yield one
                    await one.empty()
                finally:
                    rig.engine.gate.set()
                    await server.stop(0)
                    await channels.close()


async def test_in_the_queue(tokenizer: Tokenizer) -> None:
    async with served(tokenizer, max_num_seqs=1) as one:
        one.rig.engine.gate.clear()
        first = asyncio.create_task(one.client.generate(request_of("first", range(20), max_tokens=2)))
        await asyncio.to_thread(one.rig.engine.began.wait, 60)
        await one.is_late(request_of("late", range(3, 23)))
        async with asyncio.timeout(60):
            while one.rig.core.num_requests > 1:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)
        assert one.rig.core.scheduler.num_waiting == 0
        one.rig.engine.gate.set()
        await first
        assert one.computed("late") == 0 and one.computed("first") > 0


async def test_between_chunks(tokenizer: Tokenizer) -> None:
    async with served(tokenizer) as one:
        one.rig.engine.gate.clear()
        await one.is_late(request_of("late", range(100)))
        await one.empty()
        one.rig.engine.gate.set()
        await one.rig.settle()
        assert one.computed("late") == CHUNK, "the step that ran ends, and none follows"


async def test_while_it_generates(tokenizer: Tokenizer) -> None:
    async with served(tokenizer) as one:
        engine = one.rig.engine
        engine.closes_after = 3
        frames = one.client.frames(request_of("late", range(4), max_tokens=100), timeout_s=SOON_S)
        await anext(frames)
        with pytest.raises(DeadlineExceeded):
            async for _ in frames:
                pass
        await one.empty()
        before = one.computed("late")
        engine.gate.set()
        await one.rig.settle()
        assert 4 <= before <= one.computed("late") <= before + 1


async def test_while_blocks_are_on_their_way(tokenizer: Tokenizer) -> None:
    """Decode reads from a prefill worker and the bytes do not come: the request ends, its blocks are free."""
    async with served(tokenizer) as one, fake_prefill() as (fake, address):
        extents = [types_pb2.Extent(incarnation=1, segment=1, offset=0, length=BLOCK_BYTES, generation=1)]
        fake.script = [Message(blocks=worker_pb2.BlocksReady(first_block=0, extents=extents))]
        fake.hang = True
        await one.is_late(request_of("late", range(40), prefill=address))
        assert one.transports.began.is_set()
        async with asyncio.timeout(60):
            await fake.ended.wait()
        await one.empty()
        assert one.rig.cache.num_held == 0 and one.computed("late") == 0
        (left_s,) = fake.left_s
        assert left_s is not None and left_s <= SOON_S


async def test_as_a_handoff_whose_caller_says_nothing_any_more(tokenizer: Tokenizer) -> None:
    """The deadline is the call's own: prefill stops without being told by decode."""
    async with served(tokenizer) as one, grpc.aio.insecure_channel(one.address) as channel:
        one.rig.engine.gate.clear()
        call = worker_pb2_grpc.PrefillServiceStub(channel).Handoff(timeout=SOON_S)
        start = worker_pb2.HandoffStart(request=request_of("late", range(100)).request, identity=IDENTITY.to_pb())
        await call.write(worker_pb2.HandoffRequest(start=start))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while True:
                await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await one.empty()
        one.rig.engine.gate.set()
        await one.rig.settle()
        assert one.computed("late") == CHUNK


async def test_a_client_that_leaves_stops_the_work_as_well(tokenizer: Tokenizer) -> None:
    async with served(tokenizer) as one:
        one.rig.engine.gate.clear()
        running = asyncio.create_task(one.client.generate(request_of("gone", range(100))))
        await asyncio.to_thread(one.rig.engine.began.wait, 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await one.empty()
        one.rig.engine.gate.set()
        await one.rig.settle()
        assert one.computed("gone") == CHUNK


async def test_in_time_everything_is_computed(tokenizer: Tokenizer) -> None:
    """What the tests above would see if nobody looked at deadlines."""
    async with served(tokenizer) as one:
        await one.client.generate(request_of("good", range(100), max_tokens=5), timeout_s=30)
        assert one.computed("good") == 104
