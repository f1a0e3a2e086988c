"""Requests that must not hurt others: duplicates, limits, aborts, overload; over real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from common.base.errors import InvalidRequest
from pando.v1 import types_pb2
from tests.support.decode_calls import DecodeClient, prompt_of, request_of
from tests.support.workers import WorkerProcess, Workers


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with Workers(context_length="600", chunked_prefill_size="32") as workers:
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
    request = request_of("twin", prompt_of(200, 1), max_tokens=300, prefill=pair[0].address if remote else "")
    frames = client.frames(request)
    num_tokens = len((await anext(frames)).token_ids)
    with pytest.raises(InvalidRequest) as refused:
        await client.generate(request)
    assert refused.value.param == "request_id"
    last = None
    async for frame in frames:
        num_tokens += len(frame.token_ids)
        last = frame
    assert num_tokens == 300
    assert last is not None and last.finish_reason == types_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize("remote", [True, False])
async def test_a_prompt_one_short_of_the_context_gets_its_one_token(
    client: DecodeClient, pair: tuple[WorkerProcess, WorkerProcess], remote: bool
) -> None:
    request = request_of("brim", prompt_of(599, 2), max_tokens=50, prefill=pair[0].address if remote else "")
    output = await client.generate(request, timeout_s=20)
    assert len(output.token_ids) == 1
    assert output.last.finish_reason == types_pb2.FINISH_REASON_LENGTH
