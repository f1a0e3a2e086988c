"""Waiting in the router, over real gRPC and fake workers: limits, shares, refusals, deadlines, and who leaves early."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import Overloaded
from common.rpc.errors import METADATA_KEY
from pando.v1 import inference_pb2, types_pb2
from tests.support.fake_worker import Fault
from tests.support.router_bench import LIMIT_S, Answer, Bench, bench, eventually, text_request, write_model

LONG = "hello world " * 4


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def refused(made: Bench, request: inference_pb2.GenerateRequest) -> tuple[str, types_pb2.ErrorDetail]:
    """Status and detail of a request that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await made.ask(request)
    metadata = dict(caught.value.trailing_metadata() or ())
    detail = metadata[METADATA_KEY]
    assert isinstance(detail, bytes)
    return caught.value.code().name, types_pb2.ErrorDetail.FromString(detail)


@asynccontextmanager
async def held(made: Bench, **fields: object) -> AsyncGenerator[Fault, None]:
    """A stream that has one token and stands still until the block ends."""
    fault = Fault(after=1, hang=True)
    made.workers[0].faults.append(fault)
    running = asyncio.create_task(made.ask(text_request(**fields)))  # type: ignore[arg-type]
    await fault.reached.wait()
    yield fault
    fault.resume.set()
    await running


def queued(made: Bench) -> int:
    return made.router.room.admission.num_queued


async def test_two_of_ten_run_and_still_two_after_a_thousand_aborts(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "prefill"], max_running_requests=2) as made:
        worker = made.workers[0]
        await assert_never_more_than(made, limit=2, streams=10)
        for wave in range(10):
            stop = Fault(after=1, hang=True)
            worker.faults.extend([stop, Fault(after=1, hang=True)])
            calls = [made.stub.Generate(text_request(request_id=f"{wave}-{index}")) for index in range(100)]
            readers = [asyncio.create_task(drained(call)) for call in calls]
            await stop.reached.wait()
            for number, call in enumerate(calls):  # some are cut by their clients, some aborted by a third party
                if number % 2:
                    call.cancel()
                else:
                    await made.stub.Abort(inference_pb2.AbortRequest(request_id=f"{wave}-{number}"))
            await asyncio.gather(*readers)
            await eventually(lambda: worker.num_running == queued(made) == 0, "the wave is over at worker and router")
            worker.faults.clear()
        await assert_never_more_than(made, limit=2, streams=10)
        assert made.metric("running_requests") == 0
        admission = made.router.room.admission
        assert (admission.num_queued, admission.queued_tokens) == (0, 0)
        assert (admission.num_in_flight, admission.dispatched_tokens) == (0, 0)


async def assert_never_more_than(made: Bench, limit: int, streams: int) -> None:
    """As many as the limit stand still with their first token while the others wait; then all end."""
    made.workers[0].peak = 0
    asks = [text_request(f"{number} {LONG}", max_tokens=5) for number in range(streams)]
    async with all_but_few_wait(made, asks, limit):
        pass
    assert made.workers[0].peak == limit, "all of the limit is used, and no more"


@asynccontextmanager
async def all_but_few_wait(
    made: Bench, requests: list[inference_pb2.GenerateRequest], few: int
) -> AsyncGenerator[None, None]:
    """A few of the requests stand still at the first worker during the body, the rest waits; then all end well."""
    stops = [Fault(after=1, hang=True) for _ in range(few)]
    made.workers[0].faults.extend(stops)
    asks = [asyncio.create_task(made.ask(request)) for request in requests]
    async with asyncio.timeout(LIMIT_S):
        for stop in stops:
            await stop.reached.wait()
    await eventually(lambda: queued(made) == len(requests) - few, "the others wait")
    yield
    for stop in stops:
        stop.resume.set()
    answers = await asyncio.gather(*asks)
    assert [len(answer.tokens[0]) for answer in answers] == [request.sampling.max_tokens for request in requests]


async def drained(call: grpc.aio.UnaryStreamCall[Any, Any]) -> None:
    """Read a call to an end that may be a cancellation."""
    try:
        async for _ in call:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        return


