"""A handoff that breaks, by a prefill worker that does what it should not: an error with a leg, or healing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from common.base.errors import (
    Cancelled,
    HandoffAborted,
    LayoutMismatch,
    Leg,
    PandoError,
    PeerLost,
    StepAborted,
    Unsupported,
)
from pando.v1 import types_pb2, worker_pb2
from tests.support.decode_calls import DecodeClient, prompt_of, request_of
from tests.support.fake_prefill import FakePrefill, Message, blocks, fake_prefill, first_token
from tests.support.workers import WorkerProcess, Workers, wait_until

BLOCK_BYTES = 8192


@pytest.fixture(scope="module")
def decode() -> Iterator[WorkerProcess]:
    with Workers(debug_logits_digest="") as workers:
        yield workers.start("decode")


@pytest.fixture
async def client(decode: WorkerProcess) -> AsyncIterator[DecodeClient]:
    async with DecodeClient(decode.address) as client:
        yield client
        decode.check_idle()
        await client.worker.FlushCache(worker_pb2.FlushCacheRequest())


@pytest.fixture
async def prefill() -> AsyncIterator[tuple[FakePrefill, str]]:
    async with fake_prefill() as served:
        yield served


BROKEN: list[tuple[str, list[Message], type[PandoError], Leg]] = [
    ("ends early", [], HandoffAborted, Leg.PREFILL),
    ("skips a block", [blocks(1, 2, BLOCK_BYTES)], StepAborted, Leg.PREFILL),
    ("repeats a block", [blocks(0, 1, BLOCK_BYTES), blocks(0, 1, BLOCK_BYTES)], PandoError, Leg.NONE),
    ("has too many", [blocks(0, 500, BLOCK_BYTES)], StepAborted, Leg.PREFILL),
    ("has wrong sizes", [blocks(0, 2, 64)], LayoutMismatch, Leg.TRANSFER),
    ("is out of reach", [blocks(0, 2, BLOCK_BYTES)], Unsupported, Leg.TRANSFER),
]


@pytest.mark.parametrize(("script", "error", "leg"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
async def test_a_handoff_that_breaks_before_the_first_token_fails_with_its_leg(
    client: DecodeClient,
    prefill: tuple[FakePrefill, str],
    script: list[Message],
    error: type[PandoError],
    leg: Leg,
) -> None:
    fake, address = prefill
    fake.script = script
    fake.hang = bool(script)
    with pytest.raises(error) as failed:
        await client.generate(request_of("broken", prompt_of(200, 1), prefill=address), timeout_s=60)
    assert failed.value.leg in ([leg] if leg else [Leg.PREFILL, Leg.TRANSFER])
    assert failed.value.request_id == "broken"


async def test_a_prefill_worker_that_is_not_there(client: DecodeClient) -> None:
    with pytest.raises(PeerLost) as failed:
        await client.generate(request_of("gone", prompt_of(200, 1), prefill="127.0.0.1:1"), timeout_s=60)
    assert failed.value.leg is Leg.PREFILL


async def test_a_stranger_is_refused_at_the_handshake(client: DecodeClient, prefill: tuple[FakePrefill, str]) -> None:
    fake, address = prefill
    fake.accept, fake.hang = False, True
    identity = types_pb2.KvIdentity(numerics_id="something else")
    fake.script = [Message(accepted=worker_pb2.HandoffAccepted(identity=identity))]
    with pytest.raises(LayoutMismatch, match="something else") as failed:
        await client.generate(request_of("stranger", prompt_of(200, 1), prefill=address), timeout_s=60)
    assert failed.value.leg is Leg.PREFILL


async def test_after_the_first_token_decode_computes_what_did_not_come(
    client: DecodeClient, prefill: tuple[FakePrefill, str]
) -> None:
    fake, address = prefill
    prompt = prompt_of(200, 2)
    reference = await client.generate(request_of("reference", prompt, max_tokens=20))
    await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
    fake.script = [first_token(reference.token_ids[0], logits_digest=reference.digests[0])]
    output = await client.generate(request_of("healed", prompt, max_tokens=20, prefill=address), timeout_s=60)
    assert output.token_ids == reference.token_ids
    assert output.digests == reference.digests
    assert output.text == reference.text


async def test_an_abort_while_blocks_arrive(
    client: DecodeClient, decode: WorkerProcess, prefill: tuple[FakePrefill, str]
) -> None:
    fake, address = prefill
    fake.hang = True
    call = asyncio.create_task(client.generate(request_of("landing", prompt_of(200, 3), prefill=address)))
    async with asyncio.timeout(60):
        await fake.sent.wait()
    assert decode.stats().blocks_held == 13
    aborted = await client.worker.AbortRequest(worker_pb2.AbortRequestRequest(request_id="landing"))
    assert aborted.found
    with pytest.raises(Cancelled):
        await call
    async with asyncio.timeout(60):
        await fake.ended.wait()
    again = await client.worker.AbortRequest(worker_pb2.AbortRequestRequest(request_id="landing"))
    assert not again.found


async def test_a_client_that_leaves_while_blocks_arrive(
    client: DecodeClient, decode: WorkerProcess, prefill: tuple[FakePrefill, str]
) -> None:
    fake, address = prefill
    fake.hang = True
    call = asyncio.create_task(client.generate(request_of("leaver", prompt_of(200, 3), prefill=address)))
    async with asyncio.timeout(60):
        await fake.sent.wait()
    call.cancel()
    async with asyncio.timeout(60):
        await fake.ended.wait()
    decode.check_idle()


async def test_a_deadline_ends_a_request_that_waits_for_blocks(
    client: DecodeClient, prefill: tuple[FakePrefill, str]
) -> None:
    fake, address = prefill
    fake.hang = True
    with pytest.raises(PandoError) as failed:
        await client.generate(request_of("late", prompt_of(200, 3), prefill=address), timeout_s=2.0)
    assert failed.value.grpc_code == "DEADLINE_EXCEEDED"
    (left_s,) = fake.left_s
    assert left_s is not None and left_s <= 2.0, "prefill knows when the request's time is up"
    async with asyncio.timeout(60):
        await fake.ended.wait()


async def test_a_resumed_request_goes_to_prefill_with_its_output(
    client: DecodeClient, prefill: tuple[FakePrefill, str]
) -> None:
    fake, address = prefill
    prompt = prompt_of(200, 4)
    whole = await client.generate(request_of("whole", prompt, max_tokens=20))
    await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
    fake.hang = True
    fake.script = [first_token(whole.token_ids[5])]
    request = request_of("resumed", prompt, max_tokens=20, output_ids=whole.token_ids[:5], prefill=address)
    output = await client.generate(request, timeout_s=60)
    assert list(fake.starts[0].request.output_token_ids) == whole.token_ids[:5]
    assert output.token_ids == whole.token_ids[5:]
    assert output.frames[0].token_index == 5


def test_the_worker_logs_no_bug(decode: WorkerProcess) -> None:
    """Runs last: everything above was an operating error, so nothing may have been logged as one of ours."""
    wait_until(lambda: decode.stats().num_running == 0, 30.0, lambda: "still running")
    bugs = [line for line in decode.log if '"level": "error"' in line or "Traceback" in line]
    assert not bugs, "\n".join(bugs)
