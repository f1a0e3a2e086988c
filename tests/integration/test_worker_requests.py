"""Requests that must not hurt others: duplicates, limits, aborts, overload; over real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from common.base.errors import InvalidRequest, Leg, Overloaded
from pando.v1 import types_pb2
from tests.support.decode_calls import DecodeClient, prompt_of, request_of
from tests.support.workers import WorkerProcess, Workers

CONTEXT = 3000


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with Workers(context_length=str(CONTEXT), chunked_prefill_size="32") as workers:
        yield workers.start_pair()


@pytest.fixture
async def client(pair: tuple[WorkerProcess, WorkerProcess]) -> AsyncIterator[DecodeClient]:
    async with DecodeClient(pair[1].address) as client:
        yield client
    for worker in pair:
        worker.check_idle()


@pytest.mark.parametrize("remote", [True, False])
async def test_a_duplicate_is_refused_and_the_original_goes_on(
    client: DecodeClient, pair: tuple[WorkerProcess, WorkerProcess], remote: bool
) -> None:
    """The original is so long that it cannot have ended; who has seen it go on leaves it."""
    prefill = pair[0].address if remote else ""
    request = request_of("twin", prompt_of(200, 1), max_tokens=CONTEXT - 200, ignore_eos=True, prefill=prefill)
    async with aclosing(client.frames(request)) as frames:
        await anext(frames)
        with pytest.raises(InvalidRequest) as refused:
            await client.generate(request)
        assert refused.value.param == "request_id"
        num_more = 0
        while num_more < 50:
            num_more += len((await anext(frames)).token_ids)


@pytest.mark.parametrize("remote", [True, False])
async def test_a_prompt_one_short_of_the_context_gets_its_one_token(
    client: DecodeClient, pair: tuple[WorkerProcess, WorkerProcess], remote: bool
) -> None:
    request = request_of("brim", prompt_of(CONTEXT - 1, 2), max_tokens=50, prefill=pair[0].address if remote else "")
    output = await client.generate(request, timeout_s=60)
    assert len(output.token_ids) == 1
    assert output.last.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_preemption_changes_nothing_but_time() -> None:
    """A pool for two and a half of six requests: they take each other's blocks and still give the same bits."""
    flags = {"max_total_tokens": "480", "debug_logits_digest": "", "growth_reserve_blocks": "0"}
    with Workers() as workers:
        roomy, tight = workers.launch("decode", debug_logits_digest=""), workers.launch("decode", **flags)
        roomy.wait_ready()
        tight.wait_ready()
        requests = [request_of(f"p{n}", prompt_of(90, 20 + n), max_tokens=100) for n in range(6)]
        async with DecodeClient(roomy.address) as reference, DecodeClient(tight.address) as client:
            expected = [await reference.generate(request) for request in requests]
            outputs = await asyncio.gather(*(client.generate(request) for request in requests))
        for output, cold in zip(outputs, expected, strict=True):
            assert output.digests == cold.digests and output.text == cold.text
        assert tight.metric("pando_worker_preemptions_total") > 0
        assert sum(output.usage.num_preemptions for output in outputs) > 0


async def test_preemption_on_prefill_while_its_blocks_are_lent() -> None:
    """More prompts than the prefill pool holds at once, read by decode meanwhile."""
    flags = {"debug_logits_digest": "", "chunked_prefill_size": "32"}
    with Workers(**flags) as workers:
        prefill = workers.launch("prefill", max_total_tokens="640", growth_reserve_blocks="0")
        decode, other = workers.launch("decode"), workers.launch("decode")
        for worker in (prefill, decode, other):
            worker.wait_ready()
        async with DecodeClient(other.address) as reference, DecodeClient(decode.address) as client:
            prompts = [prompt_of(250, 40 + n) for n in range(8)]
            expected = [await reference.generate(request_of(f"q{n}", p)) for n, p in enumerate(prompts)]
            requests = [request_of(f"q{n}", p, prefill=prefill.address) for n, p in enumerate(prompts)]
            outputs = await asyncio.gather(*(client.generate(request) for request in requests))
        assert [output.digests for output in outputs] == [cold.digests for cold in expected]
        assert all(output.usage.transfer_bytes == 16 * 8192 for output in outputs)


async def test_overload_has_a_type_and_a_leg() -> None:
    with Workers() as workers:
        prefill = workers.launch("prefill", max_waiting_tokens="200", max_num_seqs="1", chunked_prefill_size="8")
        decode = workers.launch("decode", max_total_tokens="512", max_waiting_tokens="200")
        for worker in (prefill, decode):
            worker.wait_ready()
        async with DecodeClient(decode.address) as client:
            full = [request_of(f"f{n}", prompt_of(150, 60 + n), prefill=prefill.address) for n in range(6)]
            answers = await asyncio.gather(*(client.generate(r) for r in full), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, BaseException)]
            assert refused and len(refused) < len(answers)
            assert all(isinstance(error, Overloaded) and error.retry_after_s > 0 for error in refused)
            legs = {error.leg for error in refused if isinstance(error, Overloaded)}
            assert legs <= {Leg.NONE, Leg.PREFILL}