async def test_a_full_queue_is_told_with_a_time_to_come_back(model_dir: Path) -> None:
    async with bench(model_dir, max_running_requests=1, max_queued_requests=1) as made:
        async with held(made):
            waiting = asyncio.create_task(made.ask(text_request()))
            await eventually(lambda: queued(made) == 1, "one waits")
            code, detail = await refused(made, text_request())
            assert (code, detail.reason) == ("RESOURCE_EXHAUSTED", "queue_full") and detail.retry_after_s >= 1
            assert made.metric("refusals_total", reason="queue_full") == 1
            assert made.metric("requests_total", outcome="overloaded") == 1
        await waiting
        assert made.metric("queue_seconds_count") == 2


async def test_tokens_that_workers_hold_are_not_queued(model_dir: Path) -> None:
    """Prompts go one after another when each is as much as the workers are given ahead."""
    async with bench(model_dir, ["decode+prefill"], dispatch_min_tokens=10, dispatch_ahead_s=0.0) as made:
        worker = made.workers[0]
        first = Fault(hang=True)
        worker.faults.append(first)
        asks = [asyncio.create_task(made.ask(text_request(max_tokens=3))) for _ in range(3)]
        await first.reached.wait()
        await eventually(lambda: queued(made) == 2, "two wait for the first token")
        assert len(worker.calls) == 1
        first.resume.set()
        await asyncio.gather(*asks)


async def test_a_second_worker_does_not_idle_while_something_waits(model_dir: Path) -> None:
    async with bench(model_dir, ["decode+prefill"] * 2, dispatch_min_tokens=1, dispatch_ahead_s=0.0) as made:
        faults = [Fault(hang=True), Fault(hang=True)]
        for worker, fault in zip(made.workers, faults, strict=True):
            worker.faults.append(fault)
        asks = [asyncio.create_task(made.ask(text_request(f"{n} {LONG}", max_tokens=3))) for n in range(4)]
        for fault in faults:
            async with asyncio.timeout(LIMIT_S):
                await fault.reached.wait()
            fault.resume.set()
        await asyncio.gather(*asks)


async def test_tenants_share_and_priorities_order(model_dir: Path) -> None:
    async with bench(model_dir, max_running_requests=1, expected_output_tokens=1) as made:

        async def ask(name: str, tenant: str, priority: int = 0) -> None:
            request = text_request(LONG * 3, max_tokens=2, request_id=name, tenant=tenant, priority=priority)
            await made.ask(request)

        async with held(made):
            plan = [(f"flood{n}", "flood", 0) for n in range(12)] + [("quiet", "quiet", 0), ("urgent", "flood", 3)]
            tasks = []
            for count, (name, tenant, priority) in enumerate(plan, 1):
                tasks.append(asyncio.create_task(ask(name, tenant, priority)))
                await eventually(lambda count=count: queued(made) == count, f"{count} wait")  # type: ignore[misc]
        await asyncio.gather(*tasks)
        order = [call.request.request_id.partition(".")[0] for call in made.workers[0].calls[1:]]
        assert order.index("urgent") < order.index("flood0"), order
        assert order.index("quiet") <= 6, order


async def test_a_deadline_in_the_queue_ends_the_request_there(model_dir: Path) -> None:
    async with bench(model_dir, max_running_requests=1) as made:
        async with held(made):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await made.ask(text_request(), timeout_s=1.0)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await eventually(lambda: queued(made) == 0, "it has left")
            await eventually(lambda: made.metric("requests_total", outcome="deadline") == 1, "counted as deadline")
        assert len(made.workers[0].calls) == 1, "no worker heard of it"


async def test_a_request_without_a_deadline_gets_the_usual_one(model_dir: Path) -> None:
    timeouts = TimeoutsConfig(request_s=0.4, ping_s=0.3, drain_s=2.0)
    async with bench(model_dir, max_running_requests=1, timeouts=timeouts) as made, held(made):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in made.stub.Generate(text_request()):
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert made.metric("refusals_total", reason="deadline_queued") == 1


