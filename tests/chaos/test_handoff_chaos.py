"""Workers that are killed or frozen in the middle of a handoff, and clients that leave: all answered, nothing kept."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from common.base.errors import Draining, Leg, PandoError, Unavailable
from pando.v1 import worker_pb2
from tests.support.decode_calls import DecodeClient, Output, prompt_of, request_of
from tests.support.workers import WorkerProcess, Workers, wait_until

pytestmark = pytest.mark.chaos

NOTICED_S = 3.0
FREED_S = 2.0
LONG = 3800


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Over TCP unless the test says otherwise: there a frozen peer also freezes reads."""
    transport = getattr(request, "param", "tcp")
    with Workers(transport=transport, chunked_prefill_size="4", debug_logits_digest="") as workers:
        yield workers


@asynccontextmanager
async def mid_handoff(
    prefill: WorkerProcess, decode: WorkerProcess, seed: int
) -> AsyncIterator[tuple[DecodeClient, asyncio.Task[Output]]]:
    """A long request whose first blocks have landed on decode while the others are still computed."""
    async with DecodeClient(decode.address) as client:
        before = decode.metric("pando_worker_transfer_bytes_total")
        request = request_of(f"long-{seed}", prompt_of(LONG, seed), prefill=prefill.address)
        call = asyncio.create_task(client.generate(request))
        await eventually(lambda: decode.metric("pando_worker_transfer_bytes_total") > before)
        assert not call.done()
        yield client, call


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait, off the loop, until it holds."""
    await asyncio.to_thread(wait_until, holds, 30.0, lambda: "it never came to that")


async def failure(call: asyncio.Task[Output]) -> PandoError:
    with pytest.raises(PandoError) as failed:
        await call
    return failed.value


@pytest.mark.parametrize("workers", ["shm", "tcp"], indirect=True)
@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_prefill_worker_lost_in_the_middle_is_noticed_and_blamed(workers: Workers, how: str) -> None:
    prefill, decode = workers.start_pair()
    async with mid_handoff(prefill, decode, 1) as (client, call):
        began = time.monotonic()
        prefill.kill() if how == "kill" else prefill.freeze()
        error = await failure(call)
        assert time.monotonic() - began <= NOTICED_S
        assert isinstance(error, Unavailable)
        assert error.leg in (Leg.PREFILL, Leg.TRANSFER)
        decode.check_idle(FREED_S)
        assert decode.stats().blocks_cached > 0, "what landed before stays usable"
        # What landed is a prefix hit for the next attempt, which computes the rest here.
        output = await client.generate(request_of("retry", prompt_of(LONG, 1), max_tokens=2))
        assert output.usage.cached_tokens.l1 > 0
    if how == "freeze":
        prefill.thaw()
        prefill.check_idle(5.0)


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_decode_worker_lost_in_the_middle_leaves_nothing_on_prefill(workers: Workers, how: str) -> None:
    prefill, decode = workers.start_pair()
    async with mid_handoff(prefill, decode, 2) as (_, call):
        assert prefill.stats().blocks_held > 0
        if how == "kill":
            decode.kill()
            prefill.check_idle(FREED_S)
        else:
            decode.freeze()
            prefill.check_idle(NOTICED_S)
            decode.thaw()
        answer = (await asyncio.gather(call, return_exceptions=True))[0]
        assert isinstance(answer, PandoError | Output), "decode went on where it was, or said why not"


async def test_prefill_comes_back_on_its_port_and_serves_the_same_decode(workers: Workers) -> None:
    prefill, decode = workers.start_pair()
    port = prefill.address.rpartition(":")[2]
    async with mid_handoff(prefill, decode, 3) as (client, call):
        prefill.kill()
        await failure(call)
        again = workers.start("prefill", port=port)
        reference = await client.generate(request_of("reference", prompt_of(500, 4), max_tokens=4))
        await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
        request = request_of("after", prompt_of(500, 4), max_tokens=4, prefill=again.address)
        output = await client.generate(request)
        assert output.digests == reference.digests
        assert output.usage.prefill_worker == again.stats().worker_id
        assert output.usage.transfer_bytes > 0


async def test_a_hundred_clients_that_leave_at_random_points_leave_nothing(workers: Workers) -> None:
    prefill, decode = workers.start_pair(chunked_prefill_size="64")
    draw = random.Random(5)

    async def one(number: int) -> None:
        prompt = prompt_of(draw.randint(80, 700), draw.randint(0, 20))
        request = request_of(f"c{number}", prompt, max_tokens=60, prefill=prefill.address if number % 4 else "")
        num_frames, wait_s = draw.randint(0, 12), draw.random() * 1.5
        await asyncio.sleep(draw.random() * 3)
        try:
            async with asyncio.timeout(wait_s if number % 2 else 60), DecodeClient(decode.address) as client:
                async for _ in client.frames(request):
                    num_frames -= 1
                    if num_frames <= 0:
                        return
        except (TimeoutError, PandoError):
            return

    await asyncio.gather(*(one(number) for number in range(100)))
    workers.check_idle(FREED_S)
    async with DecodeClient(decode.address) as client:
        output = await client.generate(request_of("after", prompt_of(300, 99), prefill=prefill.address))
        assert len(output.token_ids) == 8


async def test_a_drain_lets_requests_end_and_refuses_new_ones(workers: Workers) -> None:
    decode = workers.start("decode")
    async with DecodeClient(decode.address) as client:
        running = asyncio.create_task(client.generate(request_of("running", prompt_of(100, 6), max_tokens=400)))
        await eventually(lambda: decode.stats().num_running == 1)
        stopping = asyncio.create_task(asyncio.to_thread(decode.terminate))
        await eventually(lambda: decode.stats().draining)
        with pytest.raises(Draining):
            await client.generate(request_of("new", prompt_of(100, 7)))
        assert len((await running).token_ids) == 400
        assert await stopping == 0


async def test_a_drain_that_takes_too_long_sends_requests_elsewhere(workers: Workers) -> None:
    decode = workers.start("decode", timeouts__drain_s="0.2")
    async with DecodeClient(decode.address) as client:
        running = asyncio.create_task(client.generate(request_of("running", prompt_of(100, 6), max_tokens=3900)))
        await eventually(lambda: decode.stats().num_running == 1)
        stopping = asyncio.create_task(asyncio.to_thread(decode.terminate))
        assert isinstance(await failure(running), Draining)
        assert await stopping == 0
