"""Wherever the KV of a prompt comes from, tokens and logits are the same bits; over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from common.base.errors import LayoutMismatch, Leg
from common.transport.base import DRIVER_NAMES
from pando.v1 import types_pb2, worker_pb2
from tests.support.decode_calls import DecodeClient, Output, prompt_of, request_of
from tests.support.workers import WorkerProcess, Workers

BLOCK = 16


@dataclass
class Fleet:
    """One prefill worker and two decode workers, on one transport."""

    driver: str
    prefill: WorkerProcess
    decode: WorkerProcess
    other: WorkerProcess

    def moved(self, worker: WorkerProcess) -> float:
        """Bytes that a worker has read through the driver."""
        return worker.metric("pando_worker_transfer_bytes_total", driver=self.driver)

    def source(self, worker: WorkerProcess, num_blocks: int) -> worker_pb2.BlockSource:
        """A worker as the router names it."""
        stats = worker.stats()
        ref = worker_pb2.WorkerRef(worker_id=stats.worker_id, incarnation=stats.incarnation, address=worker.address)
        return worker_pb2.BlockSource(worker=ref, num_blocks=num_blocks)


@pytest.fixture(scope="module", params=DRIVER_NAMES)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    flags = {"transport": request.param, "debug_logits_digest": "", "chunked_prefill_size": "64"}
    flags |= {"local_prefill_tokens": "64"}
    with Workers(**flags) as workers:
        launched = [workers.launch(role) for role in ("prefill", "decode", "decode")]
        ready = [worker.wait_ready() for worker in launched]
        numerics = {worker.facts["numerics"] for worker in ready}
        assert len(numerics) == 1 and "/cpu/" in min(numerics), f"build the kernels first: {numerics}"
        yield Fleet(request.param, *ready)


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[DecodeClient]:
    async with DecodeClient(fleet.decode.address) as client:
        yield client
    for worker in (fleet.prefill, fleet.decode, fleet.other):
        worker.check_idle()


@pytest.fixture
async def cold(fleet: Fleet) -> AsyncIterator[DecodeClient]:
    """The other decode worker: it computes references by itself, with nothing cached."""
    async with DecodeClient(fleet.other.address) as client:
        await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
        yield client


def assert_same(output: Output, reference: Output) -> None:
    """Tokens, text and the bits of every logits row."""
    assert output.token_ids == reference.token_ids
    assert output.text == reference.text
    assert output.digests == reference.digests
    assert len(output.digests) == len(output.token_ids)


async def test_handoff_gives_the_bits_of_local_prefill(client: DecodeClient, cold: DecodeClient, fleet: Fleet) -> None:
    prompt = prompt_of(333, 1)
    reference = await cold.generate(request_of("reference", prompt, max_tokens=24))
    before = fleet.moved(fleet.decode)
    output = await client.generate(request_of("pd", prompt, max_tokens=24, prefill=fleet.prefill.address))
    assert_same(output, reference)
    usage = output.usage
    assert usage.prefill_worker == fleet.prefill.stats().worker_id
    assert usage.decode_worker == fleet.decode.stats().worker_id
    assert usage.prompt_tokens == 333 and usage.completion_tokens == 24
    assert usage.cached_tokens == types_pb2.CachedTokens()
    assert usage.transfer_bytes == fleet.moved(fleet.decode) - before == 21 * 8192


async def test_other_prompts_give_other_bits(client: DecodeClient, fleet: Fleet) -> None:
    """Negative control: the digests tell one token of difference."""
    prompt = prompt_of(333, 1)
    first = await client.generate(request_of("a", prompt))
    second = await client.generate(request_of("b", [prompt[0] ^ 1, *prompt[1:]]))
    assert not set(first.digests) & set(second.digests)


async def test_only_missing_blocks_travel(client: DecodeClient, cold: DecodeClient, fleet: Fleet) -> None:
    """Decode holds the head; prefill, which has nothing, fetches it from decode instead of computing it."""
    head, tail = prompt_of(160, 2), prompt_of(200, 3)
    await client.generate(request_of("head", head, max_tokens=1))
    reference = await cold.generate(request_of("reference", head + tail))
    before = fleet.moved(fleet.prefill), fleet.moved(fleet.decode)
    output = await client.generate(request_of("partial", head + tail, prefill=fleet.prefill.address))
    assert_same(output, reference)
    # 160 tokens fill ten blocks, all indexed once the next token was drawn; the rest, 13 blocks, comes from prefill.
    assert output.usage.cached_tokens.peer == 160
    assert fleet.moved(fleet.prefill) - before[0] == 10 * 8192
    assert output.usage.transfer_bytes == fleet.moved(fleet.decode) - before[1] == 13 * 8192


async def test_a_prefix_comes_from_a_peer(client: DecodeClient, cold: DecodeClient, fleet: Fleet) -> None:
    """A plan without prefill: decode borrows from the other decode worker what it lacks."""
    prompt = prompt_of(300, 4)
    reference = await cold.generate(request_of("reference", prompt))
    source = fleet.source(fleet.other, 18)
    before = fleet.moved(fleet.decode)
    output = await client.generate(request_of("borrower", prompt, sources=[source]))
    assert_same(output, reference)
    assert output.usage.cached_tokens.peer == 18 * BLOCK
    assert output.usage.transfer_bytes == fleet.moved(fleet.decode) - before == 18 * 8192


async def test_a_source_that_has_less_or_is_gone_costs_a_recompute(
    client: DecodeClient, cold: DecodeClient, fleet: Fleet
) -> None:
    prompt = prompt_of(300, 5)
    reference = await cold.generate(request_of("reference", prompt[:150], max_tokens=1))
    reference = await cold.generate(request_of("reference", prompt))
    await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
    gone = worker_pb2.BlockSource(worker=worker_pb2.WorkerRef(worker_id="gone", address="127.0.0.1:1"), num_blocks=18)
    assert_same(await client.generate(request_of("gone", prompt, sources=[gone])), reference)
    await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
    await cold.worker.FlushCache(worker_pb2.FlushCacheRequest())
    await cold.generate(request_of("half", prompt[:150], max_tokens=1))
    output = await client.generate(request_of("half", prompt, sources=[fleet.source(fleet.other, 18)]))
    assert_same(output, reference)
    assert output.usage.cached_tokens.peer == 144


@pytest.mark.parametrize("remote", [True, False])
async def test_resumed_requests_go_on_with_the_same_bits(
    client: DecodeClient, cold: DecodeClient, fleet: Fleet, remote: bool
) -> None:
    prompt = prompt_of(200, 6 + remote)
    whole = await cold.generate(request_of("whole", prompt, max_tokens=40))
    sent = whole.text[:11]
    request = request_of(
        "resumed",
        prompt,
        max_tokens=40,
        output_ids=whole.token_ids[:13],
        text_offset=len(sent),
        prefill=fleet.prefill.address if remote else "",
    )
    output = await client.generate(request)
    assert output.frames[0].token_index == 13
    assert output.token_ids == whole.token_ids[13:]
    assert output.digests == whole.digests[13:]
    assert sent + output.text == whole.text
    assert output.usage.completion_tokens == 40


async def test_seeded_sampling_is_the_same_everywhere_and_choices_differ(
    client: DecodeClient, cold: DecodeClient, fleet: Fleet
) -> None:
    prompt = prompt_of(200, 8)
    texts = []
    for choice in range(3):
        request = request_of(f"choice-{choice}", prompt, max_tokens=30, temperature=3.0, seed=7)
        request.request.choice = choice
        reference = await cold.generate(request)
        request.prefill.address = fleet.prefill.address
        output = await client.generate(request)
        assert_same(output, reference)
        texts.append(output.text)
    assert len(set(texts)) == 3


async def test_choices_at_the_same_time(client: DecodeClient, cold: DecodeClient, fleet: Fleet) -> None:
    prompt = prompt_of(300, 9)
    references, requests = [], []
    for choice in range(6):
        request = request_of(f"n-{choice}", prompt, max_tokens=30, temperature=2.0, prefill=fleet.prefill.address)
        request.request.choice = choice
        requests.append(request)
        alone = worker_pb2.DecodeServiceGenerateRequest.FromString(request.SerializeToString())
        alone.ClearField("prefill")
        references.append(await cold.generate(alone))
    outputs = await asyncio.gather(*(client.generate(request) for request in requests))
    for output, reference in zip(outputs, references, strict=True):
        assert_same(output, reference)


@pytest.mark.parametrize("remote", [True, False])
async def test_logprobs_cross_the_handoff(client: DecodeClient, cold: DecodeClient, fleet: Fleet, remote: bool) -> None:
    prompt = prompt_of(150, 10)
    await client.generate(request_of("warm", prompt[:100], max_tokens=1))
    reference = await cold.generate(request_of("reference", prompt, logprobs=3, prompt_logprobs=2))
    request = request_of(
        "logprobs", prompt, logprobs=3, prompt_logprobs=2, prefill=fleet.prefill.address if remote else ""
    )
    output = await client.generate(request)
    assert_same(output, reference)
    assert output.logprobs == reference.logprobs and len(output.logprobs) == 8
    first, expected = output.frames[0].prompt, reference.frames[0].prompt
    assert first == expected and first.num_tokens == 150 and len(first.logprobs) == 149
    assert [entry.token_id for entry in first.logprobs] == prompt[1:]


@pytest.mark.parametrize("why", ["max_tokens", "stop_token", "stop_string", "end_token"])
async def test_the_first_token_may_be_the_last(client: DecodeClient, fleet: Fleet, why: str) -> None:
    prompt = prompt_of(200, 11)
    probe = await client.generate(request_of("probe", prompt, max_tokens=1))
    await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
    token, text = probe.token_ids[0], probe.text
    wishes: dict[str, dict[str, object]] = {
        "max_tokens": {"max_tokens": 1},
        "stop_token": {"stop_token_ids": [token]},
        "stop_string": {"stop": [text]},
        "end_token": {"logit_bias": {0: 1000.0}},
    }
    output = await client.generate(request_of(why, prompt, prefill=fleet.prefill.address, **wishes[why]))
    assert len(output.token_ids) == 1
    reason = types_pb2.FINISH_REASON_LENGTH if why == "max_tokens" else types_pb2.FINISH_REASON_STOP
    assert output.last.finish_reason == reason
    assert output.text == ("" if why in ("stop_string", "end_token") else text)
    assert output.last.stop_reason == (text if why == "stop_string" else "")


async def test_a_stop_string_ends_mid_stream_as_it_does_locally(
    client: DecodeClient, cold: DecodeClient, fleet: Fleet
) -> None:
    prompt = prompt_of(200, 12)
    whole = await cold.generate(request_of("whole", prompt, max_tokens=40))
    stop = whole.text[14:17]
    assert whole.text.index(stop) == 14
    output = await client.generate(
        request_of("stopped", prompt, max_tokens=40, stop=[stop], prefill=fleet.prefill.address)
    )
    assert output.text == whole.text[:14]
    assert output.last.stop_reason == stop


async def test_short_rests_are_computed_on_decode(client: DecodeClient, fleet: Fleet) -> None:
    prompt = prompt_of(60, 13)
    before = fleet.moved(fleet.decode)
    output = await client.generate(request_of("short", prompt, prefill=fleet.prefill.address))
    assert output.usage.prefill_worker == fleet.decode.stats().worker_id
    assert fleet.moved(fleet.decode) == before


async def test_a_prefill_worker_of_another_model_is_refused(client: DecodeClient, fleet: Fleet) -> None:
    """Other numerics (here: block size 32) are noticed at the handshake, before a byte moves."""
    with Workers(block_size="32", transport=fleet.driver) as strangers:
        stranger = strangers.start("prefill")
        with pytest.raises(LayoutMismatch) as refused:
            await client.generate(request_of("mismatch", prompt_of(200, 14), prefill=stranger.address))
    assert refused.value.leg is Leg.PREFILL and refused.value.request_id == "mismatch"