async def test_abort_and_disconnect_leave_the_queue_at_once(model_dir: Path) -> None:
    async with bench(model_dir, max_running_requests=1) as made:
        async with held(made):
            aborted = made.stub.Generate(text_request(request_id="aborted"))
            gone = made.stub.Generate(text_request(request_id="gone"))
            readers = [asyncio.create_task(drained(call)) for call in (aborted, gone)]
            await eventually(lambda: queued(made) == 2, "both wait")
            assert (await made.stub.Abort(inference_pb2.AbortRequest(request_id="aborted"))).found
            gone.cancel()
            await asyncio.gather(*readers)
            assert await aborted.code() is grpc.StatusCode.CANCELLED
            await eventually(lambda: queued(made) == 0, "both have left")
            await eventually(lambda: made.metric("requests_total", outcome="abort") == 2, "each counted once")
        assert len(made.workers[0].calls) == 1


async def test_no_room_at_the_worker_is_waited_for(model_dir: Path) -> None:
    """A worker that is full while others run costs a wait, not a 429."""
    async with bench(model_dir, remote_prefill_min_tokens=512) as made:
        async with held(made, max_tokens=3):
            made.workers[0].faults.append(Fault(error=Overloaded("no blocks", retry_after_s=1)))
            second = asyncio.create_task(made.ask(text_request()))
            await eventually(lambda: made.metric("put_backs_total") == 1, "it waits again")
            assert queued(made) == 1
        assert len((await second).tokens[0]) == 24


async def test_no_more_is_sent_than_the_workers_have_seats(model_dir: Path) -> None:
    async with bench(model_dir, ["decode+prefill"]) as made:
        worker = made.workers[0]
        worker.stats.max_num_seqs = 3
        load = made.router.room.fleet.load
        await eventually(lambda: load.of(worker.key).max_requests == 3, "the router knows the seats")
        async with all_but_few_wait(made, [text_request(f"{n} {LONG}", max_tokens=5) for n in range(12)], 3):
            assert len(worker.calls) == 3
        assert worker.peak == 3


async def test_when_nothing_runs_no_room_is_told(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.workers[0].faults.append(Fault(error=Overloaded("no blocks", retry_after_s=3)))
        code, detail = await refused(made, text_request())
        assert code == "RESOURCE_EXHAUSTED" and detail.retry_after_s == 3


async def test_queued_requests_are_answered_when_the_last_worker_goes(model_dir: Path) -> None:
    async with bench(model_dir, ["decode+prefill"], max_running_requests=1, migration_wait_s=0.0) as made:
        fault = Fault(after=1, hang=True)
        made.workers[0].faults.append(fault)
        asks = [asyncio.create_task(made.ask(text_request())) for _ in range(4)]
        await fault.reached.wait()
        await eventually(lambda: queued(made) == 3, "three wait")
        made.registry.records.clear()
        await made.workers[0].kill()
        for outcome in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(outcome, grpc.aio.AioRpcError)
            assert outcome.code() is grpc.StatusCode.UNAVAILABLE


async def test_overload_keeps_the_worker_busy_and_refuses_the_rest(model_dir: Path) -> None:
    """A small version of the overload run in tests/chaos: five times what one worker takes at a time."""
    async with bench(model_dir, max_running_requests=4, max_queued_requests=8, step_s=0.002) as made:
        numbers = itertools.count()
        good: list[Answer] = []
        codes: set[str] = set()

        async def client() -> None:
            for _ in range(8):
                try:
                    good.append(await made.ask(text_request(f"{next(numbers)} {LONG}", max_tokens=8)))
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code().name)
                    await asyncio.sleep(0.005)

        await asyncio.gather(*(client() for _ in range(20)))
        assert codes <= {"RESOURCE_EXHAUSTED"} and 1 < made.workers[0].peak <= 4
        assert len(good) >= 40, "what the queue holds is served"
        assert made.metric("requests_total", outcome="ok") == len(good)
        assert made.metric("requests_total", outcome="overloaded") == 160 - len(good)
